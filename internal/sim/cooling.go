package sim

import (
	"math"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A fan turns at its idle speed up to a temperature, and from there on in proportion up to full
// speed at the temperature at which clocks fall.
const (
	idleFanPercent = 30
	fanRestCelsius = 45
)

// Thresholds are the temperatures in Celsius at which a GPU protects itself, as nvidia-smi shows of
// A100, and by their T.Limit of H100.
type Thresholds struct {
	Shutdown, Slowdown, GPUMax uint32
	MemoryMax                  gpu.Opt[uint32] // of GPUs that report the temperature of their memory
}

// Thresholds differ little between GPUs. From GPUMax on the driver reports a thermal slowdown.
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

// Margin returns how many degrees Celsius the GPU is below GPUMax, nvidia-smi's T.Limit. GPUs
// before Ada do not report it. Those from Ada on report their thresholds relative to it alone: -8
// to shut down, -2 to slow down and 0 on H200, by a published nvidia-smi -q; nvml.h deprecates
// nvmlDeviceGetTemperatureThreshold for them.
func (s *GPUState) Margin() gpu.Opt[int] {
	if s.Architecture == Ampere {
		return gpu.None[int]()
	}

	return gpu.Some(int(s.Thresholds().GPUMax) - s.Celsius)
}

// fans are the speeds of the GPU's fans in percent, all the same; nil if it has none.
func (g *simGPU) fans() []uint32 {
	var speeds []uint32

	for range g.fanCount {
		above := (g.sample.temperature - fanRestCelsius) / (slowdownCelsius - fanRestCelsius)
		speeds = append(
			speeds,
			uint32(math.Round(idleFanPercent+(100-idleFanPercent)*min(max(above, 0), 1))),
		)
	}

	return speeds
}

// performanceState is P0 while anything runs. Without work only GPUs that can lower their memory
// clock leave it.
func (g *simGPU) performanceState() int {
	if len(g.tasks) > 0 {
		return 0
	}

	return g.model.idleState
}
