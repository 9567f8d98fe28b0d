package sim

import (
	"math"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A fan turns at idleFanPercent up to fanRestCelsius. From there its speed grows in proportion, up
// to full speed at slowdownCelsius. Both values are our choice.
const (
	idleFanPercent = 30
	fanRestCelsius = 45
)

// Thresholds are the temperatures in Celsius at which a GPU protects itself: for A100 as nvidia-smi
// shows them, for H100 derived from the T.Limit that nvidia-smi shows.
type Thresholds struct {
	Shutdown, Slowdown, GPUMax uint32
	MemoryMax                  gpu.Opt[uint32] // absent if the GPU does not report its memory's temperature
}

// Thresholds returns the GPU's temperature thresholds. From GPUMax on the driver reports a thermal
// slowdown.
func (s *GPUState) Thresholds() Thresholds {
	t := Thresholds{Shutdown: 92, Slowdown: 89, GPUMax: slowdownCelsius}
	if s.Architecture != Ampere {
		t.Shutdown = 95
	}

	if s.MemoryCelsius.Present() {
		t.MemoryMax = gpu.Some(uint32(95))
	}

	return t
}

// MarginBranch is the first driver branch with nvmlDeviceGetMarginTemperature, which returns Margin.
const MarginBranch = 565

// Margin returns how many degrees Celsius the GPU is below GPUMax: nvidia-smi's T.Limit. It is
// absent for GPUs before Ada. GPUs from Ada on report their thresholds only relative to GPUMax: by a
// published nvidia-smi -q an H200 shuts down at -8, slows down at -2, and has its maximum at 0.
// nvml.h deprecates nvmlDeviceGetTemperatureThreshold for them.
func (s *GPUState) Margin() gpu.Opt[int] {
	if s.Architecture == Ampere {
		return gpu.None[int]()
	}

	return gpu.Some(int(s.Thresholds().GPUMax) - s.Celsius)
}

// fanSpeeds returns the speeds of the GPU's fans in percent, all the same; nil if it has no fans.
func (g *simGPU) fanSpeeds() []uint32 {
	above := (g.sample.temperature - fanRestCelsius) / (slowdownCelsius - fanRestCelsius)
	percent := idleFanPercent + (100-idleFanPercent)*min(max(above, 0), 1)

	var speeds []uint32
	for range g.fanCount {
		speeds = append(speeds, uint32(math.Round(percent)))
	}

	return speeds
}

// performanceState returns 0 (P0) while anything runs on the GPU. Without work, only GPUs that can
// lower their memory clock leave P0.
func (g *simGPU) performanceState() int {
	if len(g.tasks) > 0 {
		return 0
	}

	return g.model.idleState
}
