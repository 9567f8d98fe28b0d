package nvmlsource

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// SetMigMode also returns the code of the activation, which can fail although the mode was set.
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
	return l.hasAll(
		"nvmlDeviceCreateGpuInstanceWithPlacement",
		"nvmlGpuInstanceDestroy",
		"nvmlGpuInstanceGetComputeInstancePossiblePlacements",
		"nvmlGpuInstanceCreateComputeInstanceWithPlacement",
		"nvmlComputeInstanceGetInfo_v2",
		"nvmlGpuInstanceGetComputeInstances",
		"nvmlComputeInstanceDestroy",
	)
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

// GetComputeInstances lists the compute instances of one profile after the other. If the library has
// only the first version of nvmlComputeInstanceGetInfo, the placements are unknown and stay 0.
func (g gpuInstanceHandle) GetComputeInstances() ([]ComputeInstanceInfo, nvml.Return) {
	if !g.lib.has("nvmlGpuInstanceGetComputeInstanceProfileInfo") ||
		!g.lib.hasAny("nvmlComputeInstanceGetInfo_v2", "nvmlComputeInstanceGetInfo") {
		return nil, nvml.ERROR_FUNCTION_NOT_FOUND
	}

	profiles, ret := queryComputeProfiles(g.GetComputeInstanceProfileInfo)
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	var list []ComputeInstanceInfo

	for _, profile := range profiles {
		handles, ret := g.GetComputeInstancesOf(profile.Id, int(profile.InstanceCount))
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

// queryComputeProfiles queries the profiles that compute instances can have in a GPU instance. The list
// is empty only after an error: every GPU instance has some. ERROR_INVALID_ARGUMENT means that the GPU
// instance is gone.
func queryComputeProfiles(
	query func(number int) (nvml.ComputeInstanceProfileInfo, nvml.Return),
) ([]nvml.ComputeInstanceProfileInfo, nvml.Return) {
	var list []nvml.ComputeInstanceProfileInfo

	ret := queryProfileEnum(nvml.COMPUTE_INSTANCE_PROFILE_COUNT, query,
		func(_ int, info nvml.ComputeInstanceProfileInfo) { list = append(list, info) })
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	return list, nvml.SUCCESS
}

// GetComputeInstancesOf passes the profile's id, and the size of go-nvml's buffer as InstanceCount:
// go-nvml uses nothing else of its info.
func (g gpuInstanceHandle) GetComputeInstancesOf(
	profileID uint32,
	instanceCount int,
) ([]ComputeInstance, nvml.Return) {
	info := nvml.ComputeInstanceProfileInfo{
		Id:            profileID,
		InstanceCount: capacityFor(uint32(instanceCount)),
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

// GetComputeInstanceProfileInfo always passes the shared engine profile: there is no other (nvml.h).
func (g gpuInstanceHandle) GetComputeInstanceProfileInfo(
	number int,
) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
	return g.gi.GetComputeInstanceProfileInfo(
		number,
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
