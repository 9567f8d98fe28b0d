package main

// #include "abi.h"
import "C"

import (
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// systemCalls are those about the node as a whole, and those that find a device.
func systemCalls() map[string]call {
	count := system(func(l *library, a args) { *at[uint32](a, 0) = uint32(l.node.Count()) }, 0)
	cuda := system(func(l *library, a args) { *at[int32](a, 0) = int32(l.node.Scenario().Node.CUDAVersion()) }, 0)
	none := system(func(_ *library, a args) { *at[uint32](a, 0) = 0 }, 0)
	return map[string]call{
		"nvmlSystemGetDriverVersion": systemText(func(n *sim.NodeSpec) string { return n.Driver }),
		"nvmlSystemGetNVMLVersion": systemText(func(n *sim.NodeSpec) string {
			return fmt.Sprintf("%d.%s", n.CUDAVersion()/1000, n.Driver)
		}),
		"nvmlSystemGetCudaDriverVersion":    cuda,
		"nvmlSystemGetCudaDriverVersion_v2": cuda,
		"nvmlSystemGetDriverBranch":         notNull(driverBranch, 0),
		"nvmlSystemGetHicVersion":           none,
		"nvmlUnitGetCount":                  none,
		"nvmlGetExcludedDeviceCount":        none,

		"nvmlDeviceGetCount":               count,
		"nvmlDeviceGetCount_v2":            count,
		"nvmlDeviceGetHandleByIndex":       notNull(handleByIndex, 1),
		"nvmlDeviceGetHandleByIndex_v2":    notNull(handleByIndex, 1),
		"nvmlDeviceGetHandleByUUID":        notNull(handleByUUID, 0, 1),
		"nvmlDeviceGetHandleByUUIDV":       notNull(handleByUUIDV, 0, 1),
		"nvmlDeviceGetHandleByPciBusId":    notNull(handleByPCI, 0, 1),
		"nvmlDeviceGetHandleByPciBusId_v2": notNull(handleByPCI, 0, 1),
		"nvmlDeviceGetHandleBySerial":      notNull(handleBySerial, 0, 1),
	}
}

// system answers for the driver as a whole, unless that has a fault.
func system(answer func(l *library, a args), pointers ...int) call {
	return notNull(func(l *library, a args) result {
		err := l.node.Driver()
		if err != nil {
			return l.failed(err)
		}
		answer(l, a)
		return success
	}, pointers...)
}

func systemText(text func(n *sim.NodeSpec) string) call {
	return notNull(func(l *library, a args) result {
		err := l.node.Driver()
		if err != nil {
			return l.failed(err)
		}
		return putText(a, 0, text(&l.node.Scenario().Node))
	}, 0)
}

func driverBranch(l *library, a args) result {
	info := at[C.sim_nvmlSystemDriverBranchInfo_v1_t](a, 0)
	if info.version != C.SIM_nvmlSystemDriverBranchInfo_v1 {
		return structMismatch
	}
	branch := fmt.Sprintf("r%d", l.node.Scenario().Node.DriverBranch())
	if int(a.uint(1)) <= len(branch) {
		return insufficientSize
	}
	cString(info.branch[:], branch)
	return success
}

func handleByIndex(l *library, a args) result {
	index := a.uint(0)
	if index >= uint32(l.node.Count()) {
		return invalidArgument
	}
	_, err := l.node.Read(int(index), gpu.ReadingDevice)
	if err != nil {
		return l.failed(err)
	}
	putRaw(a, 1, handle{kind: aGPU, gpu: int(index)})
	return success
}

// find looks for the first device that is meant. A GPU that cannot be asked is none of them; with nothing found, that is
// what the answer says.
func find(l *library, a args, meant func(s *sim.State) (handle, bool)) result {
	missing := notFound
	for index := range l.node.Count() {
		s, err := l.node.Read(index, gpu.ReadingDevice)
		if err != nil {
			missing = l.failed(err)
			continue
		}
		if h, ok := meant(&s); ok {
			*at[uintptr](a, 1) = h.raw()
			return success
		}
	}
	return missing
}

func handleByUUID(l *library, a args) result {
	return findUUID(l, a, C.GoString(at[C.char](a, 0)))
}

// findUUID finds a GPU or a MIG device by its UUID, in the form of its driver or in the legacy one.
func findUUID(l *library, a args, uuid string) result {
	return find(l, a, func(s *sim.State) (handle, bool) {
		if uuid == string(s.UUID) {
			return handle{kind: aGPU, gpu: s.Index}, true
		}
		for _, d := range s.Devices {
			if d == nil {
				continue
			}
			legacy := fmt.Sprintf("MIG-%s/%d/%d", s.UUID, d.Instance.ID, d.Compute.ID)
			if uuid == string(d.Compute.UUID) || uuid == legacy {
				return handle{aMIGDevice, s.Index, d.Instance.ID, d.Compute.ID}, true
			}
		}
		return handle{}, false
	})
}

// handleByUUIDV takes the text of a UUID, or the 16 bytes of a GPU's.
func handleByUUIDV(l *library, a args) result {
	id := at[C.sim_nvmlUUID_v1_t](a, 0)
	if id.version != C.SIM_nvmlUUID_v1 {
		return structMismatch
	}
	switch id._type {
	case C.SIM_NVML_UUID_TYPE_ASCII:
		return findUUID(l, a, C.GoStringN(&id.value[0], C.int(cLength(id.value[:]))))
	case C.SIM_NVML_UUID_TYPE_BINARY:
		b := C.GoStringN(&id.value[0], 16)
		return findUUID(l, a, fmt.Sprintf("GPU-%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]))
	}
	return invalidArgument
}

// cLength is the length of a C string that may fill its array.
func cLength(text []C.char) int {
	for i, c := range text {
		if c == 0 {
			return i
		}
	}
	return len(text)
}

// handleByPCI takes "domain:bus:device.function", or without the domain.
func handleByPCI(l *library, a args) result {
	text := C.GoString(at[C.char](a, 0))
	var domain, bus, dev, function uint32
	if n, err := fmt.Sscanf(text, "%x:%x:%x.%x", &domain, &bus, &dev, &function); n < 3 || (n == 3 && err == nil) {
		domain = 0
		if n, _ := fmt.Sscanf(text, "%x:%x.%x", &bus, &dev, &function); n < 2 {
			return invalidArgument
		}
	}
	return find(l, a, func(s *sim.State) (handle, bool) {
		return handle{kind: aGPU, gpu: s.Index}, s.PCI.Domain == domain && s.PCI.Bus == bus && s.PCI.Device == dev && function == 0
	})
}

func handleBySerial(l *library, a args) result {
	serial := C.GoString(at[C.char](a, 0))
	return find(l, a, func(s *sim.State) (handle, bool) {
		return handle{kind: aGPU, gpu: s.Index}, serial == s.Serial
	})
}
