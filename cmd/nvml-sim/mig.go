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

// migCalls are about MIG mode, MIG devices, and the GPU instances that a GPU can have.
func migCalls() map[string]call {
	placements := notNull(onGPU(possiblePlacements), 3)
	return map[string]call{
		"nvmlDeviceGetMigMode": notNull(onGPU(migMode), 1, 2),
		"nvmlDeviceSetMigMode": notNull(setMIGMode, 2),
		"nvmlDeviceGetMaxMigDeviceCount": notNull(onGPU(func(s *sim.State, a args) result {
			*at[uint32](a, 1) = uint32(s.MaxMIGDevices)
			return success
		}), 1),
		"nvmlDeviceIsMigDeviceHandle":         notNull(isMIGDevice, 1),
		"nvmlDeviceGetMigDeviceHandleByIndex": notNull(onGPU(migHandleByIndex), 2),
		"nvmlDeviceGetDeviceHandleFromMigDeviceHandle": notNull(onMIGDevice(func(s *sim.State, _ *sim.Device, a args) result {
			putRaw(a, 1, handle{kind: aGPU, gpu: s.Index})
			return success
		}), 1),
		"nvmlDeviceGetGpuInstanceId": notNull(onMIGDevice(func(_ *sim.State, d *sim.Device, a args) result {
			*at[uint32](a, 1) = uint32(d.Instance.ID)
			return success
		}), 1),
		"nvmlDeviceGetComputeInstanceId": notNull(onMIGDevice(func(_ *sim.State, d *sim.Device, a args) result {
			*at[uint32](a, 1) = uint32(d.Compute.ID)
			return success
		}), 1),
		"nvmlDeviceGetGpuInstanceProfileInfo":           notNull(onGPU(plainProfile), 2),
		"nvmlDeviceGetGpuInstanceProfileInfoV":          notNull(onGPU(versionedProfile(byEnum)), 2),
		"nvmlDeviceGetGpuInstanceProfileInfoByIdV":      notNull(onGPU(versionedProfile(byID)), 2),
		"nvmlDeviceGetGpuInstancePossiblePlacements":    placements,
		"nvmlDeviceGetGpuInstancePossiblePlacements_v2": placements,
		"nvmlDeviceGetGpuInstanceRemainingCapacity":     notNull(remainingCapacity, 2),
	}
}

// onGPU is a call of MIG management about a physical GPU: a MIG device is not what it takes.
func onGPU(answer func(s *sim.State, a args) result) call {
	return device(gpu.ReadingMIG, answer, func(*sim.State, *sim.Device, args) result { return invalidArgument })
}

// onMIGDevice is a call that takes MIG devices alone.
func onMIGDevice(answer func(s *sim.State, d *sim.Device, a args) result) call {
	return device(gpu.ReadingMIG, func(*sim.State, args) result { return invalidArgument }, answer)
}

func migMode(s *sim.State, a args) result {
	*at[uint32](a, 1), *at[uint32](a, 2) = flag(s.MIGEnabled), flag(s.MIGPending)
	return success
}

// setMIGMode returns separately what became of the activation (nvml.h): the mode is pending on a GPU in use, and on an Ampere one in
// a pass-through machine until a reset. The mode that a GPU has can be set at any time (unverified).
func setMIGMode(l *library, a args) result {
	h, ok := handleOf(a.raw[0])
	mode, activation := a.uint(1), at[int32](a, 2)
	if !ok || h.kind != aGPU || mode > C.SIM_NVML_DEVICE_MIG_ENABLE {
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
		*activation = int32(inUse)
	case s.MIGEnabled != s.MIGPending:
		*activation = int32(resetRequired)
	default:
		*activation = int32(success)
	}
	return success
}

func isMIGDevice(l *library, a args) result {
	h, ok := handleOf(a.raw[0])
	if !ok || h.kind > aMIGDevice || h.gpu >= l.node.Count() {
		return invalidArgument
	}
	*at[uint32](a, 1) = flag(h.kind == aMIGDevice)
	return success
}

// migHandleByIndex needs no rights. The indexes are sparse: NOT_FOUND says that others may follow.
func migHandleByIndex(s *sim.State, a args) result {
	index := int(a.uint(1))
	switch {
	case index >= s.MaxMIGDevices:
		return invalidArgument
	case index >= len(s.Devices) || s.Devices[index] == nil:
		return notFound
	}
	d := s.Devices[index]
	putRaw(a, 2, handle{aMIGDevice, s.Index, d.Instance.ID, d.Compute.ID})
	return success
}

// byEnum finds a profile by NVML's number for its kind; those that this GPU does not have are not supported.
func byEnum(s *sim.State, number uint32) (gpu.Profile, result) {
	if number >= C.SIM_NVML_GPU_INSTANCE_PROFILE_COUNT {
		return gpu.Profile{}, invalidArgument
	}
	at := slices.IndexFunc(s.Profiles, func(f gpu.Profile) bool { return f.Enum == int(number) })
	if at < 0 {
		return gpu.Profile{}, notSupported
	}
	return told(s, s.Profiles[at]), success
}

// byID finds a profile by the driver's id of it.
func byID(s *sim.State, id uint32) (gpu.Profile, result) {
	at := slices.IndexFunc(s.Profiles, func(f gpu.Profile) bool { return f.ID == id })
	if at < 0 {
		return gpu.Profile{}, invalidArgument
	}
	return told(s, s.Profiles[at]), success
}

