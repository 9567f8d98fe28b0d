package gpu

// Inventory lists the GPUs that a driver has.
type Inventory struct {
	Driver Driver
	// GPUs are those with a handle, by index.
	GPUs []FoundGPU
	// Missing are the indexes without a handle, with the reason.
	Missing []MissingGPU
}

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
