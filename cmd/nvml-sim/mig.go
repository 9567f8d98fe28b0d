package main

// #include "abi.h"
import "C"

import (
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// migCalls answer about MIG mode, MIG devices, and the GPU instances that a GPU can have.
func migCalls() map[string]call {
	placements := readMIG(possiblePlacements, 3)
	return map[string]call{
		"nvmlDeviceGetMigMode": readMIG(migMode, 1, 2),
		"nvmlDeviceSetMigMode": notNull(onHandle(setMIGMode, aGPU), 2),
		"nvmlDeviceGetMaxMigDeviceCount": readMIG(func(s *sim.GPUState, a args) result {
			return put(a, 1, uint32(s.MaxMIGDevices))
		}, 1),

		"nvmlDeviceIsMigDeviceHandle":         notNull(onHandle(isMIGDevice, aGPU, aMIGDevice), 1),
		"nvmlDeviceGetMigDeviceHandleByIndex": readMIG(migHandleByIndex, 2),
		"nvmlDeviceGetDeviceHandleFromMigDeviceHandle": readMIGDevice(
			func(s *sim.GPUState, _ *sim.MIGDevice, a args) result {
				return putHandle(a, 1, handle{kind: aGPU, gpu: s.Index})
			},
		),
		"nvmlDeviceGetGpuInstanceId": readMIGDevice(
			func(_ *sim.GPUState, d *sim.MIGDevice, a args) result {
				return put(a, 1, uint32(d.Instance.ID))
			},
		),
		"nvmlDeviceGetComputeInstanceId": readMIGDevice(
			func(_ *sim.GPUState, d *sim.MIGDevice, a args) result {
				return put(a, 1, uint32(d.Compute.ID))
			},
		),

		"nvmlDeviceGetGpuInstanceProfileInfo": readMIG(plainProfile, 2),
		"nvmlDeviceGetGpuInstanceProfileInfoV": readMIG(
			versionedProfile((*sim.GPUState).ProfileByNumber),
			2,
		),
		"nvmlDeviceGetGpuInstanceProfileInfoByIdV":      readMIG(versionedProfile((*sim.GPUState).ProfileByID), 2),
		"nvmlDeviceGetGpuInstancePossiblePlacements":    placements,
		"nvmlDeviceGetGpuInstancePossiblePlacements_v2": placements,
		"nvmlDeviceGetGpuInstanceRemainingCapacity": notNull(
			onHandle(remainingCapacity, aGPU),
			2,
		),
	}
}

// readMIG answers about the MIG mode or the instances of the GPU in the first argument. A MIG
// device is an invalid argument.
func readMIG(answer gpuAnswer, pointers ...int) call {
	refuse := func(*sim.GPUState, *sim.MIGDevice, args) result { return invalidArgument }
	return readDevice(gpu.ReadingMIG, answer, refuse, pointers...)
}

// readMIGDevice answers about the MIG device in the first argument, and writes to where the second
// points. A GPU is an invalid argument.
func readMIGDevice(answer migAnswer) call {
	return readDevice(
		gpu.ReadingMIG,
		func(*sim.GPUState, args) result { return invalidArgument },
		answer,
		1,
	)
}

func migMode(s *sim.GPUState, a args) result {
	return putTwo(a, 1, flag(s.MIGEnabled), flag(s.MIGPending))
}

// setMIGMode writes the result of the activation to where the third argument points: see
// Node.ActivateMIGMode.
func setMIGMode(l *library, h handle, a args) result {
	mode := a.uint(1)
	if mode > C.SIM_NVML_DEVICE_MIG_ENABLE {
		return invalidArgument
	}

	activation, err := l.node.ActivateMIGMode(h.gpu, mode == C.SIM_NVML_DEVICE_MIG_ENABLE)
	if err != nil {
		return l.failed(err)
	}

	return put(a, 2, resultOf(activation))
}

func isMIGDevice(_ *library, h handle, a args) result {
	return put(a, 1, flag(h.kind == aMIGDevice))
}

// migHandleByIndex requires no privileges. Indexes have gaps: after an index that is not found,
// others may have a device.
func migHandleByIndex(s *sim.GPUState, a args) result {
	index := int(a.uint(1))
	switch {
	case index >= s.MaxMIGDevices:
		return invalidArgument
	case index >= len(s.Devices) || s.Devices[index] == nil:
		return notFound
	}

	d := s.Devices[index]

	return putHandle(a, 2, handle{aMIGDevice, s.Index, d.Instance.ID, d.Compute.ID})
}

func plainProfile(s *sim.GPUState, a args) result {
	f, err := s.ProfileByNumber(a.uint(1))
	if err != nil {
		return resultOf(err)
	}

	e := f.Engines.Or(gpu.Engines{})

	return put(a, 2, C.sim_nvmlGpuInstanceProfileInfo_t{
		id:                  C.sim_u32(f.ID),
		sliceCount:          C.sim_u32(f.ComputeSlices),
		instanceCount:       C.sim_u32(f.MaxInstances),
		multiprocessorCount: C.sim_u32(f.SMs),
		copyEngineCount:     C.sim_u32(e.Copy),
		decoderCount:        C.sim_u32(e.Decoder),
		encoderCount:        C.sim_u32(e.Encoder),
		jpegCount:           C.sim_u32(e.JPEG),
		ofaCount:            C.sim_u32(e.OFA),
		memorySizeMB:        C.sim_u64(f.MemoryBytes >> 20),
	})
}

// versionedProfile answers with the version of the struct that the client asks for, about the
// profile that find returns. Unlike plainProfile, it is not supported while MIG is off (nvml.h).
func versionedProfile(find func(s *sim.GPUState, number uint32) (gpu.Profile, error)) gpuAnswer {
	return func(s *sim.GPUState, a args) result {
		version := *pointer[uint32](a, 2)
		if version != C.SIM_nvmlGpuInstanceProfileInfo_v2 &&
			version != C.SIM_nvmlGpuInstanceProfileInfo_v3 {
			return invalidArgument // by nvml.h; not ARGUMENT_VERSION_MISMATCH
		}

		f, err := find(s, a.uint(1))
		switch {
		case err != nil:
			return resultOf(err)
		case !s.MIGEnabled:
			return notSupported
		}

		if version == C.SIM_nvmlGpuInstanceProfileInfo_v2 {
			putProfileV2(pointer[C.sim_nvmlGpuInstanceProfileInfo_v2_t](a, 2), f, version)
		} else {
			putProfileV3(pointer[C.sim_nvmlGpuInstanceProfileInfo_v3_t](a, 2), f, version)
		}

		return success
	}
}

func putProfileV2(to *C.sim_nvmlGpuInstanceProfileInfo_v2_t, f gpu.Profile, version uint32) {
	e := f.Engines.Or(gpu.Engines{})
	*to = C.sim_nvmlGpuInstanceProfileInfo_v2_t{
		version:             C.sim_u32(version),
		id:                  C.sim_u32(f.ID),
		sliceCount:          C.sim_u32(f.ComputeSlices),
		instanceCount:       C.sim_u32(f.MaxInstances),
		multiprocessorCount: C.sim_u32(f.SMs),
		copyEngineCount:     C.sim_u32(e.Copy),
		decoderCount:        C.sim_u32(e.Decoder),
		encoderCount:        C.sim_u32(e.Encoder),
		jpegCount:           C.sim_u32(e.JPEG),
		ofaCount:            C.sim_u32(e.OFA),
		memorySizeMB:        C.sim_u64(f.MemoryBytes >> 20),
	}
	putCString(to.name[:], "MIG "+f.Name)
}

// putProfileV3 writes the version with capabilities. They follow from the name of the profile.
func putProfileV3(to *C.sim_nvmlGpuInstanceProfileInfo_v3_t, f gpu.Profile, version uint32) {
	e := f.Engines.Or(gpu.Engines{})
	*to = C.sim_nvmlGpuInstanceProfileInfo_v3_t{
		version:             C.sim_u32(version),
		id:                  C.sim_u32(f.ID),
		sliceCount:          C.sim_u32(f.ComputeSlices),
		instanceCount:       C.sim_u32(f.MaxInstances),
		multiprocessorCount: C.sim_u32(f.SMs),
		copyEngineCount:     C.sim_u32(e.Copy),
		decoderCount:        C.sim_u32(e.Decoder),
		encoderCount:        C.sim_u32(e.Encoder),
		jpegCount:           C.sim_u32(e.JPEG),
		ofaCount:            C.sim_u32(e.OFA),
		memorySizeMB:        C.sim_u64(f.MemoryBytes >> 20),
	}
	putCString(to.name[:], "MIG "+f.Name)

	if strings.Contains(f.Name, "+gfx") {
		to.capabilities = C.SIM_NVML_GPU_INSTANCE_PROFILE_CAPS_GFX
	}
}

// possiblePlacements lists a profile's placements, free or not, with MIG on or off. It requires
// privileges.
func possiblePlacements(s *sim.GPUState, a args) result {
	if !s.Privileged {
		return noPermission
	}

	f, err := s.ProfileByID(a.uint(1))
	if err != nil {
		return resultOf(err)
	}

	return putPlacements(a, f.Placements)
}

// putPlacements writes the number of placements to where the fourth argument points, and the
// placements to where the third does, unless that is NULL. Like the driver, it ignores the number
// that the client has room for (nvml.h). GPU instances and compute instances have the same struct.
func putPlacements(a args, placements []gpu.Placement) result {
	put(a, 3, uint32(len(placements)))

	if a.raw[2] == 0 {
		return success
	}

	to := array[C.sim_nvmlGpuInstancePlacement_t](a, 2, uint32(len(placements)))
	for i, p := range placements {
		to[i] = C.sim_nvmlGpuInstancePlacement_t{start: C.sim_u32(p.Start), size: C.sim_u32(p.Size)}
	}

	return success
}

func remainingCapacity(l *library, h handle, a args) result {
	s, err := l.node.Read(h.gpu, gpu.ReadingMIG)
	if err != nil {
		return l.failed(err)
	}

	if !s.MIGEnabled {
		return notSupported
	}

	count, err := l.node.Remaining(h.gpu, a.uint(1))
	if err != nil {
		return l.failed(err)
	}

	return put(a, 2, uint32(count))
}
