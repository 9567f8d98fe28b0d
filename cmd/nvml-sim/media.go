package main

import (
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// mediaCalls answer how busy the media engines are, which is not supported with MIG on (nvml.h).
func mediaCalls() map[string]call {
	return map[string]call{
		"nvmlDeviceGetEncoderUtilization": mediaUtilization(sim.MediaEncoder),
		"nvmlDeviceGetDecoderUtilization": mediaUtilization(sim.MediaDecoder),
		"nvmlDeviceGetJpgUtilization":     mediaUtilization(sim.MediaJPEG),
		"nvmlDeviceGetOfaUtilization":     mediaUtilization(sim.MediaOFA),
	}
}

// mediaPeriod is the sampling period in microseconds. It is chosen.
const mediaPeriod = 200_000

// mediaUtilization answers with the utilization of an engine in percent and the sampling period. A
// GPU without such an engine reports 0, as nvidia-smi shows for a GPU without encoder.
func mediaUtilization(kind sim.MediaEngine) call {
	return readGPU(gpu.ReadingMedia, func(s *sim.GPUState, a args) result {
		u, ok := s.Media.Get()
		if !ok {
			return notSupported
		}

		return putTwo(a, 1, u[kind], mediaPeriod)
	}, 1, 2)
}
