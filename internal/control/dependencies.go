// Package control repartitions GPUs: it plans from the live node, executes plans as durable
// operations, rolls back what fails, and finishes after a crash what it had begun. It takes an
// instance for its own only if it has created it and has seen every change of the GPU since; it
// leaves a GPU alone as soon as another client has changed it.
package control

import (
	"context"
	"errors"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Actuator reads and changes GPUs through the driver. Each method gives up when its context ends,
// with gpu.ErrTimeout; the call that hangs is abandoned, not stopped. Errors are the sentinels of
// gpu.
type Actuator interface {
	// Layouts reads GPUs as they are now, in the order of their indexes: all, or only those named.
	// It leaves Busy unset. The map has the errors of GPUs that cannot be read.
	Layouts(ctx context.Context, only ...gpu.UUID) ([]mig.GPULayout, map[gpu.UUID]error, error)
	// Processes lists the processes on a GPU, with the instances of each if it is in MIG mode. If
	// the error wraps gpu.ErrPIDNamespace, the list may be incomplete; after any other error there
	// is none.
	Processes(ctx context.Context, id gpu.UUID) ([]gpu.Process, error)
	// PerformStep does one step on a GPU that must have the expected instances. It reads them
	// immediately before the change; if they are others, it changes nothing and returns
	// mig.ErrLayoutChanged. After the change, whether it succeeded or failed, it reads them again
	// into the Outcome. If the driver reports success, but has not created exactly what was asked
	// for, the error is mig.ErrNotAsAsked; if it has not destroyed the instance, there is an error,
	// too.
	PerformStep(ctx context.Context, s mig.Step, expected []mig.Instance) (mig.Outcome, error)
	// SetMIGMode asks for a mode and returns what it reads back. It releases its own handles of the
	// GPU first.
	SetMIGMode(ctx context.Context, id gpu.UUID, on bool) (mig.ModeChange, error)
	// WatchLayouts sets the receiver of the driver's reports of changed layouts. Its method Watching
	// is called first, for the GPUs whose changes the driver reports already.
	WatchLayouts(w mig.LayoutWatcher)
}

// Hanging is an Actuator that knows of its calls that were given up and have not returned. While
// there is one for a GPU, it may still change the GPU, and we don't try its rollback again.
type Hanging interface {
	Hung(id gpu.UUID) bool
}

// Poller is the exporter's poll loop.
type Poller interface {
	// Current returns the last Snapshot, nil before the first.
	Current() *gpu.Snapshot
	// Poll runs one cycle and returns when its Snapshot is published. first, unless it is nil, runs
	// before the cycle.
	Poll(ctx context.Context, first func() error) error
	// PollGPUs reads only these GPUs, and returns when the Snapshot with them is published.
	PollGPUs(ctx context.Context, ids ...gpu.UUID) error
}

// Assignments returns the holders of devices, and which devices the kubelet can give out.
type Assignments interface {
	// List returns the known assignments. An error says why the kubelet did not answer; then they
	// are those known before, and Incomplete is set. If the error wraps gpu.ErrNoKubelet, the node
	// has no kubelet, and the assignments are complete.
	List(ctx context.Context) (gpu.Assignments, error)
	// Allocatable returns the devices that the kubelet can give out. The error wraps
	// gpu.ErrNoKubelet if the node has none.
	Allocatable(ctx context.Context) ([]gpu.Offer, error)
	// ConfirmFree records that an operator confirmed devices to be free: List no longer returns
	// these unconfirmed assignments, and has the devices in Free for a while. epoch is the Epoch of
	// the List that the operator saw. ConfirmFree does nothing and returns false if the kubelet has
	// restarted since.
	ConfirmFree(epoch uint64, devices []gpu.DeviceRef, unconfirmed []gpu.Assignment) bool
}

// Handles finds the processes that have device or capability files of a GPU open.
type Handles interface {
	// Open lists the open files of the GPU and of its instances. It leaves out those of this
	// process.
	Open(ctx context.Context, g mig.GPULayout) ([]Handle, error)
}

// Handle is an open file of a GPU: of the whole GPU if Instance is absent.
type Handle struct {
	PID      uint32
	Command  string
	Instance gpu.Opt[gpu.InstanceID]
	Compute  gpu.Opt[gpu.ComputeID]
}

// Cluster is the node in its Kubernetes cluster.
type Cluster interface {
	// Owners lists, for each GPU of this node, the other controllers that manage its partitions,
	// with what shows that they do. The key "" has those that manage all GPUs.
	Owners(ctx context.Context) (map[gpu.UUID][]string, error)
	// Cordon keeps new pods away and marks the node as cordoned by this program. It returns false if
	// the node was cordoned already.
	Cordon(ctx context.Context) (bool, error)
	// Uncordon undoes a cordon that bears this program's mark, also one from before a crash. It
	// leaves any other alone.
	Uncordon(ctx context.Context) error
}

// DevicePlugin is the node's device plugin, which reads the layout only when it starts.
type DevicePlugin interface {
	// Restart ends the plugin's pods on this node, which their DaemonSet replaces, and returns
	// their UIDs. With an error it returns the UIDs of those that it has ended so far.
	Restart(ctx context.Context) (pods []string, err error)
	// Gone reports whether none of these pods is left.
	Gone(ctx context.Context, pods []string) (bool, error)
}

// Profiling reads profiling metrics, and holds GPUs open for that.
type Profiling interface {
	// Release releases all GPUs until resume is called.
	Release(ctx context.Context) (resume func(), err error)
}

// Store keeps the documents of partition control durably, in a folder that no other process uses
// meanwhile. When a method that saves returns nil, the document is on disk. Errors are
// ErrStateReplaced, and those of the file system. The Engine calls one method at a time. If a call
// hangs, the Engine goes on without its result, and makes the next call after it has returned.
type Store interface {
	// Open takes the folder and reads it. It can be called again after any error; then it returns
	// ErrStateForeign if the folder has other documents than those saved last.
	Open() (Documents, error)
	// Reserve makes room for documents of an operation of up to size bytes, so that saving them
	// allocates nothing on disk.
	Reserve(size int) error
	// SaveOperation and SaveHistory replace a document. After an error the previous one is still
	// there.
	SaveOperation(document []byte) error
	SaveHistory(document []byte) error
}

// Documents are what a state folder holds.
type Documents struct {
	// Operation is the newest readable document of an operation, nil if there is none.
	Operation []byte
	// OperationDamaged says that a document which may be newer than Operation cannot be read.
	OperationDamaged bool
	// History is the history, nil if there is none or it cannot be read. HistoryDamaged says that it
	// cannot, or that it is missing and must have been there.
	History        []byte
	HistoryDamaged bool
}

var (
	// ErrStateReplaced says that the state folder was deleted or replaced while the program ran: the
	// files that it has open are not those at the folder's path. Open uses the folder that is there
	// now.
	ErrStateReplaced = errors.New("state folder was replaced while it was in use")
	// ErrStateForeign says that a state folder has other documents than those that this process has
	// saved last.
	ErrStateForeign = errors.New(
		"state folder was changed by another program: stop that one, and restart this one",
	)
)

// Observer counts operations.
type Observer interface {
	Operation(verb api.Verb, result string, took time.Duration)
	State(state string) // "idle", "running", "degraded", "stuck", "read-only"
}

// Ended is an operation that has ended, or waits for an operator.
type Ended struct {
	Operation *api.Operation
	Changes   []LayoutChange // what it was to change; empty for a change of the MIG mode
}

// LayoutChange is what an operation was asked to change of a GPU, whether or not it has.
type LayoutChange struct {
	GPU           gpu.UUID
	Before, After []mig.Instance
}

// WantedLayout is the committed layout of a GPU: the instances that it should have.
type WantedLayout struct {
	GPU       gpu.UUID
	Instances []mig.Instance
}

// Options configure an Engine. Optional dependencies are nil if the node has no such thing.
type Options struct {
	Hostname string
	BootID   string
	Apply    bool                        // --control.mode=apply
	Restore  bool                        // --control.restore
	Layouts  map[string][]api.LayoutRule // of --control.layouts, until SetLayouts

	Actuator     Actuator
	Poller       Poller
	Assignments  Assignments  // optional
	Handles      Handles      // optional
	Cluster      Cluster      // optional
	Cordon       bool         // --control.cordon; we undo a cordon of a former run without it, too
	DevicePlugin DevicePlugin // optional
	Profiling    Profiling    // optional
	Store        Store
	Observer     Observer // optional
	// One goroutine calls Observer and these functions, one at a time. They are optional, and must
	// not modify what they receive. Unsettled receives the number of unsettled operations when it
	// changes, Ended each operation that has ended or waits for an operator. Unrestored receives the
	// GPUs that are not restored and Wanted the committed layouts, also if they have not changed.
	Unsettled  func(number int)
	Unrestored func(list []api.Unrestored)
	Ended      func(Ended)
	Wanted     func([]WantedLayout)

	// CallTimeout bounds each call of the driver, the cluster, the kubelet and the store.
	CallTimeout time.Duration
	// IdleFor is how long an instance must have been inactive before we take it for idle.
	IdleFor time.Duration
	// SettleTimeout is how long an operation waits for the kubelet to offer the new devices, and
	// none of the destroyed ones.
	SettleTimeout time.Duration
	// RunHook runs one program, within its timeout. env comes in addition to the program's own
	// environment.
	RunHook func(ctx context.Context, h Hook, env []string) api.HookResult
	Hooks   []Hook
	Now     func() time.Time
	Logger  log.Logger
}

// Hook is a program that is run after a change, with the old and new UUIDs in its environment.
type Hook struct {
	Argv    []string
	Timeout time.Duration
}

// Actor is an authenticated caller and its rights.
type Actor struct {
	Name string // "uid:0", "cert:CN", "serviceaccount:ns/name"
	// Credential is the id of the caller's token, JTI=<uuid>, as in the API server's audit log;
	// empty if it has no token.
	Credential string
	// Reason is why the caller makes the request, in its own words; empty if it has not said.
	Reason string
	Rights Rights
}

// Rights are what an actor may do; none of them includes another.
type Rights struct {
	Read, Plan, Apply, Mode, Force, TakeOver, Release bool
}
