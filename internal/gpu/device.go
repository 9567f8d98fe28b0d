package gpu

import (
	"fmt"
	"iter"
	"time"
)

// Device is what GPUs, GPU instances and compute instances have in common.
type Device struct {
	// Up is false if the last reading of the device failed or, for a GPU, did not end in time.
	Up       bool
	Errors   []ReadError
	Activity Activity
	// Holders hold the device as a whole. A split GPU instance has one only if a single pod holds
	// all of its compute instances.
	Holders []Holder
	// Allocated is true if a container holds the device or any part of it or, on a node without a
	// kubelet, a batch job or a process does; absent if that is not known.
	Allocated Opt[bool]
	// ConfirmedFree is set if the device counts as free only because an operator has confirmed it.
	ConfirmedFree bool
}

// level is how far below the node a device is.
type level uint8

// The levels. 0 is a valid id of a GPU instance and of a compute instance, so the ids in a DeviceID
// do not show how deep it goes.
const (
	levelNone level = iota
	levelGPU
	levelInstance
	levelCompute
)

// DeviceID tells devices apart, within one Snapshot and over time. The driver reuses the ids of
// instances after a layout change: "GPU instance 1" is the same instance in two Snapshots only if
// the generation is the same, too. The zero DeviceID names no device.
//
// DeviceID is the key of everything that comes from Snapshots. Fresh answers of the driver, names
// that an allocator or a scheduler uses (DeviceRef, JobDevice), and files on disk have no
// generation, so they need keys of their own. The kubelet, for example, says that a pod holds GPU
// instance 1; which generation of it, it cannot say.
type DeviceID struct {
	gpu        UUID
	generation uint64
	instance   InstanceID
	compute    ComputeID
	level      level
}

// IDOfGPU returns the id of a GPU. A GPU without a UUID, for which the driver gives no handle, gets
// the zero DeviceID.
func IDOfGPU(g UUID) DeviceID {
	if g == "" {
		return DeviceID{}
	}

	return DeviceID{gpu: g, level: levelGPU}
}

// IDOfInstance returns the id of an instance of a GPU.
func IDOfInstance(g UUID, i *GPUInstance) DeviceID {
	return DeviceID{gpu: g, generation: i.Generation, instance: i.ID, level: levelInstance}
}

// IDOfCompute returns the id of a compute instance of an instance of a GPU.
func IDOfCompute(g UUID, i *GPUInstance, c *ComputeInstance) DeviceID {
	return DeviceID{gpu: g, generation: c.Generation, instance: i.ID, compute: c.ID, level: levelCompute}
}

// GPU returns the UUID of the GPU that the device is, or is a part of.
func (id DeviceID) GPU() UUID { return id.gpu }

// Instance returns the id of the GPU instance that the device is, or is a part of; absent for a
// GPU.
func (id DeviceID) Instance() Opt[InstanceID] {
	if id.level < levelInstance {
		return None[InstanceID]()
	}

	return Some(id.instance)
}

// Compute returns the id of the compute instance; absent for other devices.
func (id DeviceID) Compute() Opt[ComputeID] {
	if id.level < levelCompute {
		return None[ComputeID]()
	}

	return Some(id.compute)
}

// Generation returns the layout generation in which the device was first seen; 0 for a GPU.
func (id DeviceID) Generation() uint64 { return id.generation }

// String returns the id for logs: "GPU-5f65.../1/0 (generation 2)".
func (id DeviceID) String() string {
	switch id.level {
	case levelInstance:
		return fmt.Sprintf("%s/%d (generation %d)", id.gpu, id.instance, id.generation)
	case levelCompute:
		return fmt.Sprintf("%s/%d/%d (generation %d)", id.gpu, id.instance, id.compute, id.generation)
	default:
		return string(id.gpu)
	}
}

// Visit is one device of a walk over a Snapshot, and the devices that it is a part of.
type Visit struct {
	*Device
	GPU      *GPU
	Instance *GPUInstance     // nil for a GPU
	Compute  *ComputeInstance // nil unless the device is one
}

// ID returns the device's id.
func (v Visit) ID() DeviceID {
	switch {
	case v.Compute != nil:
		return IDOfCompute(v.GPU.UUID, v.Instance, v.Compute)
	case v.Instance != nil:
		return IDOfInstance(v.GPU.UUID, v.Instance)
	default:
		return IDOfGPU(v.GPU.UUID)
	}
}

// Since returns when the device was first seen; zero for a GPU, whose UUID is never reused.
func (v Visit) Since() time.Time {
	switch {
	case v.Compute != nil:
		return v.Compute.Since
	case v.Instance != nil:
		return v.Instance.Since
	default:
		return time.Time{}
	}
}

// Jobs returns the batch jobs on the device. Schedulers assign GPUs and GPU instances; a compute
// instance has the jobs of its GPU instance.
func (v Visit) Jobs() []string {
	if v.Instance != nil {
		return v.Instance.Jobs
	}

	return v.GPU.Jobs
}

// Devices yields each GPU, then its instances by placement, each followed by its compute instances.
func (s *Snapshot) Devices() iter.Seq[Visit] {
	return func(yield func(Visit) bool) {
		for i := range s.GPUs {
			for v := range s.GPUs[i].Devices() {
				if !yield(v) {
					return
				}
			}
		}
	}
}

// Devices yields the GPU, then its instances by placement, each followed by its compute instances.
func (g *GPU) Devices() iter.Seq[Visit] { return g.walk(false) }

// DistinctDevices yields the same as Devices, except for a compute instance that is all of its GPU
// instance: it repeats the GPU instance's readings. Walk over these to add up or to count.
func (g *GPU) DistinctDevices() iter.Seq[Visit] { return g.walk(true) }

func (g *GPU) walk(distinct bool) iter.Seq[Visit] {
	return func(yield func(Visit) bool) {
		if !yield(Visit{Device: &g.Device, GPU: g}) {
			return
		}

		for i := range g.Instances {
			gi := &g.Instances[i]
			if !yield(Visit{Device: &gi.Device, GPU: g, Instance: gi}) {
				return
			}

			if distinct && !gi.IsSplit() {
				continue
			}

			for c := range gi.ComputeInstances {
				ci := &gi.ComputeInstances[c]
				if !yield(Visit{Device: &ci.Device, GPU: g, Instance: gi, Compute: ci}) {
					return
				}
			}
		}
	}
}
