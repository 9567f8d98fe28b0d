package nvmlsource

import "github.com/NVIDIA/go-nvml/pkg/nvml"

func (d device) SetMigMode(mode int) (activation, ret nvml.Return) {
	if !d.lib.has("nvmlDeviceSetMigMode") {
		return nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_FUNCTION_NOT_FOUND
	}

	return d.Device.SetMigMode(mode)
}

// canChange reports whether the library can create again, at the same placement, all that it can
// destroy. The placements of compute instances came with R525; without them an instance could be
// destroyed, and neither the next layout nor the previous one created. So nothing is changed there.
func (l *library) canChange() bool {
	return l.has("nvmlDeviceCreateGpuInstanceWithPlacement") && l.has("nvmlGpuInstanceDestroy") &&
		l.has("nvmlGpuInstanceGetComputeInstancePossiblePlacements") &&
		l.has("nvmlGpuInstanceCreateComputeInstanceWithPlacement") &&
		l.has("nvmlComputeInstanceGetInfo_v2") && l.has("nvmlGpuInstanceGetComputeInstances") &&
		l.has("nvmlComputeInstanceDestroy")
}

// CreateGpuInstanceWithPlacement: of the profile's info go-nvml uses the id.
func (d device) CreateGpuInstanceWithPlacement(profileID uint32,
	at nvml.GpuInstancePlacement) (MutableInstance, nvml.Return) {
	profile := nvml.GpuInstanceProfileInfo{Id: profileID}

	gi, ret := d.Device.CreateGpuInstanceWithPlacement(&profile, &at)
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	return gpuInstanceHandle{d.lib, gi}, ret
}

// gpuInstanceHandle is go-nvml's handle of a GPU instance.
type gpuInstanceHandle struct {
	lib *library
	gi  nvml.GpuInstance
}

func (g gpuInstanceHandle) GetInfo() (GPUInstanceInfo, nvml.Return) {
	info, ret := g.gi.GetInfo()
	return GPUInstanceInfo{ID: info.Id, ProfileID: info.ProfileId, Placement: info.Placement}, ret
}

// GetComputeInstances goes through the compute profiles, up to the first beyond the header's that
// the driver does not know. Only the shared engine profile exists (nvml.h). The first version of
// the call reports no placement, which is 0 then.
func (g gpuInstanceHandle) GetComputeInstances() ([]ComputeInstanceInfo, nvml.Return) {
	if !g.lib.has("nvmlGpuInstanceGetComputeInstanceProfileInfo") ||
		!g.lib.has("nvmlComputeInstanceGetInfo_v2", "nvmlComputeInstanceGetInfo") {
		return nil, nvml.ERROR_FUNCTION_NOT_FOUND
	}

	var list []ComputeInstanceInfo

	for profile := range maxProfiles {
		info, ret := g.GetComputeInstanceProfileInfo(profile)
		if ret == nvml.ERROR_INVALID_ARGUMENT && profile >= nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
			break
		}

		// Of the first profile, ERROR_INVALID_ARGUMENT says that the GPU instance is gone.
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT && profile > 0 {
			continue
		}

		if ret != nvml.SUCCESS {
			return nil, ret
		}

		handles, ret := g.GetComputeInstancesOf(info.Id, int(info.InstanceCount))
		if ret != nvml.SUCCESS {
			return nil, ret
		}

		for _, h := range handles {
			ci, ret := h.GetInfo()
			if ret != nvml.SUCCESS {
				return nil, ret
			}

			list = append(list, ci)
		}
	}

	return list, nvml.SUCCESS
}

// GetComputeInstancesOf: of the profile's info go-nvml uses the id and, as the size of its buffer,
// InstanceCount.
func (g gpuInstanceHandle) GetComputeInstancesOf(
	profileID uint32,
	capacity int,
) ([]ComputeInstance, nvml.Return) {
	info := nvml.ComputeInstanceProfileInfo{
		Id:            profileID,
		InstanceCount: capacityFor(uint32(capacity)),
	}

	handles, ret := g.gi.GetComputeInstances(&info)
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	list := make([]ComputeInstance, 0, len(handles))
	for _, h := range handles {
		list = append(list, computeInstanceHandle{h})
	}

	return list, ret
}

func (g gpuInstanceHandle) GetComputeInstanceProfileInfo(
	profile int,
) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
	return g.gi.GetComputeInstanceProfileInfo(
		profile,
		nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
	)
}

// GetComputeInstancePossiblePlacements: of the profile's info go-nvml uses the id.
func (g gpuInstanceHandle) GetComputeInstancePossiblePlacements(profileID uint32) (
	[]nvml.ComputeInstancePlacement, nvml.Return) {
	return g.gi.GetComputeInstancePossiblePlacements(
		&nvml.ComputeInstanceProfileInfo{Id: profileID},
	)
}

// CreateComputeInstanceWithPlacement: of the profile's info go-nvml uses the id.
func (g gpuInstanceHandle) CreateComputeInstanceWithPlacement(profileID uint32,
	at nvml.ComputeInstancePlacement) (ComputeInstance, nvml.Return) {
	profile := nvml.ComputeInstanceProfileInfo{Id: profileID}

	ci, ret := g.gi.CreateComputeInstanceWithPlacement(&profile, &at)
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	return computeInstanceHandle{ci}, ret
}

func (g gpuInstanceHandle) Destroy() nvml.Return { return g.gi.Destroy() }

// computeInstanceHandle is go-nvml's handle of a compute instance.
type computeInstanceHandle struct{ nvml.ComputeInstance }

func (c computeInstanceHandle) GetInfo() (ComputeInstanceInfo, nvml.Return) {
	info, ret := c.ComputeInstance.GetInfo()

	return ComputeInstanceInfo{
		ID:        info.Id,
		ProfileID: info.ProfileId,
		Placement: info.Placement,
	}, ret
}
