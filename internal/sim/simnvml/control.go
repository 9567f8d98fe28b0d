package simnvml

import (
	"errors"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// What changes the partition of a GPU.

// SetMigMode returns separately what became of the activation (nvml.h): the mode is pending on a
// GPU in use, and on an Ampere one in a pass-through machine until a reset.
func (d *device) SetMigMode(mode int) (activation, ret nvml.Return) {
	if mode != nvml.DEVICE_MIG_ENABLE && mode != nvml.DEVICE_MIG_DISABLE {
		return nvml.ERROR_UNKNOWN, nvml.ERROR_INVALID_ARGUMENT
	}

	refused := d.node.SetMIGMode(d.index, mode == nvml.DEVICE_MIG_ENABLE)
	if refused != nil && !errors.Is(refused, gpu.ErrInUse) {
		return nvml.ERROR_UNKNOWN, returnOf(refused)
	}

	return read(d, gpu.ReadingMIG, func(s *sim.GPUState) (nvml.Return, nvml.Return) {
		switch {
		case refused != nil:
			return nvml.ERROR_IN_USE, nvml.SUCCESS
		case s.MIGEnabled != s.MIGPending:
			return nvml.ERROR_RESET_REQUIRED, nvml.SUCCESS
		}

		return nvml.SUCCESS, nvml.SUCCESS
	})
}

func (d *device) CreateGpuInstanceWithPlacement(profileID uint32,
	at nvml.GpuInstancePlacement) (nvmlsource.MutableInstance, nvml.Return) {
	place := gpu.Placement{Start: int(at.Start), Size: int(at.Size)}

	_, ret := read(d, gpu.ReadingMIG, func(s *sim.GPUState) (bool, nvml.Return) {
		for _, f := range s.Profiles {
			if f.ID == profileID && slices.Contains(f.Placements, place) {
				return true, nvml.SUCCESS
			}
		}

		return false, nvml.ERROR_INVALID_ARGUMENT
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	id, err := d.node.CreateGPUInstance(d.index, profileID, gpu.Some(int(at.Start)))
	if err != nil {
		return nil, returnOf(err)
	}

	return &gpuInstance{device: d, id: id}, nvml.SUCCESS
}

func (g *gpuInstance) Destroy() nvml.Return {
	return returnOf(g.device.node.DestroyGPUInstance(g.device.index, g.id))
}

// ofInstance answers about a GPU instance, with a code of its own.
func ofInstance[T any](
	g *gpuInstance,
	answer func(i *sim.Instance) (T, nvml.Return),
) (T, nvml.Return) {
	var own nvml.Return

	value, ret := readInstance(g, func(i *sim.Instance) (value T) {
		value, own = answer(i)
		return value
	})
	if ret == nvml.SUCCESS {
		ret = own
	}

	return value, ret
}

// sizeOf is how many slices a compute profile has; those that the GPU instance has no room for are
// not supported.
func sizeOf(i *sim.Instance, profile uint32) (int, nvml.Return) {
	if profile >= nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		return 0, nvml.ERROR_INVALID_ARGUMENT
	}

	for size := 1; size <= i.Profile.ComputeSlices; size++ {
		if id, ok := sim.ComputeProfileID(size); ok && id == profile &&
			sim.ComputePlacements(i.Profile.ComputeSlices, size) != nil {
			return size, nvml.SUCCESS
		}
	}

	return 0, nvml.ERROR_NOT_SUPPORTED
}

// GetComputeInstanceProfileInfo: NVML's number of a compute profile is its id too.
func (g *gpuInstance) GetComputeInstanceProfileInfo(
	profile int,
) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
	return ofInstance(g, func(i *sim.Instance) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
		size, ret := sizeOf(i, uint32(profile))
		if ret != nvml.SUCCESS {
			return nvml.ComputeInstanceProfileInfo{}, ret
		}

		e := i.Profile.Engines.Or(gpu.Engines{})

		return nvml.ComputeInstanceProfileInfo{
			Id:                    uint32(profile),
			SliceCount:            uint32(size),
			InstanceCount:         uint32(i.Profile.ComputeSlices / size),
			MultiprocessorCount:   uint32(sim.ComputeSMs(i.Profile, size)),
			SharedCopyEngineCount: uint32(e.Copy),
			SharedDecoderCount:    uint32(e.Decoder),
			SharedEncoderCount:    uint32(e.Encoder),
			SharedJpegCount:       uint32(e.JPEG),
			SharedOfaCount:        uint32(e.OFA),
		}, nvml.SUCCESS
	})
}

