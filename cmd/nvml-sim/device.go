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

// deviceCalls returns the calls about identity, inventory and modes of a device.
func deviceCalls() map[string]call {
	return map[string]call{
		"nvmlDeviceGetUUID": readText(
			gpu.ReadingDevice,
			func(s *sim.GPUState) string { return string(s.UUID) },
			func(_ *sim.GPUState, d *sim.MIGDevice) string { return string(d.Compute.UUID) },
		),
		"nvmlDeviceGetName": readText(
			gpu.ReadingInventory,
			func(s *sim.GPUState) string { return s.Name },
			func(s *sim.GPUState, d *sim.MIGDevice) string { return s.Name + " MIG " + d.Compute.Profile },
		),
		"nvmlDeviceGetSerial": readText(
			gpu.ReadingInventory,
			func(s *sim.GPUState) string { return s.Serial },
			nil,
		),
		"nvmlDeviceGetVbiosVersion": readText(
			gpu.ReadingInventory,
			func(s *sim.GPUState) string { return s.VBIOS },
			nil,
		),
		"nvmlDeviceGetBoardPartNumber": readText(gpu.ReadingInventory, partNumber, nil),

		"nvmlDeviceGetMinorNumber": readInventory(
			func(s *sim.GPUState) uint32 { return uint32(s.Minor) },
		),
		"nvmlDeviceGetModuleId": readInventory(
			func(s *sim.GPUState) uint32 { return uint32(s.Index) },
		),
		"nvmlDeviceGetBoardId": readInventory(func(s *sim.GPUState) uint32 {
			return s.PCI.Domain<<16 | s.PCI.Bus<<8
		}),
		"nvmlDeviceGetMultiGpuBoard": readInventory(func(*sim.GPUState) uint32 { return 0 }),

		"nvmlDeviceGetBrand": readInventory(
			func(*sim.GPUState) uint32 { return C.SIM_NVML_BRAND_NVIDIA },
		),
		"nvmlDeviceGetBusType": readInventory(
			func(*sim.GPUState) uint32 { return C.SIM_NVML_BUS_TYPE_PCIE },
		),
		"nvmlDeviceGetArchitecture": readInventory(architecture),
		"nvmlDeviceGetAddressingMode": notNull(beforeBranch(addressingBranch,
			missingFunction, readGPU(gpu.ReadingInventory, addressingMode)), 1),
		"nvmlDeviceGetNumGpuCores": readGPU(gpu.ReadingInventory, cores, 1),

		"nvmlDeviceGetPersistenceMode": readInventory(
			func(s *sim.GPUState) uint32 { return flag(s.PersistenceMode) },
		),
		"nvmlDeviceGetDisplayMode": readInventory(
			func(*sim.GPUState) uint32 { return flag(false) },
		),
		"nvmlDeviceGetDisplayActive": readInventory(
			func(*sim.GPUState) uint32 { return flag(false) },
		),
		"nvmlDeviceGetAccountingMode": readInventory(
			func(*sim.GPUState) uint32 { return flag(false) },
		),
		"nvmlDeviceGetVirtualizationMode": readInventory(func(*sim.GPUState) uint32 {
			return C.SIM_NVML_GPU_VIRTUALIZATION_MODE_NONE
		}),

		"nvmlDeviceGetPciInfo":    oldPCIInfo(16 + 4*4), // a text of 16 bytes and 4 numbers
		"nvmlDeviceGetPciInfo_v2": oldPCIInfo(16 + 5*4),
		"nvmlDeviceGetPciInfo_v3": readInventory(pciInfo),
		"nvmlDeviceGetPciInfoExt": readGPU(gpu.ReadingInventory, pciInfoExt, 1),
		"nvmlDeviceGetIndex":      readDevice(gpu.ReadingDevice, gpuIndex, migIndex, 1),

		"nvmlDeviceGetComputeMode": readDevice(
			gpu.ReadingInventory,
			computeMode,
			gpuAnswer(computeMode).ofMIGDevice,
			1,
		),
		"nvmlDeviceGetAttributes":    readDevice(gpu.ReadingMIG, nil, oldAttributes, 1),
		"nvmlDeviceGetAttributes_v2": readDevice(gpu.ReadingMIG, nil, attributes, 1),
		"nvmlDeviceGetCudaComputeCapability": readDevice(gpu.ReadingInventory,
			capability, gpuAnswer(capability).ofMIGDevice, 1, 2),
	}
}

// readValue answers with one value of a GPU, to which the second argument points.
func readValue[T any](reading gpu.Reading, value func(s *sim.GPUState) T) call {
	return readGPU(reading, func(s *sim.GPUState, a args) result { return put(a, 1, value(s)) }, 1)
}

func readInventory[T any](value func(s *sim.GPUState) T) call {
	return readValue(gpu.ReadingInventory, value)
}

// readText answers with the text of a GPU or a MIG device, in a buffer that is the second argument.
// With a nil ofMIG, MIG devices are not supported.
func readText(
	reading gpu.Reading,
	ofGPU func(s *sim.GPUState) string,
	ofMIG func(s *sim.GPUState, d *sim.MIGDevice) string,
) call {
	gpuText := func(s *sim.GPUState, a args) result { return putText(a, 1, ofGPU(s)) }

	var migText migAnswer
	if ofMIG != nil {
		migText = func(s *sim.GPUState, d *sim.MIGDevice, a args) result { return putText(a, 1, ofMIG(s, d)) }
	}

	return readDevice(reading, gpuText, migText, 1)
}

