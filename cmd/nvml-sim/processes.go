package main

// #include "abi.h"
import "C"

import (
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// processCalls list what runs on a device. NVML lists the MPS server instead of its clients; nothing simulated draws.
func processCalls() map[string]call {
	all := make(map[string]call)
	for name, wanted := range map[string]func(p sim.Process) bool{
		"nvmlDeviceGetComputeRunningProcesses":    func(p sim.Process) bool { return !p.MPSClient },
		"nvmlDeviceGetMPSComputeRunningProcesses": func(p sim.Process) bool { return p.MPSClient },
		"nvmlDeviceGetGraphicsRunningProcesses":   func(sim.Process) bool { return false },
	} {
		all[name] = processes(wanted, func(p sim.Process) C.sim_nvmlProcessInfo_v1_t {
			return C.sim_nvmlProcessInfo_v1_t{pid: C.sim_u32(p.PID), usedGpuMemory: C.sim_u64(p.MemoryBytes)}
		})
		newer := processes(wanted, func(p sim.Process) C.sim_nvmlProcessInfo_v2_t {
			return C.sim_nvmlProcessInfo_v2_t{
				pid: C.sim_u32(p.PID), usedGpuMemory: C.sim_u64(p.MemoryBytes),
				gpuInstanceId: C.sim_u32(idOrNone(p.Instance)), computeInstanceId: C.sim_u32(idOrNone(p.Compute)),
			}
		})
		all[name+"_v2"], all[name+"_v3"] = newer, newer
	}
	return all
}

// processes lists those of a whole GPU, which needs rights with MIG on, or a MIG device's own.
func processes[T any](wanted func(p sim.Process) bool, info func(p sim.Process) T) call {
	collect := func(s *sim.State, keep func(p sim.Process) bool) []T {
		infos := []T{}
		for _, p := range s.Processes {
			if wanted(p) && keep(p) {
				infos = append(infos, info(p))
			}
		}
		return infos
	}
	return notNull(device(gpu.ReadingProcesses, func(s *sim.State, a args) result {
		if s.MIGEnabled && !s.Privileged {
			return noPermission
		}
		return list(a, 1, 2, collect(s, func(sim.Process) bool { return true }))
	}, func(s *sim.State, d *sim.Device, a args) result {
		return list(a, 1, 2, collect(s, func(p sim.Process) bool {
			return p.Instance == gpu.Some(d.Instance.ID) && p.Compute == gpu.Some(d.Compute.ID)
		}))
	}), 1)
}
