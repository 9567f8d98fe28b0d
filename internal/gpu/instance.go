package gpu

import "time"

// GPUInstance is one GPU instance: a part of a GPU with memory of its own.
type GPUInstance struct {
	Device
	ID InstanceID
	// Generation is the layout generation in which this instance was first seen: with it the id is
	// unique over time.
	Generation uint64
	Since      time.Time // when the instance was first seen
	// Profile is the driver's name of its profile, such as "3g.20gb"; empty if the driver withholds
	// it.
	Profile          string
	ProfileID        Opt[uint32]
	Placement        Opt[Placement] // absent without the right to see it
	ComputeSlices    Opt[int]
	MemorySlices     Opt[int]
	SMs              Opt[int]
	LastRead         time.Time
	Memory           Memory
	Media            Media     // of its own engines; its compute instances share them
	Rates            LinkRates // PCIe alone, and only if Extras.InstancePCIe asks for it
	Processes        Opt[int]
	Jobs             []string // batch jobs, if a scheduler reports them
	JobsUnknown      bool     // as of a GPU
	XIDErrors        []XIDCount
	PowerWatts       Opt[float64] // estimate
	EnergyJoules     Opt[Counter] // estimate
	ComputeInstances []ComputeInstance
	// ComputeInstancesHidden is set if the driver denies us a MIG device of the GPU: ComputeInstances may
	// then lack some.
	ComputeInstancesHidden bool
}

// IsEmpty reports whether nothing can run on the instance: we know that it has no compute instance.
func (i *GPUInstance) IsEmpty() bool {
	return len(i.ComputeInstances) == 0 && !i.ComputeInstancesHidden
}

// ComputeInstance is one compute instance: a MIG device that can be given to a container.
type ComputeInstance struct {
	Device
	ID         ComputeID
	Generation uint64
	Since      time.Time
	UUID       MIGUUID
	// Profile is the MIG device's own name, "1c.3g.20gb" if it is a part of its GPU instance.
	Profile string
	// Placement is in compute slices within the GPU instance.
	Placement     Opt[Placement]
	ComputeSlices Opt[int]
	SMs           Opt[int]
	ECC           []ECCCount // only if Extras.InstanceECC asks for it
	// PowerWatts is an estimate, present if the GPU instance is split.
	PowerWatts Opt[float64]
	Processes  Opt[int]
}

// IsSplit reports whether the GPU instance's compute instances are parts of it. Otherwise its only
// compute instance is all of it, and has the same readings.
func (i *GPUInstance) IsSplit() bool {
	if len(i.ComputeInstances) != 1 {
		return len(i.ComputeInstances) > 1
	}

	all, allKnown := i.ComputeSlices.Get()
	part, partKnown := i.ComputeInstances[0].ComputeSlices.Get()

	return allKnown && partKnown && part < all
}
