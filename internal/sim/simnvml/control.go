package simnvml

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// This file has the calls that change the partition of a GPU.

// SetMigMode returns the result of the activation separately (nvml.h): the mode stays pending on a GPU
// in use, and on an Ampere GPU in a pass-through machine until a reset.
func (d *gpuHandle) SetMigMode(mode int) (activation, ret nvml.Return) {
	if mode != nvml.DEVICE_MIG_ENABLE && mode != nvml.DEVICE_MIG_DISABLE {
		return nvml.ERROR_UNKNOWN, nvml.ERROR_INVALID_ARGUMENT
	}

	pending, err := d.node.ActivateMIGMode(d.index, mode == nvml.DEVICE_MIG_ENABLE)
	if err != nil {
		return nvml.ERROR_UNKNOWN, returnOf(err)
	}

	return returnOf(pending), nvml.SUCCESS
}

func (d *gpuHandle) CreateGpuInstanceWithPlacement(profileID uint32,
	at nvml.GpuInstancePlacement) (nvmlsource.MutableInstance, nvml.Return) {
	wanted := gpu.Placement{Start: int(at.Start), Size: int(at.Size)}

	_, ret := readChecked(d, gpu.ReadingMIG, func(s *sim.GPUState) (gpu.Profile, error) {
		f, err := s.ProfileByID(profileID)
		if err == nil && !slices.Contains(f.Placements, wanted) {
			err = gpu.ErrInvalidArgument
		}

		return f, err
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	id, err := d.node.CreateGPUInstance(d.index, profileID, gpu.Some(int(at.Start)))
	if err != nil {
		return nil, returnOf(err)
	}

	return &gpuInstance{gpu: d, id: id}, nvml.SUCCESS
}

func (g *gpuInstance) Destroy() nvml.Return {
	return returnOf(g.gpu.node.DestroyGPUInstance(g.gpu.index, g.id))
}

// checkInstance is readInstance for values that can fail with an error of the node.
func checkInstance[T any](g *gpuInstance, value func(i *sim.Instance) (T, error)) (T, nvml.Return) {
	var err error

	v, ret := readInstance(g, func(i *sim.Instance) (v T) {
		v, err = value(i)
		return v
	})
	if ret == nvml.SUCCESS {
		ret = returnOf(err)
	}

	return v, ret
}

// GetComputeInstanceProfileInfo takes NVML's number of a compute profile, which is also its id.
func (g *gpuInstance) GetComputeInstanceProfileInfo(
	profile int,
) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
	return checkInstance(g, func(i *sim.Instance) (nvml.ComputeInstanceProfileInfo, error) {
		f, err := i.ComputeProfile(uint32(profile))
		if err != nil {
			return nvml.ComputeInstanceProfileInfo{}, err
		}

		e := i.Profile.Engines.Or(gpu.Engines{})

		return nvml.ComputeInstanceProfileInfo{
			Id:                    uint32(profile),
			SliceCount:            uint32(f.Size),
			InstanceCount:         uint32(i.Profile.ComputeSlices / f.Size),
			MultiprocessorCount:   uint32(sim.ComputeSMs(i.Profile, f.Size)),
			SharedCopyEngineCount: uint32(e.Copy),
			SharedDecoderCount:    uint32(e.Decoder),
			SharedEncoderCount:    uint32(e.Encoder),
			SharedJpegCount:       uint32(e.JPEG),
			SharedOfaCount:        uint32(e.OFA),
		}, nil
	})
}

func (g *gpuInstance) GetComputeInstancePossiblePlacements(profileID uint32) (
	[]nvml.ComputeInstancePlacement, nvml.Return) {
	return checkInstance(g, func(i *sim.Instance) ([]nvml.ComputeInstancePlacement, error) {
		f, err := i.ComputeProfile(profileID)

		var list []nvml.ComputeInstancePlacement
		for _, p := range f.Placements {
			list = append(
				list,
				nvml.ComputeInstancePlacement{Start: uint32(p.Start), Size: uint32(p.Size)},
			)
		}

		return list, err
	})
}

func (g *gpuInstance) CreateComputeInstanceWithPlacement(profileID uint32,
	at nvml.ComputeInstancePlacement) (nvmlsource.ComputeInstance, nvml.Return) {
	f, ret := checkInstance(g, func(i *sim.Instance) (sim.ComputeProfile, error) {
		f, err := i.ComputeProfile(profileID)
		wanted := gpu.Placement{Start: int(at.Start), Size: int(at.Size)}

		if err == nil && !slices.Contains(f.Placements, wanted) {
			err = gpu.ErrInvalidArgument
		}

		return f, err
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	id, err := g.gpu.node.CreateComputeInstanceAt(
		g.gpu.index,
		g.id,
		f.Size,
		gpu.Some(int(at.Start)),
	)
	if err != nil {
		return nil, returnOf(err)
	}

	return &computeInstance{instance: g, id: id}, nvml.SUCCESS
}

// GetComputeInstancesOf lists the compute instances of one profile. If the profile is larger than the
// GPU instance, that is not supported.
func (g *gpuInstance) GetComputeInstancesOf(profileID uint32,
	capacity int) ([]nvmlsource.ComputeInstance, nvml.Return) {
	list, ret := checkInstance(g, func(i *sim.Instance) ([]nvmlsource.ComputeInstance, error) {
		f, err := i.ComputeProfile(profileID)

		var list []nvmlsource.ComputeInstance

		for _, c := range i.ComputeInstances {
			if c.Placement.Size == f.Size {
				list = append(list, &computeInstance{instance: g, id: c.ID})
			}
		}

		return list, err
	})
	if len(list) > capacity {
		return nil, nvml.ERROR_INSUFFICIENT_SIZE
	}

	return list, ret
}

// computeInstance is the handle of a compute instance. Once that is destroyed, calls return NOT_FOUND.
type computeInstance struct {
	instance *gpuInstance
	id       gpu.ComputeID
}

func (c *computeInstance) GetInfo() (nvmlsource.ComputeInstanceInfo, nvml.Return) {
	return checkInstance(
		c.instance,
		func(i *sim.Instance) (nvmlsource.ComputeInstanceInfo, error) {
			found, ok := i.Compute(c.id)
			if !ok {
				return nvmlsource.ComputeInstanceInfo{}, gpu.ErrNotFound
			}

			return computeInfo(found), nil
		},
	)
}

func (c *computeInstance) Destroy() nvml.Return {
	g := c.instance
	return returnOf(g.gpu.node.DestroyComputeInstance(g.gpu.index, g.id, c.id))
}
