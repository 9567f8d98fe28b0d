package simnvml

import (
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

func (d *gpuHandle) GetMigMode() (current, pending int, ret nvml.Return) {
	mode, ret := readFact(
		d,
		gpu.ReadingMIG,
		func(s *sim.GPUState) [2]bool { return [2]bool{s.MIGEnabled, s.MIGPending} },
	)

	return flag(mode[0]), flag(mode[1]), ret
}

func flag(on bool) int {
	if on {
		return nvml.DEVICE_MIG_ENABLE
	}

	return nvml.DEVICE_MIG_DISABLE
}

// GetMaxMigDeviceCount returns 0 with MIG off.
func (d *gpuHandle) GetMaxMigDeviceCount() (int, nvml.Return) {
	return readFact(d, gpu.ReadingMIG, func(s *sim.GPUState) int { return s.MaxMIGDevices })
}

// GetMigDeviceHandleByIndex does not need root's rights. The indexes are sparse: after NOT_FOUND, a
// device can follow at a higher index.
func (d *gpuHandle) GetMigDeviceHandleByIndex(index int) (nvmlsource.MIGDevice, nvml.Return) {
	m, ret := read(d, gpu.ReadingMIG, func(s *sim.GPUState) (*migDevice, nvml.Return) {
		if index < 0 || index >= s.MaxMIGDevices {
			return nil, nvml.ERROR_INVALID_ARGUMENT
		}

		if index >= len(s.Devices) || s.Devices[index] == nil {
			return nil, nvml.ERROR_NOT_FOUND
		}

		at := s.Devices[index]

		return &migDevice{gpu: d, instance: at.Instance.ID, compute: at.Compute.ID}, nvml.SUCCESS
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	return m, nvml.SUCCESS
}

// GetGpuInstanceProfileInfo answers as nvmlsource's binding does. With MIG off the driver does not
// support the versioned call, so the binding makes the unversioned one, whose answer has no name.
func (d *gpuHandle) GetGpuInstanceProfileInfo(
	profile int,
) (nvml.GpuInstanceProfileInfo_v3, nvml.Return) {
	return read(
		d,
		gpu.ReadingMIG,
		func(s *sim.GPUState) (nvml.GpuInstanceProfileInfo_v3, nvml.Return) {
			f, err := s.ProfileByNumber(uint32(profile))
			if err != nil {
				return nvml.GpuInstanceProfileInfo_v3{}, returnOf(err)
			}

			return profileInfo(f, s.MIGEnabled), nvml.SUCCESS
		},
	)
}

func profileInfo(f gpu.Profile, named bool) nvml.GpuInstanceProfileInfo_v3 {
	engines := f.Engines.Or(gpu.Engines{})

	info := nvml.GpuInstanceProfileInfo_v3{
		Id:                  f.ID,
		SliceCount:          uint32(f.ComputeSlices),
		InstanceCount:       uint32(f.MaxInstances),
		MultiprocessorCount: uint32(f.SMs),
		CopyEngineCount:     uint32(engines.Copy),
		DecoderCount:        uint32(engines.Decoder),
		EncoderCount:        uint32(engines.Encoder),
		JpegCount:           uint32(engines.JPEG),
		OfaCount:            uint32(engines.OFA),
		MemorySizeMB:        f.MemoryBytes >> 20,
	}
	if strings.Contains(f.Name, "+gfx") {
		info.Capabilities = nvml.GPU_INSTANCE_PROFILE_CAPS_GFX
	}

	if named {
		info.Version = nvml.STRUCT_VERSION(info, 3)
		cString(info.Name[:], "MIG "+f.Name)
	}

	return info
}

// GetGpuInstancePossiblePlacements lists a profile's placements, occupied or not, with MIG on or off.
// It needs root's rights.
func (d *gpuHandle) GetGpuInstancePossiblePlacements(
	profileID uint32,
) ([]nvml.GpuInstancePlacement, nvml.Return) {
	return read(
		d,
		gpu.ReadingMIG,
		func(s *sim.GPUState) ([]nvml.GpuInstancePlacement, nvml.Return) {
			if !s.Privileged {
				return nil, nvml.ERROR_NO_PERMISSION
			}

			f, err := s.ProfileByID(profileID)
			if err != nil {
				return nil, returnOf(err)
			}

			var list []nvml.GpuInstancePlacement
			for _, p := range f.Placements {
				list = append(list, placement(p))
			}

			return list, nvml.SUCCESS
		},
	)
}

func placement(p gpu.Placement) nvml.GpuInstancePlacement {
	return nvml.GpuInstancePlacement{Start: uint32(p.Start), Size: uint32(p.Size)}
}

// GetGpuInstances lists the GPU instances of a profile. It needs root's rights and MIG mode.
func (d *gpuHandle) GetGpuInstances(
	profileID uint32,
	capacity int,
) ([]nvmlsource.GPUInstance, nvml.Return) {
	return read(d, gpu.ReadingMIG, func(s *sim.GPUState) ([]nvmlsource.GPUInstance, nvml.Return) {
		switch {
		case !s.MIGEnabled:
			return nil, nvml.ERROR_NOT_SUPPORTED
		case !s.Privileged:
			return nil, nvml.ERROR_NO_PERMISSION
		}

		if _, err := s.ProfileByID(profileID); err != nil {
			return nil, returnOf(err)
		}

		var list []nvmlsource.GPUInstance

		for i := range s.Instances {
			if s.Instances[i].Profile.ID == profileID {
				list = append(list, &gpuInstance{gpu: d, id: s.Instances[i].ID})
			}
		}

		if len(list) > capacity {
			return nil, nvml.ERROR_INSUFFICIENT_SIZE
		}

		return list, nvml.SUCCESS
	})
}
