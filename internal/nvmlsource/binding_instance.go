package nvmlsource

import "github.com/NVIDIA/go-nvml/pkg/nvml"

func (d device) SetMigMode(mode int) (activation, ret nvml.Return) {
	if !d.lib.has("nvmlDeviceSetMigMode") {
		return nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_FUNCTION_NOT_FOUND
	}

	return d.Device.SetMigMode(mode)
}

// canChange reports whether the library can create again, at the same placement, all that it can
// destroy. The placements of compute instances came with R525. With an older library we could
// destroy an instance and then create neither the next layout nor the previous one, so we change
// nothing.
func (l *library) canChange() bool {
	return l.has("nvmlDeviceCreateGpuInstanceWithPlacement") && l.has("nvmlGpuInstanceDestroy") &&
		l.has("nvmlGpuInstanceGetComputeInstancePossiblePlacements") &&
		l.has("nvmlGpuInstanceCreateComputeInstanceWithPlacement") &&
		l.has("nvmlComputeInstanceGetInfo_v2") && l.has("nvmlGpuInstanceGetComputeInstances") &&
		l.has("nvmlComputeInstanceDestroy")
}

// CreateGpuInstanceWithPlacement passes only the profile's id: go-nvml uses nothing else of its
// info.
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

// GetComputeInstances lists the compute instances of one profile after the other, always with the
// shared engine profile: there is no other (nvml.h). A newer driver may have more profiles than our
// nvml.h; the first number beyond them that the driver refuses is the end. If the library has only
// the first version of nvmlComputeInstanceGetInfo, the placements are unknown and stay 0.
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

		// For profile 0, which every driver has, ERROR_INVALID_ARGUMENT means that the GPU instance
		// is gone.
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

// GetComputeInstancesOf passes the profile's id and InstanceCount, the size of go-nvml's buffer:
// go-nvml uses nothing else of its info.
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

// GetComputeInstancePossiblePlacements passes only the profile's id: go-nvml uses nothing else of
// its info.
func (g gpuInstanceHandle) GetComputeInstancePossiblePlacements(profileID uint32) (
	[]nvml.ComputeInstancePlacement, nvml.Return) {
	return g.gi.GetComputeInstancePossiblePlacements(
		&nvml.ComputeInstanceProfileInfo{Id: profileID},
	)
}

// CreateComputeInstanceWithPlacement passes only the profile's id: go-nvml uses nothing else of its
// info.
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
