package gpu

// Inventory is which GPUs a driver has.
type Inventory struct {
	Driver Driver
	// GPUs are those with an answer, by index.
	GPUs []FoundGPU
	// Missing are indexes whose GPU gives no handle, with the reason.
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
	Hung  bool // the driver was asked for it and has not answered yet
}
