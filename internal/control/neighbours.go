// Package control re-cuts GPUs: it plans from the live node, executes plans as journaled operations, rolls back what
// fails, and finishes after a crash what it had begun.
package control

import (
	"context"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Actuator reads and changes GPUs through the driver. Each method gives up when its context ends, with gpu.ErrTimeout; the
// call that hangs goes on by itself. Errors are the sentinels of gpu.
type Actuator interface {
	// Layouts reads GPUs as they are now, by index, without Busy: all, or only those named. A GPU that cannot be read is left
	// out of the list and its error is in the map.
	Layouts(ctx context.Context, only ...gpu.UUID) ([]mig.NodeGPU, map[gpu.UUID]error, error)
	// Processes lists who runs on a GPU, with the instances of each where it is in MIG mode.
	Processes(ctx context.Context, id gpu.UUID) ([]gpu.Process, error)
	// Do does one step and reads back that it is done: a creation gives exactly the placement asked for, or
	// gpu.ErrInsufficientResources; a destruction after which the instance is still there is an error.
	Do(ctx context.Context, s mig.Step) (mig.Done, error)
	// SetMIGMode asks for a mode and reads back what became of it. Before it does, it lets go of what it holds of the GPU.
	SetMIGMode(ctx context.Context, id gpu.UUID, on bool) (ModeChange, error)
}

// Hanging is an Actuator that knows of its calls that were given up and have not returned. While there are any, what they
// will do is not known, and no roll-back is tried again.
type Hanging interface {
	HungCalls() int
}

// ModeChange is what the driver made of a mode asked for.
type ModeChange = mig.ModeChange

// Node is the running exporter: what it saw last, and a poll that is over when it returns.
type Node interface {
	Current() *gpu.Snapshot
	Poll(ctx context.Context, first func() error) error
}

// Assignments tells who holds which device, and which devices the kubelet can give out.
type Assignments interface {
	List(ctx context.Context) (gpu.Assignments, error)
	Allocatable(ctx context.Context) ([]gpu.DeviceRef, error)
}

// Handles tells which processes have which device or capability files of a GPU open.
type Handles interface {
	// Open lists the processes that have files of the GPU open, by instance where the file is that of one. The own process
	// is left out.
	Open(ctx context.Context, g mig.NodeGPU) ([]Handle, error)
}

// Handle is an open file of a GPU: of the whole GPU where Instance is absent.
type Handle struct {
	PID      uint32
	Command  string
	Instance gpu.Opt[gpu.InstanceID]
	Compute  gpu.Opt[gpu.ComputeID]
}

// Cluster is the node in its Kubernetes cluster.
type Cluster interface {
	// Owners lists other controllers that manage the partitions of GPUs of this node, by what shows it; the key "" is all.
	Owners(ctx context.Context) (map[gpu.UUID][]string, error)
	// Cordon keeps new pods away and marks the node as cordoned by this program; false where the node was cordoned already,
	// by whomever.
	Cordon(ctx context.Context) (bool, error)
	// Uncordon undoes a cordon that bears this program's mark, be it from before a crash. It leaves any other alone.
	Uncordon(ctx context.Context) error
}

// Profiling holds GPUs open besides NVML.
type Profiling interface {
	// Release lets go of all GPUs until resume is called.
	Release(ctx context.Context) (resume func(), err error)
}

// Journal keeps records durably: Append returns when the record is on disk.
type Journal interface {
	Append(record []byte) error
	// Records are those that were there when the journal was opened, in order.
	Records() ([][]byte, error)
	// Reset begins a new journal with these records, atomically.
	Reset(records [][]byte) error
}

// Observer counts operations.
type Observer interface {
	Operation(verb api.Verb, result string, took time.Duration)
	State(state string) // "idle", "running", "degraded", "stuck", "read-only"
}

// Options say how to control. Optional ones are nil where the node has no such thing.
type Options struct {
	Hostname string
	BootID   string
	Apply    bool // --control.mode=apply
	Restore  bool // --control.restore
	Layouts  map[string][]api.LayoutRule

	Actuator    Actuator
	Node        Node
	Assignments Assignments // optional
	Handles     Handles     // optional
	Cluster     Cluster     // optional
	Profiling   Profiling   // optional
	Journal     Journal
	Observer    Observer // optional

	// CallTimeout bounds each driver call, IdleFor is how long an instance must have been inactive to be idle.
	CallTimeout time.Duration
	IdleFor     time.Duration
	// SettleTimeout is how long an operation waits for the kubelet to show the new devices.
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

// Actor is who asks, and what he may do.
type Actor struct {
	Name   string // "uid:0", "cert:CN", "serviceaccount:ns/name"
	Rights Rights
}

// Rights are what an actor may do; none of them includes another.
type Rights struct {
	Read, Plan, Apply, Mode, Force, TakeOver bool
}
