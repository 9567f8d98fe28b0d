package nvmlsrc

import (
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// readFacts reads what stands still while the handle and the MIG mode do: once. What is missing because it failed is read
// again with the slow tier, and what was not supported when that is asked again.
func (r *round) readFacts() {
	st := &r.board.static
	if r.fatal != nil || st.have && !(len(st.errs) > 0 && r.slow) && !r.hopes {
		return
	}
	before := len(r.errs)
	f := &r.board.facts
	f.UUID = r.board.uuid
	fact(r, "nvmlDeviceGetName", r.dev.GetName, func(name string) { f.Name = text(name) })
	fact(r, "nvmlDeviceGetArchitecture", r.dev.GetArchitecture, func(a nvml.DeviceArchitecture) { f.Architecture = architecture(a) })
	fact(r, "nvmlDeviceGetSerial", r.dev.GetSerial, func(serial string) { f.Serial = text(serial) })
	fact(r, "nvmlDeviceGetVbiosVersion", r.dev.GetVbiosVersion, func(version string) { f.VBIOS = text(version) })
	fact(r, "nvmlDeviceGetMinorNumber", r.dev.GetMinorNumber, func(minor int) { f.Minor = gpu.Some(minor) })
	fact(r, "nvmlDeviceGetPciInfo", r.dev.GetPciInfo, func(pci nvml.PciInfo) { f.PCIBusID = pciBusID(pci) })
	if !st.answered[questionSMs] {
		f.SMs = r.readSMs()
	}
	r.readProfiles()
	f.Profiles = nil
	for i := range st.profiles {
		f.Profiles = append(f.Profiles, st.profiles[i].Profile)
	}
	// Errors of facts stand until the facts are read again.
	st.errs = append([]gpu.ReadError(nil), r.errs[before:]...)
	r.errs = r.errs[:before]
	st.have = r.fatal == nil
}

// fact asks for a fact that is not known yet.
func fact[T any](r *round, question string, f func() (T, nvml.Return), take func(T)) {
	st := &r.board.static
	if st.answered[question] {
		return
	}
	if answer, ok := ask(&r.asker, question, gpu.ReadingInventory, f); ok {
		st.answered[question] = true
		take(answer)
	}
}

// questionSMs is what readSMs asks last.
const questionSMs = "nvmlDeviceGetCudaComputeCapability"

// readSMs divides CUDA cores by what an SM of the architecture has: NVML tells no number of SMs of a physical GPU, and
// none of its cores while MIG is on (nvml.h).
func (r *round) readSMs() gpu.Opt[int] {
	cores, ok := ask(&r.asker, "nvmlDeviceGetNumGpuCores", gpu.ReadingInventory, r.dev.GetNumGpuCores)
	if !ok || !r.may(questionSMs, gpu.ReadingInventory) {
		return gpu.None[int]()
	}
	major, minor, ret := r.dev.GetCudaComputeCapability()
	if !r.took(questionSMs, gpu.ReadingInventory, ret) {
		return gpu.None[int]()
	}
	r.board.static.answered[questionSMs] = true
	perSM := coresPerSM(major, minor)
	if perSM == 0 || cores <= 0 || cores%perSM != 0 {
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
