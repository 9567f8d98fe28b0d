package sim

import (
	"math"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// sample has the readings of a GPU that stay the same during a step.
type sample struct {
	activity     Activity
	memoryUsed   uint64 // bytes
	watts        float64
	temperature  float64 // Celsius
	smMHz        uint32
	reasons      gpu.ClockEvents // why clocks are lowered
	pcie, nvlink float64         // bytes per second in each direction
}

// totals are counters of a GPU, from the start of the node to the start of the running step.
type totals struct {
	joules       float64
	activity     Activity // see Activity.plus
	pcie, nvlink float64  // bytes in each direction
	// powerCapped and thermal are for how many seconds the power limit or the temperature have held
	// clocks down.
	powerCapped, thermal float64
}

// after returns the totals after a sample has held for some seconds.
func (t totals) after(s sample, seconds float64) totals {
	t.joules += s.watts * seconds
	t.activity = t.activity.plus(s.activity, seconds)
	t.pcie += s.pcie * seconds
	t.nvlink += s.nvlink * seconds

	if s.reasons&reasonPowerCap != 0 {
		t.powerCapped += seconds
	}

	if s.reasons&(reasonSWThermal|reasonHWThermal) != 0 {
		t.thermal += seconds
	}

	return t
}

// The reasons of nvmlClocksEventReason* that the simulation knows.
const (
	reasonIdle         gpu.ClockEvents = 0x1
	reasonPowerCap     gpu.ClockEvents = 0x4
	reasonHWSlowdown   gpu.ClockEvents = 0x8 // together with HWThermal or HWPowerBrake
	reasonSWThermal    gpu.ClockEvents = 0x20
	reasonHWThermal    gpu.ClockEvents = 0x40
	reasonHWPowerBrake gpu.ClockEvents = 0x80
)

// How power and temperature behave. The figures are our choice, not measured; real
// GPUs differ.
const (
	slowdownCelsius   = 87               // from here on the driver reduces clocks
	hwSlowdownCelsius = 92               // from here on the hardware halves them
	fullLoadCelsius   = 38               // how much warmer a GPU gets at its power limit than at rest
	thermalTime       = 30 * time.Second // the time constant with which the temperature follows power
	idlePCIe          = 8 << 10          // bytes per second in each direction without work
	wattsRippleShare  = 0.01             // by how much power varies from second to second
	clockStepMHz      = 15               // clocks are multiples of it
	smLoad            = 0.62             // how busy SMs, tensor cores and memory contribute to power
	tensorLoad        = 0.18
	dramLoad          = 0.35
)

// sampleAll begins a new step for every GPU; elapsed is how long the step before lasted.
func (n *Node) sampleAll(elapsed time.Duration) {
	n.forgetDescriptions()
	n.watchPlugin()

	// A process that is killed may have had tasks on GPUs that we have looked at before: we repeat
	// until none is killed.
	for again := true; again; again = n.resample {
		n.resample = false
		for _, g := range n.gpus {
			n.killWithoutMedia(g)
			n.useMemory(g)
		}
	}

	for _, g := range n.gpus {
		n.useSMs(g)
		n.useMedia(g)
		n.useTraffic(g)
		n.usePower(g, elapsed)
	}
}

// usePower derives power, temperature and clocks from the activity. Power is the idle power, and
// above that grows with the work of SMs, tensor cores and memory, up to the limit. If they want more
// than the limit, the clocks fall.
func (n *Node) usePower(g *simGPU, elapsed time.Duration) {
	s := &g.sample
	m := &g.model
	maxDynamic := m.limitWatts - m.idleWatts

	// The temperature follows the power of the step that has ended, which s.watts still is.
	if elapsed > 0 {
		target := g.restingTemperature() + fullLoadCelsius*(s.watts-m.idleWatts)/maxDynamic
		s.temperature += (target - s.temperature) * (1 - math.Exp(-elapsed.Seconds()/thermalTime.Seconds()))
	}

	load := smLoad*s.activity.SM + tensorLoad*s.activity.Tensor + dramLoad*s.activity.DRAM
	load *= 1 + wattsRippleShare*noise(g.noiseKey, n.step)
	wanted := maxDynamic * load
	dynamic := min(wanted, maxDynamic)
	s.watts = math.Round((m.idleWatts+dynamic)*1000) / 1000 // the driver counts milliwatts

	s.smMHz = m.maxSMMHz
	s.reasons = 0

	switch {
	case len(g.tasks) == 0:
		s.smMHz = m.idleSMMHz
		s.reasons = reasonIdle
	case s.activity.SM == 0:
		s.reasons = reasonIdle
	case wanted > dynamic:
		s.reasons = reasonPowerCap
		s.smMHz = uint32(float64(m.maxSMMHz)*max(dynamic/wanted, 0.5)) / clockStepMHz * clockStepMHz
	}

	n.slowDown(g)
}

// slowDown sets the reasons for which a hot GPU, or one with FaultPowerBrake, lowers its clock. If
// the hardware does it, the clock is at most half.
func (n *Node) slowDown(g *simGPU) {
	s := &g.sample
	n.eachActiveFault(g.index, n.stateTime, func(f *FaultSpec) {
		switch f.Kind {
		case FaultOverheat:
			s.temperature = max(s.temperature, float64(f.Celsius))
		case FaultPowerBrake:
			s.reasons |= reasonHWPowerBrake | reasonHWSlowdown
		}
	})

	if s.temperature >= slowdownCelsius {
		s.reasons |= reasonSWThermal
	}

	if s.temperature >= hwSlowdownCelsius {
		s.reasons |= reasonHWThermal | reasonHWSlowdown
	}

	if s.reasons&reasonHWSlowdown != 0 {
		s.smMHz = min(s.smMHz, g.model.maxSMMHz/2/clockStepMHz*clockStepMHz)
	}
}

// restingTemperature returns the temperature in Celsius without work: 34 to 38, as GPUs differ by
// their place in the air stream.
func (g *simGPU) restingTemperature() float64 { return 34 + float64(g.noiseKey%5) }

// useTraffic adds up what the tasks send over PCIe and NVLink; they receive as much. NVLink is off
// while MIG is on.
func (n *Node) useTraffic(g *simGPU) {
	g.sample.pcie = 0
	g.sample.nvlink = 0

	for _, t := range g.tasks {
		if t.workload == nil {
			continue
		}

		pcie := t.now(n, t.workload.PCIe.Signal) * t.speed
		g.sample.pcie += pcie

		if t.on.instance != nil {
			t.on.instance.Activity.PCIe += pcie
		}

		if !g.migOn && g.model.nvlinks > 0 {
			g.sample.nvlink += t.now(n, t.workload.NVLink.Signal) * t.speed
		}
	}

	g.sample.pcie = max(g.sample.pcie, idlePCIe)
}
