package main

// #include "abi.h"
import "C"

import (
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// linkCalls are those by which schedulers find out which GPUs are close to each other.
func linkCalls() map[string]call {
	return map[string]call{
		"nvmlDeviceGetTopologyCommonAncestor": notNull(onTwo(commonAncestor), 2),
		"nvmlDeviceOnSameBoard":               notNull(onTwo(sameBoard), 2),
		"nvmlDeviceGetNvLinkState": onLink(func(s *sim.State, a args) {
			*at[uint32](a, 2) = flag(!s.MIGEnabled) // the links are down while MIG is on
		}),
		"nvmlDeviceGetNvLinkRemoteDeviceType": onLink(func(_ *sim.State, a args) {
			*at[int32](a, 2) = C.SIM_NVML_NVLINK_DEVICE_TYPE_SWITCH
		}),
		"nvmlDeviceGetNvLinkRemotePciInfo_v2": onLink(func(s *sim.State, a args) {
			*at[C.sim_nvmlPciInfo_t](a, 2) = switchPCI(s, a.uint(1))
		}),
	}
}

// onTwo answers about two GPUs.
func onTwo(answer func(s, other *sim.State, a args)) call {
	return func(l *library, a args) result {
		var states [2]sim.State
		for i := range states {
			h, ok := handleOf(a.raw[i])
			if !ok || h.kind != aGPU {
				return invalidArgument
			}
			s, err := l.node.Read(h.gpu, gpu.ReadingInventory)
			if err != nil {
				return l.failed(err)
			}
			states[i] = s
		}
		answer(&states[0], &states[1], a)
		return success
	}
}

// commonAncestor: a simulated node has two processors with four GPUs on each.
func commonAncestor(s, other *sim.State, a args) {
	level := int32(C.SIM_NVML_TOPOLOGY_SYSTEM)
	switch {
	case s.Index == other.Index:
		level = C.SIM_NVML_TOPOLOGY_INTERNAL
	case s.Index/4 == other.Index/4:
		level = C.SIM_NVML_TOPOLOGY_NODE
	}
	*at[int32](a, 2) = level
}

func sameBoard(s, other *sim.State, a args) {
	*at[int32](a, 2) = 0
	if s.Index == other.Index {
		*at[int32](a, 2) = 1
	}
}

// onLink answers about one NVLink of a GPU, in the third argument.
func onLink(answer func(s *sim.State, a args)) call {
	return notNull(physical(gpu.ReadingNVLink, func(s *sim.State, a args) result {
		switch {
		case s.NVLinks == 0:
			return notSupported
		case a.uint(1) >= uint32(s.NVLinks):
			return invalidArgument
		}
		answer(s, a)
		return success
	}), 2)
}

// switchPCI is the NVSwitch at the other end: there are six, on which the links are spread.
func switchPCI(s *sim.State, link uint32) C.sim_nvmlPciInfo_t {
	info := C.sim_nvmlPciInfo_t{domain: C.sim_u32(s.PCI.Domain), bus: C.sim_u32(0xE0 + link%6)}
	cString(info.busId[:], fmt.Sprintf("%08X:%02X:00.0", info.domain, info.bus))
	cString(info.busIdLegacy[:], fmt.Sprintf("%04X:%02X:00.0", info.domain, info.bus))
	return info
}
