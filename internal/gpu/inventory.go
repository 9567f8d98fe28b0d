package gpu

import "time"

// Inventory lists the GPUs that a driver has.
type Inventory struct {
	Driver Driver
	// GPUs are the GPUs that the driver gives a handle for, by index.
	GPUs []FoundGPU
	// Missing are the GPUs that the driver counts but gives no handle for.
	Missing []MissingGPU
	// Released are the GPUs that this process has let go of. GPUs and Missing have none of them.
	Released []ReleasedGPU
}

// ReleasedGPU is a GPU that this process has let go of. Its index is the last one that it had.
type ReleasedGPU struct {
	FoundGPU
	Release
}

// Release is why this process has let go of a GPU and keeps it closed: so that the GPU can be
// reset, unbound from the driver, or passed to a virtual machine.
type Release struct {
	Since time.Time
	Cause ReleaseCause
	// Unbound is set once the kernel driver does not list the GPU any more.
	Unbound bool
}

// ReleaseCause is what made this process let go of a GPU.
type ReleaseCause string

// The causes.
const (
	ReleasedByOperator ReleaseCause = "operator"
	ReleasedByDriver   ReleaseCause = "driver" // an event: the GPU is being unbound
)

// FoundGPU is a GPU that the driver gives a handle for.
type FoundGPU struct {
	Index int
	UUID  UUID
}

// MissingGPU is a GPU that the driver counts but gives no handle for.
type MissingGPU struct {
	Index int
	Err   error
	Hung  bool // its lookup has not returned yet
}
