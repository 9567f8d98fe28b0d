package nvmlsource

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// Bounds of the buffers for lists of instances. Some drivers report too small an InstanceCount for
// some profiles, and NVML writes as many instances as there are, whatever the size of the buffer.
// An InstanceCount that is far too large must not make us allocate that much.
const minCapacity, maxCapacity = 16, 256

// capacityFor returns how many instances to allocate a buffer for.
func capacityFor(instanceCount uint32) uint32 {
	return min(max(instanceCount, minCapacity), maxCapacity)
}

func (d device) GetMigDeviceHandleByIndex(index int) (MIGDevice, nvml.Return) {
	m, ret := d.Device.GetMigDeviceHandleByIndex(index)
	return migDevice{entity{d.lib, m}}, ret
}

// GetGpuInstanceProfileInfo tries the struct versions from new to old. The driver answers
// ERROR_INVALID_ARGUMENT both for an unknown version and for an unknown profile, so the oldest call
// decides. nvml.h says of the versioned calls, but not of the unversioned one, that they are not
// supported while MIG is off.
func (d device) GetGpuInstanceProfileInfo(
	profile int,
) (nvml.GpuInstanceProfileInfo_v3, nvml.Return) {
	if d.lib.has("nvmlDeviceGetGpuInstanceProfileInfoV") {
		handler := d.Device.GetGpuInstanceProfileInfoV(profile)
		if info, ret := handler.V3(); !needsOlderVersion(ret) {
			return info, ret
		}

		if info, ret := handler.V2(); !needsOlderVersion(ret) {
			return fromV2(info), ret
		}
	}

	info, ret := call(d.lib, func() (nvml.GpuInstanceProfileInfo, nvml.Return) {
		return d.Device.GetGpuInstanceProfileInfo(profile)
	}, "nvmlDeviceGetGpuInstanceProfileInfo")

	return fromV1(info), ret
}

// needsOlderVersion reports whether a versioned call has returned what drivers return for a version
// that they do not have.
func needsOlderVersion(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_INVALID_ARGUMENT,
		nvml.ERROR_ARGUMENT_VERSION_MISMATCH,
		nvml.ERROR_NOT_SUPPORTED,
		nvml.ERROR_FUNCTION_NOT_FOUND:
		return true
	}

	return false
}

func fromV2(v nvml.GpuInstanceProfileInfo_v2) nvml.GpuInstanceProfileInfo_v3 {
	return nvml.GpuInstanceProfileInfo_v3{
		Id:                  v.Id,
		SliceCount:          v.SliceCount,
		InstanceCount:       v.InstanceCount,
		MultiprocessorCount: v.MultiprocessorCount,
		CopyEngineCount:     v.CopyEngineCount,
		DecoderCount:        v.DecoderCount,
		EncoderCount:        v.EncoderCount,
		JpegCount:           v.JpegCount,
		OfaCount:            v.OfaCount,
		MemorySizeMB:        v.MemorySizeMB,
		Name:                v.Name,
	}
}

func fromV1(v nvml.GpuInstanceProfileInfo) nvml.GpuInstanceProfileInfo_v3 {
	return nvml.GpuInstanceProfileInfo_v3{
		Id:                  v.Id,
		SliceCount:          v.SliceCount,
		InstanceCount:       v.InstanceCount,
		MultiprocessorCount: v.MultiprocessorCount,
		CopyEngineCount:     v.CopyEngineCount,
		DecoderCount:        v.DecoderCount,
		EncoderCount:        v.EncoderCount,
		JpegCount:           v.JpegCount,
		OfaCount:            v.OfaCount,
		MemorySizeMB:        v.MemorySizeMB,
	}
}

func (d device) GetGpuInstancePossiblePlacements(
	profileID uint32,
) ([]nvml.GpuInstancePlacement, nvml.Return) {
	return d.Device.GetGpuInstancePossiblePlacements(&nvml.GpuInstanceProfileInfo{Id: profileID})
}

// GetGpuInstances passes the profile's id, and the size of go-nvml's buffer as InstanceCount: go-nvml
// uses nothing else of its info.
func (d device) GetGpuInstances(profileID uint32, instanceCount int) ([]GPUInstance, nvml.Return) {
	info := nvml.GpuInstanceProfileInfo{
		Id:            profileID,
		InstanceCount: capacityFor(uint32(instanceCount)),
	}

	handles, ret := d.Device.GetGpuInstances(&info)
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	list := make([]GPUInstance, 0, len(handles))
	for _, h := range handles {
		list = append(list, gpuInstanceHandle{d.lib, h})
	}

	return list, ret
}

// migDevice is a MIG device handle.
type migDevice struct{ entity }
