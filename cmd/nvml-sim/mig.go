package main

// #include "abi.h"
import "C"

import (
	"errors"
	"slices"
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
			versionedProfile(profileByNumber),
			2,
		),
		"nvmlDeviceGetGpuInstanceProfileInfoByIdV":      readMIG(versionedProfile(profileByID), 2),
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

// readMIGDevice answers in the second argument about the MIG device in the first. A GPU is an
// invalid argument.
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

// setMIGMode writes the result of the activation to the third argument (nvml.h): the call succeeds,
// but the mode stays pending while the GPU is in use and, on an Ampere GPU passed through to a
// virtual machine, until a reset. A client can always set the mode that the GPU already has
// (unverified).
func setMIGMode(l *library, h handle, a args) result {
	mode := a.uint(1)
	if mode > C.SIM_NVML_DEVICE_MIG_ENABLE {
		return invalidArgument
	}

	refused := l.node.SetMIGMode(h.gpu, mode == C.SIM_NVML_DEVICE_MIG_ENABLE)
	if refused != nil && !errors.Is(refused, gpu.ErrInUse) {
		return l.failed(refused)
	}

	s, err := l.node.Read(h.gpu, gpu.ReadingMIG)
	switch {
	case err != nil:
		return l.failed(err)
	case refused != nil:
		return put(a, 2, inUse)
	case s.MIGEnabled != s.MIGPending:
		return put(a, 2, resetRequired)
	}

	return put(a, 2, success)
}

func isMIGDevice(_ *library, h handle, a args) result {
	return put(a, 1, flag(h.kind == aMIGDevice))
}

// migHandleByIndex requires no privileges. Indexes have gaps: after one that is not found others
// may follow.
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

// profileByNumber finds a profile by its number in nvml.h (SIM_NVML_GPU_INSTANCE_PROFILE_*). One
// that this GPU does not have is not supported.
func profileByNumber(s *sim.GPUState, number uint32) (gpu.Profile, result) {
	if number >= C.SIM_NVML_GPU_INSTANCE_PROFILE_COUNT {
		return gpu.Profile{}, invalidArgument
	}

	at := slices.IndexFunc(s.Profiles, func(f gpu.Profile) bool { return f.Enum == int(number) })
	if at < 0 {
		return gpu.Profile{}, notSupported
	}

	return reportedProfile(s, s.Profiles[at]), success
}

// profileByID finds a profile by the driver's id.
func profileByID(s *sim.GPUState, id uint32) (gpu.Profile, result) {
	at := slices.IndexFunc(s.Profiles, func(f gpu.Profile) bool { return f.ID == id })
	if at < 0 {
		return gpu.Profile{}, invalidArgument
	}

	return reportedProfile(s, s.Profiles[at]), success
}

// reportedProfile returns a profile as the driver reports it: on an A30 with too large a maximum of
// instances for at least one profile (which one is unverified).
func reportedProfile(s *sim.GPUState, f gpu.Profile) gpu.Profile {
	if s.Name == "NVIDIA A30" && f.Enum == C.SIM_NVML_GPU_INSTANCE_PROFILE_2_SLICE {
		f.MaxInstances = 4
	}

	return f
}

func plainProfile(s *sim.GPUState, a args) result {
	f, ret := profileByNumber(s, a.uint(1))
	if ret != success {
		return ret
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

// versionedProfile answers with the version of the struct that the client asks for. Unlike
// plainProfile, it is not supported while MIG is off (nvml.h).
func versionedProfile(find func(s *sim.GPUState, number uint32) (gpu.Profile, result)) gpuAnswer {
	return func(s *sim.GPUState, a args) result {
		version := *at[uint32](a, 2)
		if version != C.SIM_nvmlGpuInstanceProfileInfo_v2 &&
			version != C.SIM_nvmlGpuInstanceProfileInfo_v3 {
			return invalidArgument // by nvml.h; not ARGUMENT_VERSION_MISMATCH
		}

		f, ret := find(s, a.uint(1))
		switch {
		case ret != success:
			return ret
		case !s.MIGEnabled:
			return notSupported
		}

		if version == C.SIM_nvmlGpuInstanceProfileInfo_v2 {
			putProfileV2(at[C.sim_nvmlGpuInstanceProfileInfo_v2_t](a, 2), f, version)
		} else {
			putProfileV3(at[C.sim_nvmlGpuInstanceProfileInfo_v3_t](a, 2), f, version)
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

// putProfileV3 writes the version with capabilities, which say what the name of a profile says.
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

	f, ret := profileByID(s, a.uint(1))
	if ret != success {
		return ret
	}

	return putPlacements(a, f.Placements)
}

// putPlacements writes the number of placements to the fourth argument, and the placements to the
// third unless that is NULL. Like the driver, it ignores the number that the client has room for
// (nvml.h). GPU instances and compute instances have the same struct.
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
