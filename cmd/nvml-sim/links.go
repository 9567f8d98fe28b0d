package main

// #include "abi.h"
import "C"

import (
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// linkCalls answer how GPUs are connected to each other, for schedulers.
func linkCalls() map[string]call {
	return map[string]call{
		"nvmlDeviceGetGpuFabricInfoV":         readGPU(gpu.ReadingFabric, fabricInfo, 1),
		"nvmlDeviceGetTopologyCommonAncestor": readTwoGPUs(commonAncestor),
		"nvmlDeviceOnSameBoard":               readTwoGPUs(isSameGPU),
		"nvmlDeviceGetNvLinkState": readLink(func(s *sim.GPUState, a args) result {
			return put(a, 2, flag(!s.MIGEnabled)) // the links are down while MIG is on
		}),
		"nvmlDeviceGetNvLinkRemoteDeviceType": readLink(func(_ *sim.GPUState, a args) result {
			return put[int32](a, 2, C.SIM_NVML_NVLINK_DEVICE_TYPE_SWITCH)
		}),
		"nvmlDeviceGetNvLinkRemotePciInfo_v2": readLink(func(s *sim.GPUState, a args) result {
			return put(a, 2, switchPCI(s, a.uint(1)))
		}),
	}
}

// fabricInfo answers in the second or the third version of its struct. The third begins like the
// second, and has a summary of the health.
func fabricInfo(s *sim.GPUState, a args) result {
	v2 := pointer[C.sim_nvmlGpuFabricInfo_v2_t](a, 1)

	v3 := pointer[C.sim_nvmlGpuFabricInfo_v3_t](a, 1)
	if v2.version != C.SIM_nvmlGpuFabricInfo_v2 && v3.version != C.SIM_nvmlGpuFabricInfo_v3 {
		return structMismatch
	}

	fabric, ok := s.Fabric().Get()
	if !ok {
		return notSupported
	}

	v2.status = C.int(fabric.Status.Or(0))
	v2.cliqueId = C.sim_u32(fabric.Clique.Or(0))
	v2.state = C.SIM_NVML_GPU_FABRIC_STATE_COMPLETED
	v2.healthMask = 0

	if v3.version == C.SIM_nvmlGpuFabricInfo_v3 {
		v3.healthSummary = C.SIM_NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY
	}

	return success
}

// readTwoGPUs answers about the GPUs in the first two arguments with a number, to which the third
// points.
func readTwoGPUs(answer func(s, other *sim.GPUState) int32) call {
	return notNull(func(l *library, a args) result {
		var states [2]sim.GPUState
		for i := range states {
			h, ok := l.handleIn(a, i, aGPU)
			if !ok {
				return invalidArgument
			}

			s, err := l.node.Read(h.gpu, gpu.ReadingInventory)
			if err != nil {
				return l.failed(err)
			}

			states[i] = s
		}

		return put(a, 2, answer(&states[0], &states[1]))
	}, 2)
}

// commonAncestor returns the level at which two GPUs meet. Each processor of a simulated node has
// four GPUs.
func commonAncestor(s, other *sim.GPUState) int32 {
	switch {
	case s.Index == other.Index:
		return C.SIM_NVML_TOPOLOGY_INTERNAL
	case s.Index/4 == other.Index/4:
		return C.SIM_NVML_TOPOLOGY_NODE
	}

	return C.SIM_NVML_TOPOLOGY_SYSTEM
}

func isSameGPU(s, other *sim.GPUState) int32 { return int32(flag(s.Index == other.Index)) }

// readLink answers about the NVLink whose number is the second argument. The third argument points
// to the answer.
func readLink(answer gpuAnswer) call {
	return readGPU(gpu.ReadingNVLink, func(s *sim.GPUState, a args) result {
		switch {
		case s.NVLinks == 0:
			return notSupported
		case a.uint(1) >= uint32(s.NVLinks):
			return invalidArgument
		}

		return answer(s, a)
	}, 2)
}

// switchPCI returns the PCI address of the NVSwitch at the other end of a link. The links are spread
// over six switches; their number and addresses are chosen.
func switchPCI(s *sim.GPUState, link uint32) C.sim_nvmlPciInfo_t {
	info := C.sim_nvmlPciInfo_t{domain: C.sim_u32(s.PCI.Domain), bus: C.sim_u32(0xE0 + link%6)}
	putCString(info.busId[:], fmt.Sprintf("%08X:%02X:00.0", info.domain, info.bus))
	putCString(info.busIdLegacy[:], fmt.Sprintf("%04X:%02X:00.0", info.domain, info.bus))

	return info
}
