package poll

import (
	"context"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Source is where GPUs come from. Its methods may block for as long as a driver hangs; each is called from a goroutine
// that the loop can abandon. Read is called for different GPUs at once, never twice at once for the same.
type Source interface {
	// Discover lists the GPUs that can be asked now, by index, and the versions in use. It finds a driver that arrives
	// late (ErrNoDriver until then), drops GPUs that are gone and finds them again.
	Discover() (gpu.Inventory, error)
	// Read reads one GPU: identity, MIG tree, readings. Of the Snapshot's GPU it fills Facts, Errors, Readings, MIG
	// (mode only) and Instances (ids, profiles, placements, memory, processes; up and errors of each). Counters are the
	// driver's. An error means that the GPU as a whole could not be read.
	Read(id gpu.UUID) (gpu.GPU, error)
	// Events delivers what the driver reports; the channel is never closed.
	Events() <-chan gpu.Event
}

// Pods tells who holds which device. List may block until its context ends.
type Pods interface {
	List(ctx context.Context) (gpu.Assignments, error)
}

// Profiler tells the activity of GPUs that the driver itself does not profile: those of a Snapshot whose ActivitySource is
// unknown, or not its own. It must not modify the Snapshot. Values belong to the layout that the Snapshot shows. Profile may
// block for as long as its source hangs; it is called from a goroutine that the loop can abandon, never twice at once.
type Profiler interface {
	Profile(s *gpu.Snapshot) (map[gpu.UUID]gpu.Profiling, error)
}

// Jobs tells which batch jobs hold devices. It may block for as long as a file system hangs.
type Jobs interface {
	Jobs(devices []gpu.JobDevice) (gpu.Jobs, error)
}

// Containers finds the container that a process runs in, from the host's process table.
type Containers interface {
	ContainerOf(pid uint32) (gpu.Container, bool)
}
