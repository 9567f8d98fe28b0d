package nvmlsrc

import (
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// readFacts reads what stands still while the handle and the MIG mode do: once, or again where a part of it failed.
func (r *round) readFacts() {
	st := &r.board.static
	if r.fatal != nil || st.have && !(st.again && r.slow) {
		return
	}
	before := len(r.errs)
	f := gpu.Facts{UUID: r.board.uuid}
	if name, ok := ask(&r.asker, "nvmlDeviceGetName", gpu.ReadingInventory, r.dev.GetName); ok {
		f.Name = text(name)
	}
	if a, ok := ask(&r.asker, "nvmlDeviceGetArchitecture", gpu.ReadingInventory, r.dev.GetArchitecture); ok {
		f.Architecture = architecture(a)
	}
	if serial, ok := ask(&r.asker, "nvmlDeviceGetSerial", gpu.ReadingInventory, r.dev.GetSerial); ok {
		f.Serial = text(serial)
	}
	if version, ok := ask(&r.asker, "nvmlDeviceGetVbiosVersion", gpu.ReadingInventory, r.dev.GetVbiosVersion); ok {
		f.VBIOS = text(version)
	}
	if minor, ok := ask(&r.asker, "nvmlDeviceGetMinorNumber", gpu.ReadingInventory, r.dev.GetMinorNumber); ok {
		f.Minor = gpu.Some(minor)
	}
	if pci, ok := ask(&r.asker, "nvmlDeviceGetPciInfo", gpu.ReadingInventory, r.dev.GetPciInfo); ok {
		f.PCIBusID = pciBusID(pci)
	}
	f.SMs = r.readSMs()
	st.mostMIG, st.mostKnown = 0, false
	st.profiles = r.readProfiles()
	for i := range st.profiles {
		f.Profiles = append(f.Profiles, st.profiles[i].Profile)
	}
	// Errors of facts stand until the facts are read again.
	st.errs = append([]gpu.ReadError(nil), r.errs[before:]...)
	r.errs = r.errs[:before]
	st.have, st.again = r.fatal == nil, len(st.errs) > 0
	r.board.facts = f
}

// readSMs divides CUDA cores by what an SM of the architecture has: NVML tells no number of SMs of a physical GPU.
func (r *round) readSMs() gpu.Opt[int] {
	const question = "nvmlDeviceGetCudaComputeCapability"
	cores, ok := ask(&r.asker, "nvmlDeviceGetNumGpuCores", gpu.ReadingInventory, r.dev.GetNumGpuCores)
	if !ok || !r.may(question, gpu.ReadingInventory) {
		return gpu.None[int]()
	}
	major, minor, ret := r.dev.GetCudaComputeCapability()
	perSM := coresPerSM(major, minor)
	if !r.took(question, gpu.ReadingInventory, ret) || perSM == 0 || cores <= 0 || cores%perSM != 0 {
		return gpu.None[int]()
	}
	return gpu.Some(cores / perSM)
}

// coresPerSM is from the CUDA C++ Programming Guide, "Compute Capabilities"; 0 where the capability is unknown.
func coresPerSM(major, minor int) int {
	switch {
	case major == 5, major == 6 && minor != 0, major == 8 && minor != 0, major == 9, major == 10, major == 11, major == 12:
		return 128
	case major == 6, major == 7, major == 8:
		return 64
	}
	return 0
}

// architecture names what nvmlDeviceGetArchitecture says; empty where it is unknown.
func architecture(a nvml.DeviceArchitecture) string {
	switch a {
	case nvml.DEVICE_ARCH_KEPLER:
		return "Kepler"
	case nvml.DEVICE_ARCH_MAXWELL:
		return "Maxwell"
	case nvml.DEVICE_ARCH_PASCAL:
		return "Pascal"
	case nvml.DEVICE_ARCH_VOLTA:
		return "Volta"
	case nvml.DEVICE_ARCH_TURING:
		return "Turing"
	case nvml.DEVICE_ARCH_AMPERE:
		return "Ampere"
	case nvml.DEVICE_ARCH_ADA:
		return "Ada"
	case nvml.DEVICE_ARCH_HOPPER:
		return "Hopper"
	case nvml.DEVICE_ARCH_BLACKWELL:
		return "Blackwell"
	case nvml.DEVICE_ARCH_RUBIN:
		return "Rubin"
	}
	return ""
}

// pciBusID is the long form, 00000000:07:00.0, in lower case. Old structs have only numbers and a short form.
func pciBusID(pci nvml.PciInfo) string {
	if id := cString(pci.BusId[:]); id != "" {
		return strings.ToLower(id)
	}
	return fmt.Sprintf("%08x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
}

// cString reads a C string from a field of fixed size, which it may fill without a NUL.
func cString(field []int8) string {
	b := make([]byte, 0, len(field))
	for _, c := range field {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return text(string(b))
}
