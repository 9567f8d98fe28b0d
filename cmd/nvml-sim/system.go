package main

// #include "abi.h"
import "C"

import (
	"fmt"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// systemCalls answer about the node as a whole, and find devices.
func systemCalls() map[string]call {
	count := askDriver(
		func(l *library, a args) result { return put(a, 0, uint32(l.client.Count())) },
		0,
	)
	cuda := askDriver(
		func(l *library, a args) result { return put(a, 0, int32(l.node.Scenario().Node.CUDAVersion())) },
		0,
	)
	none := askDriver(func(_ *library, a args) result { return put[uint32](a, 0, 0) }, 0)

	return map[string]call{
		"nvmlSystemGetConfComputeState": askDriver(confComputeState, 0),
		"nvmlSystemGetDriverVersion": askDriverText(
			func(n *sim.NodeSpec) string { return n.Driver },
		),
		"nvmlSystemGetNVMLVersion": askDriverText(func(n *sim.NodeSpec) string {
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

// askDriver answers about no GPU in particular, unless the driver as a whole has a fault.
func askDriver(answer call, pointers ...int) call {
	return notNull(func(l *library, a args) result {
		err := l.node.Driver()
		if err != nil {
			return l.failed(err)
		}

		return answer(l, a)
	}, pointers...)
}

func askDriverText(text func(n *sim.NodeSpec) string) call {
	return askDriver(
		func(l *library, a args) result { return putText(a, 0, text(&l.node.Scenario().Node)) },
		0,
	)
}

// confComputeState answers even if no GPUs are attached, which is unverified.
func confComputeState(l *library, a args) result {
	state := pointer[C.sim_nvmlConfComputeSystemState_t](a, 0)
	*state = C.sim_nvmlConfComputeSystemState_t{}

	if l.node.Scenario().Node.ConfidentialComputing {
		state.environment = C.SIM_NVML_CC_SYSTEM_ENVIRONMENT_PROD
		state.ccFeature = C.SIM_NVML_CC_SYSTEM_FEATURE_ENABLED
	}

	return success
}

func driverBranch(l *library, a args) result {
	info := pointer[C.sim_nvmlSystemDriverBranchInfo_v1_t](a, 0)
	if info.version != C.SIM_nvmlSystemDriverBranchInfo_v1 {
		return structMismatch
	}

	branch := fmt.Sprintf("r%d", l.node.Scenario().Node.DriverBranch())
	if int(a.uint(1)) <= len(branch) {
		return insufficientSize
	}

	putCString(info.branch[:], branch)

	return success
}

func handleByIndex(l *library, a args) result {
	index, err := l.client.At(int(a.uint(0)))
	if err == nil {
		_, err = l.node.Read(index, gpu.ReadingDevice)
	}

	if err != nil {
		return l.failed(err)
	}

	return putHandle(a, 1, handle{kind: aGPU, gpu: index})
}

// findDevice answers with the first handle that find returns for a GPU. It skips a GPU that cannot
// be read, but answers with its error if no handle is found.
func findDevice(l *library, a args, find func(s *sim.GPUState) (handle, bool)) result {
	answerIfNone := notFound

	for index := range l.node.Count() {
		s, err := l.node.Read(index, gpu.ReadingDevice)
		if err != nil {
			answerIfNone = l.failed(err)
			continue
		}

		if h, ok := find(&s); ok {
			err = l.client.Open(h.gpu)
			if err != nil {
				return l.failed(err)
			}

			return putHandle(a, 1, h)
		}
	}

	return answerIfNone
}

func handleByUUID(l *library, a args) result {
	return findUUID(l, a, C.GoString(pointer[C.char](a, 0)))
}

// findUUID answers with the GPU or the MIG device of a UUID. A MIG device can have the legacy form of
// drivers before R470, MIG-<UUID of the GPU>/<GPU instance>/<compute instance>, too.
func findUUID(l *library, a args, uuid string) result {
	return findDevice(l, a, func(s *sim.GPUState) (handle, bool) {
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

// handleByUUIDV takes the text of a UUID, or the 16 bytes of a GPU's UUID.
func handleByUUIDV(l *library, a args) result {
	id := pointer[C.sim_nvmlUUID_v1_t](a, 0)
	if id.version != C.SIM_nvmlUUID_v1 {
		return structMismatch
	}

	switch id._type {
	case C.SIM_NVML_UUID_TYPE_ASCII:
		// The text may fill the array: then no zero byte ends it.
		text, _, _ := strings.Cut(C.GoStringN(&id.value[0], C.int(len(id.value))), "\x00")
		return findUUID(l, a, text)
	case C.SIM_NVML_UUID_TYPE_BINARY:
		b := C.GoStringN(&id.value[0], 16)
		return findUUID(
			l,
			a,
			fmt.Sprintf("GPU-%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]),
		)
	}

	return invalidArgument
}

func handleByPCI(l *library, a args) result {
	index, err := l.node.FindBusID(C.GoString(pointer[C.char](a, 0)))
	if err == nil {
		err = l.client.Open(index)
	}

	if err == nil {
		_, err = l.node.Read(index, gpu.ReadingDevice)
	}

	if err != nil {
		return l.failed(err)
	}

	return putHandle(a, 1, handle{kind: aGPU, gpu: index})
}

func handleBySerial(l *library, a args) result {
	serial := C.GoString(pointer[C.char](a, 0))
	return findDevice(l, a, func(s *sim.GPUState) (handle, bool) {
		return handle{kind: aGPU, gpu: s.Index}, serial == s.Serial
	})
}