// partNumber makes up a part number in NVIDIA's format from the device id.
func partNumber(s *sim.GPUState) string {
	return fmt.Sprintf("900-2%04X-0000-000", s.PCI.DeviceID>>16)
}

func architecture(s *sim.GPUState) uint32 {
	switch s.Architecture {
	case sim.Hopper:
		return C.SIM_NVML_DEVICE_ARCH_HOPPER
	case sim.Blackwell:
		return C.SIM_NVML_DEVICE_ARCH_BLACKWELL
	}

	return C.SIM_NVML_DEVICE_ARCH_AMPERE
}

// addressingBranch is the first driver branch whose library exports nvmlDeviceGetAddressingMode
// (unverified). A nvidia-smi of an older branch reads the mode in another way.
const addressingBranch = 580

// addressingMode answers NONE, as nvidia-smi shows it for an H100: the GPU neither uses the page
// tables of the processor nor mirrors system memory.
func addressingMode(_ *sim.GPUState, a args) result {
	m := pointer[C.sim_nvmlDeviceAddressingMode_v1_t](a, 1)
	if m.version != C.SIM_nvmlDeviceAddressingMode_v1 {
		return structMismatch
	}

	m.value = C.SIM_NVML_DEVICE_ADDRESSING_MODE_NONE

	return success
}

// cores is not supported while MIG is on (nvml.h).
func cores(s *sim.GPUState, a args) result {
	if s.MIGEnabled {
		return notSupported
	}

	return put(a, 1, uint32(s.Cores))
}

func capability(s *sim.GPUState, a args) result {
	return putTwo(a, 1, int32(s.Capability[0]), int32(s.Capability[1]))
}

func busID(s *sim.GPUState, domainDigits int) string {
	return fmt.Sprintf("%0*X:%02X:%02X.0", domainDigits, s.PCI.Domain, s.PCI.Bus, s.PCI.Device)
}

func pciInfo(s *sim.GPUState) C.sim_nvmlPciInfo_t {
	info := C.sim_nvmlPciInfo_t{
		domain: C.sim_u32(s.PCI.Domain), bus: C.sim_u32(s.PCI.Bus), device: C.sim_u32(s.PCI.Device),
		pciDeviceId: C.sim_u32(s.PCI.DeviceID), pciSubSystemId: C.sim_u32(s.PCI.Subsystem),
	}
	putCString(info.busId[:], busID(s, 8))
	putCString(info.busIdLegacy[:], busID(s, 4))

	return info
}

// oldPCIInfo answers with the first bytes of the struct, as many as an earlier version has.
func oldPCIInfo(size uintptr) call {
	return readGPU(gpu.ReadingInventory, func(s *sim.GPUState, a args) result {
		return putStart(a, 1, pciInfo(s), size)
	}, 1)
}

// pciInfoExt answers with the class of a 3D controller, 0x0302.
func pciInfoExt(s *sim.GPUState, a args) result {
	info := pointer[C.sim_nvmlPciInfoExt_v1_t](a, 1)
	if info.version != C.SIM_nvmlPciInfoExt_v1 {
		return structMismatch
	}

	*info = C.sim_nvmlPciInfoExt_v1_t{
		version:        info.version,
		domain:         C.sim_u32(s.PCI.Domain),
		bus:            C.sim_u32(s.PCI.Bus),
		device:         C.sim_u32(s.PCI.Device),
		pciDeviceId:    C.sim_u32(s.PCI.DeviceID),
		pciSubSystemId: C.sim_u32(s.PCI.Subsystem),
		baseClass:      3,
		subClass:       2,
	}
	putCString(info.busId[:], busID(s, 8))

	return success
}

func gpuIndex(s *sim.GPUState, a args) result {
	return put(a, 1, uint32(s.Index))
}

// migIndex answers with the index of nvmlDeviceGetMigDeviceHandleByIndex.
func migIndex(s *sim.GPUState, d *sim.MIGDevice, a args) result {
	return put(a, 1, uint32(slices.Index(s.Devices, d)))
}

func computeMode(s *sim.GPUState, a args) result {
	if s.ExclusiveProcess {
		return put[uint32](a, 1, C.SIM_NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
	}

	return put[uint32](a, 1, C.SIM_NVML_COMPUTEMODE_DEFAULT)
}

func attributes(_ *sim.GPUState, d *sim.MIGDevice, a args) result {
	return put(a, 1, attributesOf(d))
}

// oldAttributes answers with the first version of the struct, which ends before
// gpuInstanceSliceCount.
func oldAttributes(_ *sim.GPUState, d *sim.MIGDevice, a args) result {
	return putStart(
		a,
		1,
		attributesOf(d),
		unsafe.Offsetof(C.sim_nvmlDeviceAttributes_t{}.gpuInstanceSliceCount),
	)
}

func attributesOf(d *sim.MIGDevice) C.sim_nvmlDeviceAttributes_t {
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
