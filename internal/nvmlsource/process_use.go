package nvmlsource

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// addProcessUse returns the list with the SM utilization of each process, from the driver's newest
// sample since the last reading. A process without a sample was not active, and has 0. Under MIG
// the driver has no samples.
func (r *gpuRead) addProcessUse(q *querier, list []gpu.Process) []gpu.Process {
	const call = "nvmlDeviceGetProcessUtilization"
	if !r.source.opts.ProcessUtilization || r.state.mode.enabled.Or(false) ||
		q.checkRefused(call, gpu.ReadingProcesses) != nil {
		return list
	}

	if r.state.processesSeen > uint64(r.now.UnixMicro()) {
		r.state.processesSeen = 0 // the clock was set back: no sample would be newer
	}

	samples, ret := r.dev.GetProcessUtilization(r.state.processesSeen)
	if ret == nvml.ERROR_NOT_FOUND { // no process was active
		samples = nil
		ret = nvml.SUCCESS
	}

	if q.recordReturn(call, gpu.ReadingProcesses, ret) != nil {
		return list
	}

	list = slices.Clone(list) // the original is kept for later readings
	for i := range list {
		list[i].SM = newestUse(samples, list[i].PID)
	}

	for _, s := range samples {
		r.state.processesSeen = max(r.state.processesSeen, s.TimeStamp)
	}

	return list
}

// newestUse returns the SM utilization in the newest sample of a process, 0 without one. Drivers
// sometimes report impossible values; if the newest sample has one, the utilization is unknown.
func newestUse(samples []nvml.ProcessUtilizationSample, pid uint32) gpu.Opt[float64] {
	use := gpu.Some(0.0)
	newest := uint64(0)

	for _, s := range samples {
		if s.Pid != pid || s.TimeStamp < newest {
			continue
		}

		newest = s.TimeStamp
		use = gpu.None[float64]()

		if s.SmUtil <= 100 {
			use = gpu.Some(float64(s.SmUtil) / 100)
		}
	}

	return use
}