func (g *gpuInstance) GetComputeInstancePossiblePlacements(profileID uint32) (
	[]nvml.ComputeInstancePlacement, nvml.Return) {
	return ofInstance(g, func(i *sim.Instance) ([]nvml.ComputeInstancePlacement, nvml.Return) {
		size, ret := sizeOf(i, profileID)
		if ret != nvml.SUCCESS {
			return nil, ret
		}

		var list []nvml.ComputeInstancePlacement
		for _, p := range sim.ComputePlacements(i.Profile.ComputeSlices, size) {
			list = append(
				list,
				nvml.ComputeInstancePlacement{Start: uint32(p.Start), Size: uint32(p.Size)},
			)
		}

		return list, nvml.SUCCESS
	})
}

func (g *gpuInstance) CreateComputeInstanceWithPlacement(profileID uint32,
	at nvml.ComputeInstancePlacement) (nvmlsource.ComputeInstance, nvml.Return) {
	size, ret := ofInstance(g, func(i *sim.Instance) (int, nvml.Return) {
		size, ret := sizeOf(i, profileID)
		wanted := gpu.Placement{Start: int(at.Start), Size: int(at.Size)}

		if ret == nvml.SUCCESS &&
			!slices.Contains(sim.ComputePlacements(i.Profile.ComputeSlices, size), wanted) {
			ret = nvml.ERROR_INVALID_ARGUMENT
		}

		return size, ret
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	id, err := g.device.node.CreateComputeInstanceAt(
		g.device.index,
		g.id,
		size,
		gpu.Some(int(at.Start)),
	)
	if err != nil {
		return nil, returnOf(err)
	}

	return &computeInstance{instance: g, id: id}, nvml.SUCCESS
}

// GetComputeInstancesOf lists those of one profile; of one that the GPU instance has no room for
// that is not supported.
func (g *gpuInstance) GetComputeInstancesOf(profileID uint32,
	capacity int) ([]nvmlsource.ComputeInstance, nvml.Return) {
	return ofInstance(g, func(i *sim.Instance) ([]nvmlsource.ComputeInstance, nvml.Return) {
		size, ret := sizeOf(i, profileID)
		if ret != nvml.SUCCESS {
			return nil, ret
		}

		var list []nvmlsource.ComputeInstance

		for _, c := range i.ComputeInstances {
			if c.Placement.Size == size {
				list = append(list, &computeInstance{instance: g, id: c.ID})
			}
		}

		if len(list) > capacity {
			return nil, nvml.ERROR_INSUFFICIENT_SIZE
		}

		return list, nvml.SUCCESS
	})
}

// computeInstance is a compute instance handle, stale (NOT_FOUND) once it is destroyed.
type computeInstance struct {
	instance *gpuInstance
	id       gpu.ComputeID
}

func (c *computeInstance) GetInfo() (nvmlsource.ComputeInstanceInfo, nvml.Return) {
	return ofInstance(
		c.instance,
		func(i *sim.Instance) (nvmlsource.ComputeInstanceInfo, nvml.Return) {
			found, ok := i.Compute(c.id)
			if !ok {
				return nvmlsource.ComputeInstanceInfo{}, nvml.ERROR_NOT_FOUND
			}

			return computeInfo(found), nvml.SUCCESS
		},
	)
}

func (c *computeInstance) Destroy() nvml.Return {
	g := c.instance
	return returnOf(g.device.node.DestroyComputeInstance(g.device.index, g.id, c.id))
}
