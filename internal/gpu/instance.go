package gpu

import "time"

// GPUInstance is one GPU instance: a part of a GPU with memory of its own.
type GPUInstance struct {
	ID InstanceID
	// Generation is the layout generation in which this instance was first seen: with it the id is unique over time.
	Generation uint64
	Since      time.Time // when that was
	// Profile is the driver's name of its profile, such as "3g.20gb"; empty if the driver withholds it.
	Profile       string
	ProfileID     Opt[uint32]
	Placement     Opt[Placement] // absent without the right to see it
	ComputeSlices Opt[int]
	MemorySlices  Opt[int]
	SMs           Opt[int]
	// Up is false when its last reading failed.
	Up        bool
	LastRead  time.Time
	Errors    []ReadError
	Memory    Memory
	Activity  Activity
	Media     Media     // of its own engines; its compute instances share them
	Rates     LinkRates // its traffic over PCIe, only if it is asked for
	Processes Opt[int]
	Allocated Opt[bool]
	// ConfirmedFree is as that of GPU.
	ConfirmedFree bool
	// Holders has the pod that holds all compute instances, if there is one.
	Holders          []Holder
	Jobs             []string // batch jobs, if a scheduler reports them
	XIDErrors        []XIDCount
	PowerWatts       Opt[float64] // estimate
	EnergyJoules     Opt[Counter] // estimate
	ComputeInstances []ComputeInstance
	// ComputesHidden is set if MIG devices of the GPU are denied: ComputeInstances may lack some then.
	ComputesHidden bool
}

// IsEmpty reports whether nothing can run on the instance: it is known to have no compute instance.
func (i *GPUInstance) IsEmpty() bool { return len(i.ComputeInstances) == 0 && !i.ComputesHidden }

// ComputeInstance is one compute instance: a MIG device that can be given to a container.
type ComputeInstance struct {
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
	Up            bool
	Errors        []ReadError
	Activity      Activity   // never DRAM
	ECC           []ECCCount // of its MIG device, only if it is asked for
	// PowerWatts is an estimate, present if the GPU instance is split.
	PowerWatts Opt[float64]
	Processes  Opt[int]
	Allocated  Opt[bool]
	// ConfirmedFree is as that of GPU.
	ConfirmedFree bool
	Holders       []Holder
}

// IsSplit reports whether the compute instances are parts of the GPU instance. A compute instance that is all of it has
// the same readings as the GPU instance.
func (i *GPUInstance) IsSplit() bool {
	if len(i.ComputeInstances) != 1 {
		return len(i.ComputeInstances) > 1
	}

	of, ofOK := i.ComputeSlices.Get()
	part, partOK := i.ComputeInstances[0].ComputeSlices.Get()

	return ofOK && partOK && part < of
}

// Key identifies the instance over time.
func (g *GPU) Key(i *GPUInstance) InstanceKey {
	return InstanceKey{GPU: g.UUID, ID: i.ID, Generation: i.Generation}
}

// ComputeKey identifies the compute instance over time.
func (g *GPU) ComputeKey(i *GPUInstance, c *ComputeInstance) ComputeKey {
	return ComputeKey{GPU: g.UUID, Instance: i.ID, ID: c.ID, Generation: c.Generation}
}
