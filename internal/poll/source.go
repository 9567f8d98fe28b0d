package poll

import (
	"context"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// GPUReader reads GPUs. Its methods block for as long as a driver hangs; each is called from a
// goroutine that the loop can abandon. Read is called concurrently for different GPUs, never for
// the same one.
type GPUReader interface {
	// Discover lists the GPUs that can be read now, by index, and the versions in use. It finds a
	// driver that is loaded later (ErrNoDriver until then), drops GPUs that are lost and finds them
	// again.
	Discover() (gpu.Inventory, error)
	// ReadWith reads one GPU. It fills Facts, Errors, Readings, the mode in MIG, and Instances: the
	// ids, profiles, placements, memory and processes of each, whether it is up, and its errors.
	// Counters are the driver's. If the GPU as a whole could not be read, it returns an error.
	ReadWith(id gpu.UUID, cues gpu.ReadCues) (gpu.GPU, error)
	// ReadLayout reads only the MIG mode and the instances of a GPU. It fills MIG, Instances
	// without their readings, and the errors of both. If the mode has changed, it reads the whole
	// GPU like ReadWith, and returns whole as true. We do not call it before a reading of the GPU
	// has succeeded, and never while one is under way.
	ReadLayout(id gpu.UUID, cues gpu.ReadCues) (g gpu.GPU, whole bool, err error)
	// Events returns the channel of the driver's events; it is never closed.
	Events() <-chan gpu.Event
}

// Pods lists the holders of devices. List may block until its context ends.
type Pods interface {
	List(ctx context.Context) (gpu.Assignments, error)
}

// Profiler reads the activity of GPUs that the driver does not profile itself.
type Profiler interface {
	// Profile returns the activity of the GPUs of a Snapshot whose ActivitySource is unknown or
	// this profiler, for the layout that the Snapshot shows. It must not modify the Snapshot. It
	// may block for as long as its source hangs: we call it from a goroutine that the loop can
	// abandon, never concurrently.
	Profile(s *gpu.Snapshot) (map[gpu.UUID]gpu.Profiling, error)
}

// Jobs lists the batch jobs that hold devices. It may block for as long as a file system hangs.
type Jobs interface {
	Jobs(devices []gpu.JobDevice) (gpu.Jobs, error)
}

// Containers finds the container of a process in the host's process table.
type Containers interface {
	ContainerOf(pid uint32) (gpu.Container, bool)
}

// ProcessTable knows the processes of the host.
type ProcessTable interface {
	// Describe returns the name of a process and of its user. Each is empty if it is unknown or the
	// configuration does not ask for it. Describe does not block.
	Describe(pid uint32) (name, user string)
}

// sourceStatus is the outcome of the calls to a source.
type sourceStatus struct {
	success time.Time // when the last successful call began; zero before the first
	err     error     // of the last call
}

// sources returns the state of the source in a list of one; an empty list before the first call has
// ended.
func (s *sourceStatus) sources(name string) []gpu.SourceState {
	if s.success.IsZero() && s.err == nil {
		return nil
	}

	return []gpu.SourceState{{Name: name, Up: s.err == nil, LastSuccess: s.success, Err: s.err}}
}
