package main

import (
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// coolingCalls answer about fans. GPUs that the server's fans cool have none.
func coolingCalls() map[string]call {
	return map[string]call{
		"nvmlDeviceGetNumFans": readGPU(gpu.ReadingFans, fanCount, 1),
		"nvmlDeviceGetFanSpeed": readGPU(gpu.ReadingFans, func(s *sim.GPUState, a args) result {
			return fanSpeed(s, a, 0, 1)
		}, 1),
		"nvmlDeviceGetFanSpeed_v2": readGPU(gpu.ReadingFans, func(s *sim.GPUState, a args) result {
			return fanSpeed(s, a, a.uint(1), 2)
		}, 2),
	}
}

func fanCount(s *sim.GPUState, a args) result {
	if len(s.Fans) == 0 {
		return notSupported
	}

	return put(a, 1, uint32(len(s.Fans)))
}

// fanSpeed writes the speed of a fan in percent to where argument to points.
func fanSpeed(s *sim.GPUState, a args, fan uint32, to int) result {
	switch {
	case len(s.Fans) == 0:
		return notSupported
	case int64(fan) >= int64(len(s.Fans)):
		return invalidArgument
	}

	return put(a, to, s.Fans[fan])
}
