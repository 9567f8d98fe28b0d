package nvmlsource

import (
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// readFacts returns what does not change while the GPU's handle and MIG mode stay the same, such as
// its name. It reads that once. Facts that failed are read again with the slow tier, facts that
// were not supported when unsupported calls are tried again.
func (r *gpuRead) readFacts() (gpu.Facts, keptErrors) {
	static := &r.state.static

	due := !static.complete || r.retryAll || r.slow && len(static.errs) > 0
	if due && r.lost == nil {
		q := r.newQuerier(r.state.answers)
		r.queryFacts(&q, &r.state.facts)
		static.errs = q.errs
		static.complete = r.lost == nil
	}

	facts := r.state.facts
	facts.UUID = r.state.uuid
	facts.Index = int(r.state.index.Load())

	return facts, static.errs
}

// queryFacts queries the facts that are not known yet.
func (r *gpuRead) queryFacts(q *querier, f *gpu.Facts) {
	queryFact(q, "nvmlDeviceGetName", r.dev.GetName, func(name string) { f.Name = validUTF8(name) })
	queryFact(q, "nvmlDeviceGetArchitecture", r.dev.GetArchitecture,
		func(a nvml.DeviceArchitecture) { f.Architecture = architecture(a) })
	queryFact(
		q,
		"nvmlDeviceGetSerial",
		r.dev.GetSerial,
		func(serial string) { f.Serial = validUTF8(serial) },
	)
	queryFact(
		q,
		"nvmlDeviceGetVbiosVersion",
		r.dev.GetVbiosVersion,
		func(version string) { f.VBIOS = validUTF8(version) },
	)
	queryFact(
		q,
		"nvmlDeviceGetMinorNumber",
		r.dev.GetMinorNumber,
		func(minor int) { f.Minor = gpu.Some(minor) },
	)
	queryFact(
		q,
		"nvmlDeviceGetPciInfo",
		r.dev.GetPciInfo,
		func(pci nvml.PciInfo) { f.PCIBusID = pciBusID(pci) },
	)

	static := &r.state.static
	if !static.answered[callSMs] {
		f.SMs = r.querySMs(q)
	}

	r.queryProfiles(q)

	f.Profiles = nil
	for i := range static.profiles {
		f.Profiles = append(f.Profiles, static.profiles[i].Profile)
	}
}

// queryFact queries a fact unless it is known, and passes the answer to store.
func queryFact[T any](q *querier, call string, f func() (T, nvml.Return), store func(T)) {
	known := q.state.static.answered
	if known[call] {
		return
	}

	if answer, err := query(q, call, gpu.ReadingInventory, f); err == nil {
		known[call] = true
		store(answer)
	}
}

// callSMs is the last call of querySMs: the number of SMs is known once it was answered.
const callSMs = "nvmlDeviceGetCudaComputeCapability"

// querySMs divides the number of CUDA cores by the cores of one SM: NVML does not report the SMs of
// a GPU, nor its cores while MIG is on (nvml.h).
func (r *gpuRead) querySMs(q *querier) gpu.Opt[int] {
	cores, err := query(q, "nvmlDeviceGetNumGpuCores", gpu.ReadingInventory, r.dev.GetNumGpuCores)
	if err != nil {
		return gpu.None[int]()
	}

	perSM, err := query(q, callSMs, gpu.ReadingInventory, func() (int, nvml.Return) {
		major, minor, ret := r.dev.GetCudaComputeCapability()
		return coresPerSM(major, minor), ret
	})
	if err != nil {
		return gpu.None[int]()
	}

	r.state.static.answered[callSMs] = true

	if perSM == 0 || cores <= 0 || cores%perSM != 0 {
		return gpu.None[int]()
	}

	return gpu.Some(cores / perSM)
}

// coresPerSM returns the CUDA cores of an SM (CUDA C++ Programming Guide, "Compute Capabilities");
// 0 if the capability is unknown.
func coresPerSM(major, minor int) int {
	switch {
	case major == 6 && minor == 0, major == 7, major == 8 && minor == 0:
		return 64
	case major >= 5 && major <= 12:
		return 128
	}

	return 0
}

// architecture returns the name of an answer of nvmlDeviceGetArchitecture; "" if it is unknown.
func architecture(a nvml.DeviceArchitecture) string {
	names := [...]string{
		nvml.DEVICE_ARCH_KEPLER:    "Kepler",
		nvml.DEVICE_ARCH_MAXWELL:   "Maxwell",
		nvml.DEVICE_ARCH_PASCAL:    "Pascal",
		nvml.DEVICE_ARCH_VOLTA:     "Volta",
		nvml.DEVICE_ARCH_TURING:    "Turing",
		nvml.DEVICE_ARCH_AMPERE:    "Ampere",
		nvml.DEVICE_ARCH_ADA:       "Ada",
		nvml.DEVICE_ARCH_HOPPER:    "Hopper",
		nvml.DEVICE_ARCH_BLACKWELL: "Blackwell",
		nvml.DEVICE_ARCH_RUBIN:     "Rubin",
	}
	if uint64(a) >= uint64(len(names)) {
		return ""
	}

	return names[a]
}

// pciBusID returns the PCI bus id in its long form and in lower case, 00000000:07:00.0. Old structs
// have only numbers and a short form.
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

	return validUTF8(string(b))
}