// told is a profile as the driver tells of it. A30's has a defect: too many instances, of at least one profile; which is
// unverified.
func told(s *sim.State, f gpu.Profile) gpu.Profile {
	if s.Name == "NVIDIA A30" && f.Enum == C.SIM_NVML_GPU_INSTANCE_PROFILE_2_SLICE {
		f.MaxInstances = 4
	}
	return f
}

func plainProfile(s *sim.State, a args) result {
	f, ret := byEnum(s, a.uint(1))
	if ret != success {
		return ret
	}
	e := f.Engines.Or(gpu.Engines{})
	*at[C.sim_nvmlGpuInstanceProfileInfo_t](a, 2) = C.sim_nvmlGpuInstanceProfileInfo_t{
		id: C.sim_u32(f.ID), sliceCount: C.sim_u32(f.ComputeSlices), instanceCount: C.sim_u32(f.MaxInstances),
		multiprocessorCount: C.sim_u32(f.SMs), copyEngineCount: C.sim_u32(e.Copy), decoderCount: C.sim_u32(e.Decoder),
		encoderCount: C.sim_u32(e.Encoder), jpegCount: C.sim_u32(e.JPEG), ofaCount: C.sim_u32(e.OFA),
		memorySizeMB: C.sim_u64(f.MemoryBytes >> 20),
	}
	return success
}

// versionedProfile is not supported while MIG is off, unlike the plain call (nvml.h).
func versionedProfile(find func(s *sim.State, number uint32) (gpu.Profile, result)) func(s *sim.State, a args) result {
	return func(s *sim.State, a args) result {
		version := *at[uint32](a, 2)
		if version != C.SIM_nvmlGpuInstanceProfileInfo_v2 && version != C.SIM_nvmlGpuInstanceProfileInfo_v3 {
			return invalidArgument // so nvml.h, not ARGUMENT_VERSION_MISMATCH
		}
		f, ret := find(s, a.uint(1))
		switch {
		case ret != success:
			return ret
		case !s.MIGEnabled:
			return notSupported
		}
		e := f.Engines.Or(gpu.Engines{})
		if version == C.SIM_nvmlGpuInstanceProfileInfo_v2 {
			info := at[C.sim_nvmlGpuInstanceProfileInfo_v2_t](a, 2)
			*info = C.sim_nvmlGpuInstanceProfileInfo_v2_t{
				version: C.sim_u32(version),
				id:      C.sim_u32(f.ID), sliceCount: C.sim_u32(f.ComputeSlices), instanceCount: C.sim_u32(f.MaxInstances),
				multiprocessorCount: C.sim_u32(f.SMs), copyEngineCount: C.sim_u32(e.Copy), decoderCount: C.sim_u32(e.Decoder),
				encoderCount: C.sim_u32(e.Encoder), jpegCount: C.sim_u32(e.JPEG), ofaCount: C.sim_u32(e.OFA),
				memorySizeMB: C.sim_u64(f.MemoryBytes >> 20),
			}
			cString(info.name[:], "MIG "+f.Name)
			return success
		}
		info := at[C.sim_nvmlGpuInstanceProfileInfo_v3_t](a, 2)
		*info = C.sim_nvmlGpuInstanceProfileInfo_v3_t{
			version: C.sim_u32(version),
			id:      C.sim_u32(f.ID), sliceCount: C.sim_u32(f.ComputeSlices), instanceCount: C.sim_u32(f.MaxInstances),
			multiprocessorCount: C.sim_u32(f.SMs), copyEngineCount: C.sim_u32(e.Copy), decoderCount: C.sim_u32(e.Decoder),
			encoderCount: C.sim_u32(e.Encoder), jpegCount: C.sim_u32(e.JPEG), ofaCount: C.sim_u32(e.OFA),
			memorySizeMB: C.sim_u64(f.MemoryBytes >> 20),
		}
		cString(info.name[:], "MIG "+f.Name)
		if strings.Contains(f.Name, "+gfx") {
			info.capabilities = C.SIM_NVML_GPU_INSTANCE_PROFILE_CAPS_GFX
		}
		return success
	}
}

// possiblePlacements lists a profile's placements, free or not, with MIG on or off. It needs rights. NULL asks for the
// count alone; otherwise there must be room for all of them, whatever *count says (nvml.h).
func possiblePlacements(s *sim.State, a args) result {
	if !s.Privileged {
		return noPermission
	}
	f, ret := byID(s, a.uint(1))
	if ret != success {
		return ret
	}
	*at[uint32](a, 3) = uint32(len(f.Placements))
	if a.raw[2] == 0 {
		return success
	}
	to := array[C.sim_nvmlGpuInstancePlacement_t](a, 2, uint32(len(f.Placements)))
	for i, p := range f.Placements {
		to[i] = C.sim_nvmlGpuInstancePlacement_t{start: C.sim_u32(p.Start), size: C.sim_u32(p.Size)}
	}
	return success
}

func remainingCapacity(l *library, a args) result {
	h, ok := handleOf(a.raw[0])
	if !ok || h.kind != aGPU {
		return invalidArgument
	}
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
	*at[uint32](a, 2) = uint32(count)
	return success
}
