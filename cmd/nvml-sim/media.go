package main

import (
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// mediaCalls tell how busy the media engines are. With MIG the driver does not (nvml.h).
func mediaCalls() map[string]call {
	return map[string]call{
		"nvmlDeviceGetEncoderUtilization": mediaUtilization(sim.MediaEncoder),
		"nvmlDeviceGetDecoderUtilization": mediaUtilization(sim.MediaDecoder),
		"nvmlDeviceGetJpgUtilization":     mediaUtilization(sim.MediaJPEG),
		"nvmlDeviceGetOfaUtilization":     mediaUtilization(sim.MediaOFA),
	}
}

// mediaPeriod is the sampling period that is told, in microseconds.
const mediaPeriod = 200_000

// mediaUtilization answers with percent and a sampling period. Boards without such an engine say 0, as nvidia-smi shows of a GPU
// without encoder.
func mediaUtilization(kind sim.MediaEngine) call {
	return notNull(physical(gpu.ReadingMedia, func(s *sim.State, a args) result {
		u, ok := s.Media.Get()
		if !ok {
			return notSupported
		}
		*at[uint32](a, 1), *at[uint32](a, 2) = u[kind], mediaPeriod
		return success
	}), 1, 2)
}
