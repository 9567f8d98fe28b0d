// Package control repartitions GPUs: it plans from the live node, executes plans as durable
// operations, rolls back what fails, and finishes after a crash what it had begun. It owns only
// what an operation has created under an unbroken view of the GPU, and leaves a GPU alone as soon
// as another client has changed it.
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
	// Layouts reads GPUs as they are now, by index, without Busy: all, or only those named. A GPU
	// that cannot be read is left out of the list and its error is in the map.
	Layouts(ctx context.Context, only ...gpu.UUID) ([]mig.GPULayout, map[gpu.UUID]error, error)
	// Processes lists the processes on a GPU, with the instances of each if it is in MIG mode. With
	// an error that wraps gpu.ErrPIDNamespace there may be others than those on the list, with any
	// other error there is no list.
	Processes(ctx context.Context, id gpu.UUID) ([]gpu.Process, error)
	// PerformStep does one step on a GPU that must have the expected instances: it reads them
	// immediately before the change, and changes nothing but returns mig.ErrLayoutChanged if they
	// are others. After the change, whether it succeeded or failed, it reads them again into the
	// Outcome. A creation gives exactly what was asked for, or mig.ErrNotAsAsked if the driver
	// reported success; a destruction after which the instance is still there is an error.
	PerformStep(ctx context.Context, s mig.Step, expected []mig.Instance) (mig.Outcome, error)
	// SetMIGMode asks for a mode and returns what it reads back. It releases its own handles of the
	// GPU first.
	SetMIGMode(ctx context.Context, id gpu.UUID, on bool) (mig.ModeChange, error)
	// WatchLayouts sets the receiver of changes of layouts, as soon as the driver reports them;
	// first it learns which GPUs' changes are reported.
	WatchLayouts(w mig.LayoutWatcher)
}

// Hanging is an Actuator that knows of its calls that were given up and have not returned. While
// there is one for a GPU, what it will do is unknown, and no rollback of that GPU is tried again.
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
	// List returns the known assignments, whatever the error: that says why the kubelet did not
	// answer, and then Incomplete says so, too. The error wraps gpu.ErrNoKubelet if the node has
	// none; what it returns is complete then.
	List(ctx context.Context) (gpu.Assignments, error)
	// Allocatable returns the devices that the kubelet can give out. The error wraps
	// gpu.ErrNoKubelet if the node has none.
	Allocatable(ctx context.Context) ([]gpu.Offer, error)
	// ConfirmFree records that an operator confirmed devices to be free: List no longer returns the
	// unconfirmed assignments named, and has the devices in Free for a while. It reports whether
	// that was possible: not if the kubelet has restarted since the List whose Epoch it is given.
	ConfirmFree(epoch uint64, devices []gpu.DeviceRef, unconfirmed []gpu.Assignment) bool
}

// Handles finds the processes that have device or capability files of a GPU open.
type Handles interface {
	// Open lists the processes that have files of the GPU open, by instance if the file is that of
	// one. It leaves out this process.
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
	// Owners lists other controllers that manage the partitions of GPUs of this node, by what shows
	// it; the key "" is all.
	Owners(ctx context.Context) (map[gpu.UUID][]string, error)
	// Cordon keeps new pods away and marks the node as cordoned by this program; false if the node
	// was cordoned already.
	Cordon(ctx context.Context) (bool, error)
	// Uncordon undoes a cordon that bears this program's mark, be it from before a crash. It leaves
	// any other alone.
	Uncordon(ctx context.Context) error
}

// DevicePlugin is the node's device plugin, which reads the layout only when it starts.
type DevicePlugin interface {
	// Restart ends the plugin's pods on this node, which their DaemonSet replaces, and returns
	// their UIDs. With an error it returns those that it has ended before.
	Restart(ctx context.Context) (pods []string, err error)
	// Gone reports whether none of these pods is left.
	Gone(ctx context.Context, pods []string) (bool, error)
}

// Profiling holds GPUs open besides NVML.
type Profiling interface {
	// Release releases all GPUs until resume is called.
	Release(ctx context.Context) (resume func(), err error)
}

// Store keeps the documents of partition control durably, in a folder that no other process uses
// meanwhile. What was saved is on disk. Errors: ErrStateReplaced, and those of the file system. One
// method is called at a time; one that hangs is abandoned, and the next is called when it has
// returned.
type Store interface {
	// Open takes the folder and reads it. It can be called again after any error; then it refuses a
	// folder whose documents are not those saved last, with ErrStateForeign.
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
	// History is the history, nil if there is none. HistoryDamaged says that there is one that
	// cannot be read.
	History        []byte
	HistoryDamaged bool
}

var (
	// ErrStateReplaced says that the files of the state folder in use are not those on disk any
	// more: the folder was deleted or replaced under the running program. Open uses the one that is
	// there now.
	ErrStateReplaced = errors.New("state folder was replaced while it was in use")
	// ErrStateForeign says that a state folder which is opened again has other documents than those
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

// LayoutChange is what an operation was to make of the instances of a GPU.
type LayoutChange struct {
	GPU           gpu.UUID
	Before, After []mig.Instance
}

// WantedLayout are the instances that operations have made of a GPU.
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

	Actuator    Actuator
	Poller      Poller
	Assignments Assignments // optional
	Handles     Handles     // optional
	Cluster     Cluster     // optional
	// Cordon is --control.cordon. A cordon of a former run is undone without it, too.
	Cordon       bool
	DevicePlugin DevicePlugin // optional
	Profiling    Profiling    // optional
	Store        Store
	Observer     Observer // optional
	// Unsettled receives the number of unsettled operations when it changes, Unrestored the GPUs
	// that are not restored, also when there was no change; both are optional. They and Observer
	// are called one at a time, in a goroutine of their own.
	Unsettled  func(number int)
	Unrestored func(list []api.Unrestored)
	// Ended receives each operation that has ended or waits for an operator; Wanted the layouts that
	// operations have made and that should stand, also when there was no change. Both are optional,
	// and called as Unrestored is. What they receive must not be modified.
	Ended  func(Ended)
	Wanted func([]WantedLayout)

	// CallTimeout bounds each call of the driver, the cluster, the kubelet and the store. IdleFor
	// is how long an instance must have been inactive to be idle.
	CallTimeout time.Duration
	IdleFor     time.Duration
	// SettleTimeout is how long an operation waits for the kubelet to offer the new devices, and
	// none of the destroyed ones.
	SettleTimeout time.Duration
	// RunHook runs one program, within its timeout, with this environment besides its own.
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
	// Credential is the id of the token, by which the API server's audit log has it: JTI=<uuid>.
	// Empty if there is none.
	Credential string
	// Reason is why, in the caller's own words; empty if it has given none.
	Reason string
	Rights Rights
}

// Rights are what an actor may do; none of them includes another.
type Rights struct {
	Read, Plan, Apply, Mode, Force, TakeOver, Release bool
}
