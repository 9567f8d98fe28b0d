package main

import (
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// coolingCalls tell of fans, which GPUs that their servers cool do not have.
func coolingCalls() map[string]call {
	return map[string]call{
		"nvmlDeviceGetNumFans":     notNull(physical(gpu.ReadingFans, fanCount), 1),
		"nvmlDeviceGetFanSpeed":    notNull(physical(gpu.ReadingFans, func(s *sim.State, a args) result { return fanSpeed(s, a, 0, 1) }), 1),
		"nvmlDeviceGetFanSpeed_v2": notNull(physical(gpu.ReadingFans, func(s *sim.State, a args) result { return fanSpeed(s, a, a.uint(1), 2) }), 2),
	}
}

func fanCount(s *sim.State, a args) result {
	if len(s.Fans) == 0 {
		return notSupported
	}
	*at[uint32](a, 1) = uint32(len(s.Fans))
	return success
}

// fanSpeed writes the speed of a fan to an argument, in percent.
func fanSpeed(s *sim.State, a args, fan uint32, to int) result {
	switch {
	case len(s.Fans) == 0:
		return notSupported
	case int64(fan) >= int64(len(s.Fans)):
		return invalidArgument
	}
	*at[uint32](a, to) = s.Fans[fan]
	return success
}
