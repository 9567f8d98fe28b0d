package nvmlsource

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// GPUInstance is a GPU instance handle.
type GPUInstance interface {
	GetInfo() (GPUInstanceInfo, nvml.Return)
	// GetComputeInstances lists the compute instances of every compute profile, in no particular
	// order.
	GetComputeInstances() ([]ComputeInstanceInfo, nvml.Return)
}

// MutableInstance is a GPUInstance of a MutableDevice.
type MutableInstance interface {
	GPUInstance
	// GetComputeInstancesOf lists the compute instances of one compute profile; instanceCount is
	// at least how many there can be.
	GetComputeInstancesOf(profileID uint32, instanceCount int) ([]ComputeInstance, nvml.Return)
	// GetComputeInstanceProfileInfo takes a number of NVML's profile enum, and answers for the shared
	// engine profile.
	GetComputeInstanceProfileInfo(number int) (nvml.ComputeInstanceProfileInfo, nvml.Return)
	GetComputeInstancePossiblePlacements(
		profileID uint32,
	) ([]nvml.ComputeInstancePlacement, nvml.Return)
	CreateComputeInstanceWithPlacement(
		profileID uint32,
		at nvml.ComputeInstancePlacement,
	) (ComputeInstance, nvml.Return)
	Destroy() nvml.Return
}

// ComputeInstance is a compute instance handle.
type ComputeInstance interface {
	GetInfo() (ComputeInstanceInfo, nvml.Return)
	Destroy() nvml.Return
}

// GPUInstanceInfo is nvmlGpuInstanceInfo_t without the device.
type GPUInstanceInfo struct {
	ID, ProfileID uint32
	Placement     nvml.GpuInstancePlacement
}

// ComputeInstanceInfo is nvmlComputeInstanceInfo_t without the handles. A placement of size 0 is
// unknown.
type ComputeInstanceInfo struct {
	ID, ProfileID uint32
	Placement     nvml.ComputeInstancePlacement
}

type interceptedInstance struct{ handle[GPUInstance] }

func (i interceptedInstance) GetInfo() (GPUInstanceInfo, nvml.Return) {
	return pass(i.handle, "nvmlGpuInstanceGetInfo", GPUInstance.GetInfo)
}

func (i interceptedInstance) GetComputeInstances() ([]ComputeInstanceInfo, nvml.Return) {
	return pass(i.handle, "nvmlGpuInstanceGetComputeInstances", GPUInstance.GetComputeInstances)
}

type interceptedMutableInstance struct{ interceptedInstance }

func (i interceptedMutableInstance) mutable() handle[MutableInstance] {
	return handle[MutableInstance]{i.raw.(MutableInstance), i.by, i.object}
}

func (i interceptedMutableInstance) GetComputeInstancesOf(
	profileID uint32,
	instanceCount int,
) ([]ComputeInstance, nvml.Return) {
	c := Call{Function: "nvmlGpuInstanceGetComputeInstances", Args: [3]uint64{uint64(profileID)}}

	list, ret := passCall(i.mutable(), c, func(i MutableInstance) ([]ComputeInstance, nvml.Return) {
		return i.GetComputeInstancesOf(profileID, instanceCount)
	})
	for k, ci := range list {
		h, _ := wrapResult(i.handle, c, k, ci)
		list[k] = interceptedCompute{h}
	}

	return list, ret
}

func (i interceptedMutableInstance) GetComputeInstanceProfileInfo(
	number int,
) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
	return passNumber(i.mutable(),
		"nvmlGpuInstanceGetComputeInstanceProfileInfo",
		MutableInstance.GetComputeInstanceProfileInfo, number)
}

func (i interceptedMutableInstance) GetComputeInstancePossiblePlacements(
	profileID uint32,
) ([]nvml.ComputeInstancePlacement, nvml.Return) {
	return passNumber(i.mutable(),
		"nvmlGpuInstanceGetComputeInstancePossiblePlacements",
		MutableInstance.GetComputeInstancePossiblePlacements, profileID)
}

func (i interceptedMutableInstance) CreateComputeInstanceWithPlacement(
	profileID uint32,
	at nvml.ComputeInstancePlacement,
) (ComputeInstance, nvml.Return) {
	c := Call{
		Function: "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
		Args:     [3]uint64{uint64(profileID), uint64(at.Start), uint64(at.Size)},
	}

	ci, ret := passCall(i.mutable(), c, func(i MutableInstance) (ComputeInstance, nvml.Return) {
		return i.CreateComputeInstanceWithPlacement(profileID, at)
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	h, _ := wrapResult(i.handle, c, 0, ci)

	return interceptedCompute{h}, ret
}

func (i interceptedMutableInstance) Destroy() nvml.Return {
	return passCode(i.mutable(), Call{Function: "nvmlGpuInstanceDestroy"}, MutableInstance.Destroy)
}

type interceptedCompute struct{ handle[ComputeInstance] }

func (c interceptedCompute) GetInfo() (ComputeInstanceInfo, nvml.Return) {
	return pass(c.handle, "nvmlComputeInstanceGetInfo", ComputeInstance.GetInfo)
}

func (c interceptedCompute) Destroy() nvml.Return {
	return passCode(c.handle, Call{Function: "nvmlComputeInstanceDestroy"}, ComputeInstance.Destroy)
}
