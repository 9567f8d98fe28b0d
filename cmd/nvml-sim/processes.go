package main

// #include "abi.h"
import "C"

import (
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// processCalls list the processes on a device. A list of compute processes has an MPS server instead
// of its clients, which have a list of their own. No simulated process uses graphics.
func processCalls() map[string]call {
	all := make(map[string]call)
	for name, wanted := range map[string]func(p sim.Process) bool{
		"nvmlDeviceGetComputeRunningProcesses":    func(p sim.Process) bool { return !p.MPSClient },
		"nvmlDeviceGetMPSComputeRunningProcesses": func(p sim.Process) bool { return p.MPSClient },
		"nvmlDeviceGetGraphicsRunningProcesses":   func(sim.Process) bool { return false },
	} {
		all[name] = listProcesses(wanted, func(p sim.Process) C.sim_nvmlProcessInfo_v1_t {
			return C.sim_nvmlProcessInfo_v1_t{
				pid:           C.sim_u32(p.PID),
				usedGpuMemory: C.sim_u64(p.MemoryBytes),
			}
		})

		newer := listProcesses(wanted, func(p sim.Process) C.sim_nvmlProcessInfo_v2_t {
			return C.sim_nvmlProcessInfo_v2_t{
				pid:               C.sim_u32(p.PID),
				usedGpuMemory:     C.sim_u64(p.MemoryBytes),
				gpuInstanceId:     C.sim_u32(idOrNone(p.Instance)),
				computeInstanceId: C.sim_u32(idOrNone(p.Compute)),
			}
		})
		all[name+"_v2"] = newer
		all[name+"_v3"] = newer
	}

	all["nvmlDeviceGetProcessUtilization"] = readGPU(gpu.ReadingProcesses, processUse, 2)

	return all
}

// processUse answers with the SM use of each process of a GPU without MIG. The samples are of now:
// the time after which the client asks for samples is in the past, and is ignored.
func processUse(s *sim.GPUState, a args) result {
	if s.MIGEnabled {
		return notSupported
	}

	if len(s.Processes) == 0 {
		return notFound
	}

	samples := make([]C.sim_nvmlProcessUtilizationSample_t, 0, len(s.Processes))
	for _, p := range s.Processes {
		samples = append(samples, C.sim_nvmlProcessUtilizationSample_t{
			pid:       C.sim_u32(p.PID),
			timeStamp: C.sim_u64(s.Time.UnixMicro()),
			smUtil:    C.sim_u32(100*p.SMShare + 0.5),
		})
	}

	if a.raw[1] == 0 { // the client asks for the number of samples
		put(a, 2, uint32(len(samples)))
		return insufficientSize
	}

	return putList(a, 2, 1, samples)
}

// listProcesses lists the wanted processes of a GPU, which requires privileges if MIG is on, or of a
// MIG device.
func listProcesses[T any](wanted func(p sim.Process) bool, info func(p sim.Process) T) call {
	collect := func(s *sim.GPUState, keep func(p sim.Process) bool) []T {
		infos := []T{}
		for _, p := range s.Processes {
			if wanted(p) && keep(p) {
				infos = append(infos, info(p))
			}
		}

		return infos
	}

	return readDevice(gpu.ReadingProcesses, func(s *sim.GPUState, a args) result {
		if s.MIGEnabled && !s.Privileged {
			return noPermission
		}

		return putList(a, 1, 2, collect(s, func(sim.Process) bool { return true }))
	}, func(s *sim.GPUState, d *sim.MIGDevice, a args) result {
		return putList(a, 1, 2, collect(s, func(p sim.Process) bool {
			return p.Instance == gpu.Some(d.Instance.ID) && p.Compute == gpu.Some(d.Compute.ID)
		}))
	}, 1)
}
