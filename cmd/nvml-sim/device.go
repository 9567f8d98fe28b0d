package main

// #include "abi.h"
import "C"

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// deviceCalls tell what a device is.
func deviceCalls() map[string]call {
	return map[string]call{
		"nvmlDeviceGetUUID": textOf(gpu.ReadingDevice, func(s *sim.State) string { return string(s.UUID) },
			func(_ *sim.State, d *sim.Device) string { return string(d.Compute.UUID) }),
		"nvmlDeviceGetName": textOf(gpu.ReadingInventory, func(s *sim.State) string { return s.Name },
			func(s *sim.State, d *sim.Device) string { return s.Name + " MIG " + d.Compute.Profile }),
		"nvmlDeviceGetSerial":             textOf(gpu.ReadingInventory, func(s *sim.State) string { return s.Serial }, nil),
		"nvmlDeviceGetVbiosVersion":       textOf(gpu.ReadingInventory, func(s *sim.State) string { return s.VBIOS }, nil),
		"nvmlDeviceGetBoardPartNumber":    textOf(gpu.ReadingInventory, partNumber, nil),
		"nvmlDeviceGetMinorNumber":        inventory(func(s *sim.State) uint32 { return uint32(s.Minor) }),
		"nvmlDeviceGetModuleId":           inventory(func(s *sim.State) uint32 { return uint32(s.Index) }),
		"nvmlDeviceGetBoardId":            inventory(func(s *sim.State) uint32 { return s.PCI.Domain<<16 | s.PCI.Bus<<8 }),
		"nvmlDeviceGetMultiGpuBoard":      inventory(func(*sim.State) uint32 { return 0 }),
		"nvmlDeviceGetBrand":              inventory(func(*sim.State) uint32 { return C.SIM_NVML_BRAND_NVIDIA }),
		"nvmlDeviceGetBusType":            inventory(func(*sim.State) uint32 { return C.SIM_NVML_BUS_TYPE_PCIE }),
		"nvmlDeviceGetArchitecture":       inventory(architecture),
		"nvmlDeviceGetAddressingMode":     notNull(before(addressingBranch, missing, physical(gpu.ReadingInventory, addressingMode)), 1),
		"nvmlDeviceGetNumGpuCores":        notNull(physical(gpu.ReadingInventory, cores), 1),
		"nvmlDeviceGetPersistenceMode":    inventory(func(*sim.State) uint32 { return flag(true) }),
		"nvmlDeviceGetDisplayMode":        inventory(func(*sim.State) uint32 { return flag(false) }),
		"nvmlDeviceGetDisplayActive":      inventory(func(*sim.State) uint32 { return flag(false) }),
		"nvmlDeviceGetAccountingMode":     inventory(func(*sim.State) uint32 { return flag(false) }),
		"nvmlDeviceGetVirtualizationMode": inventory(func(*sim.State) uint32 { return C.SIM_NVML_GPU_VIRTUALIZATION_MODE_NONE }),
		"nvmlDeviceGetPciInfo":            oldPCIInfo(16 + 4*4),
		"nvmlDeviceGetPciInfo_v2":         oldPCIInfo(16 + 5*4),
		"nvmlDeviceGetPciInfo_v3":         inventory(pciInfo),
		"nvmlDeviceGetPciInfoExt":         notNull(physical(gpu.ReadingInventory, pciInfoExt), 1),
		"nvmlDeviceGetIndex":              notNull(device(gpu.ReadingDevice, gpuIndex, migIndex), 1),
		"nvmlDeviceGetComputeMode":        notNull(device(gpu.ReadingInventory, computeMode, migComputeMode), 1),
		"nvmlDeviceGetAttributes":         notNull(device(gpu.ReadingMIG, nil, oldAttributes), 1),
		"nvmlDeviceGetAttributes_v2":      notNull(device(gpu.ReadingMIG, nil, attributes), 1),
		"nvmlDeviceGetCudaComputeCapability": notNull(device(gpu.ReadingInventory, capability,
			func(s *sim.State, _ *sim.Device, a args) result { return capability(s, a) }), 1, 2),
	}
}

// number answers with one value, in the second argument.
func number[T any](reading gpu.Reading, value func(s *sim.State) T) call {
	return notNull(physical(reading, func(s *sim.State, a args) result {
		*at[T](a, 1) = value(s)
		return success
	}), 1)
}

func inventory[T any](value func(s *sim.State) T) call { return number(gpu.ReadingInventory, value) }

// textOf answers with a text, in a buffer that is the second argument.
func textOf(reading gpu.Reading, whole func(s *sim.State) string, slice func(s *sim.State, d *sim.Device) string) call {
	onGPU := func(s *sim.State, a args) result { return putText(a, 1, whole(s)) }
	if slice == nil {
		return notNull(physical(reading, onGPU), 1)
	}
	return notNull(device(reading, onGPU, func(s *sim.State, d *sim.Device, a args) result { return putText(a, 1, slice(s, d)) }), 1)
}

// partNumber is in the form of NVIDIA's, made out of the device id.
func partNumber(s *sim.State) string { return fmt.Sprintf("900-2%04X-0000-000", s.PCI.DeviceID>>16) }

func architecture(s *sim.State) uint32 {
	switch s.Architecture {
	case sim.Hopper:
		return C.SIM_NVML_DEVICE_ARCH_HOPPER
	case sim.Blackwell:
		return C.SIM_NVML_DEVICE_ARCH_BLACKWELL
	}
	return C.SIM_NVML_DEVICE_ARCH_AMPERE
}

// addressingBranch is the first driver branch taken to have the function; nvidia-smi of older ones knows the mode by another way.
const addressingBranch = 580

// addressingMode is none, as nvidia-smi shows of an H100: neither page tables are shared, nor is system memory mirrored.
func addressingMode(_ *sim.State, a args) result {
	m := at[C.sim_nvmlDeviceAddressingMode_v1_t](a, 1)
	if m.version != C.SIM_nvmlDeviceAddressingMode_v1 {
		return structMismatch
	}
	m.value = C.SIM_NVML_DEVICE_ADDRESSING_MODE_NONE
	return success
}

// cores are not told while MIG is on (nvml.h).
func cores(s *sim.State, a args) result {
	if s.MIGEnabled {
		return notSupported
	}
	*at[uint32](a, 1) = uint32(s.Cores)
	return success
}

func capability(s *sim.State, a args) result {
	*at[int32](a, 1), *at[int32](a, 2) = int32(s.Capability[0]), int32(s.Capability[1])
	return success
}

func busID(s *sim.State, domainDigits int) string {
	return fmt.Sprintf("%0*X:%02X:%02X.0", domainDigits, s.PCI.Domain, s.PCI.Bus, s.PCI.Device)
}

func pciInfo(s *sim.State) C.sim_nvmlPciInfo_t {
	info := C.sim_nvmlPciInfo_t{
		domain: C.sim_u32(s.PCI.Domain), bus: C.sim_u32(s.PCI.Bus), device: C.sim_u32(s.PCI.Device),
		pciDeviceId: C.sim_u32(s.PCI.DeviceID), pciSubSystemId: C.sim_u32(s.PCI.Subsystem),
	}
	cString(info.busId[:], busID(s, 8))
	cString(info.busIdLegacy[:], busID(s, 4))
	return info
}

// oldPCIInfo writes the first bytes of the struct: it was shorter before its third version.
func oldPCIInfo(size uintptr) call {
	return notNull(physical(gpu.ReadingInventory, func(s *sim.State, a args) result {
		info := pciInfo(s)
		putStart(a, 1, &info, size)
		return success
	}), 1)
}

// pciInfoExt tells the class of a 3D controller, 0x0302.
func pciInfoExt(s *sim.State, a args) result {
	info := at[C.sim_nvmlPciInfoExt_v1_t](a, 1)
	if info.version != C.SIM_nvmlPciInfoExt_v1 {
		return structMismatch
	}
	*info = C.sim_nvmlPciInfoExt_v1_t{
		version: info.version,
		domain:  C.sim_u32(s.PCI.Domain), bus: C.sim_u32(s.PCI.Bus), device: C.sim_u32(s.PCI.Device),
		pciDeviceId: C.sim_u32(s.PCI.DeviceID), pciSubSystemId: C.sim_u32(s.PCI.Subsystem),
		baseClass: 3, subClass: 2,
	}
	cString(info.busId[:], busID(s, 8))
	return success
}

func gpuIndex(s *sim.State, a args) result {
	*at[uint32](a, 1) = uint32(s.Index)
	return success
}

// migIndex is the one of nvmlDeviceGetMigDeviceHandleByIndex.
func migIndex(s *sim.State, d *sim.Device, a args) result {
	*at[uint32](a, 1) = uint32(slices.Index(s.Devices, d))
	return success
}

func computeMode(s *sim.State, a args) result {
	*at[uint32](a, 1) = C.SIM_NVML_COMPUTEMODE_DEFAULT
	if s.ExclusiveProcess {
		*at[uint32](a, 1) = C.SIM_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
	}
	return success
}

func migComputeMode(s *sim.State, _ *sim.Device, a args) result { return computeMode(s, a) }

func attributes(_ *sim.State, d *sim.Device, a args) result {
	*at[C.sim_nvmlDeviceAttributes_t](a, 1) = attributesOf(d)
	return success
}

// oldAttributes fills what the struct had before its second version, the counts that come first.
func oldAttributes(_ *sim.State, d *sim.Device, a args) result {
	info := attributesOf(d)
	putStart(a, 1, &info, unsafe.Offsetof(info.gpuInstanceSliceCount))
	return success
}

func attributesOf(d *sim.Device) C.sim_nvmlDeviceAttributes_t {
	engines := d.Instance.Profile.Engines.Or(gpu.Engines{})
	return C.sim_nvmlDeviceAttributes_t{
		multiprocessorCount:       C.sim_u32(d.Compute.SMs),
		sharedCopyEngineCount:     C.sim_u32(engines.Copy),
		sharedDecoderCount:        C.sim_u32(engines.Decoder),
		sharedEncoderCount:        C.sim_u32(engines.Encoder),
		sharedJpegCount:           C.sim_u32(engines.JPEG),
		sharedOfaCount:            C.sim_u32(engines.OFA),
		gpuInstanceSliceCount:     C.sim_u32(d.Instance.Profile.ComputeSlices),
		computeInstanceSliceCount: C.sim_u32(d.Compute.Placement.Size),
		memorySizeMB:              C.sim_u64(d.Instance.Profile.MemoryBytes >> 20),
	}
}
