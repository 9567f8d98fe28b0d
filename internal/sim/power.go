package sim

import (
	"math"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// sample is what holds for a GPU during a step.
type sample struct {
	activity    Activity
	memoryUsed  uint64
	watts       float64
	temperature float64 // Celsius
	smMHz       uint32
	reasons     gpu.ClockEvents
	pcie        float64 // bytes per second and direction
	nvlink      float64
}

// totals grow from the start of the node to the start of the running step.
type totals struct {
	joules       float64
	activity     Activity // seconds
	pcie, nvlink float64  // bytes in each direction
	// for how long the power limit, and the temperature, have held clocks down, in seconds
	powerCapped, thermal float64
}

// after is what the totals are when a sample has held for some seconds.
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
	reasonHWSlowdown   gpu.ClockEvents = 0x8 // with the next two
	reasonSWThermal    gpu.ClockEvents = 0x20
	reasonHWThermal    gpu.ClockEvents = 0x40
	reasonHWPowerBrake gpu.ClockEvents = 0x80

	slowdownCelsius   = 87 // the driver reduces clocks
	hwSlowdownCelsius = 92 // and so does the hardware
	fullLoadCelsius   = 38 // above rest, at the power limit
	thermalTime       = 30 * time.Second
	idlePCIe          = 8 << 10 // bytes per second and direction: the least that a GPU has
	wattsRippleShare  = 0.01
	clockStepMHz      = 15
)

// sampleAll begins a new step for every GPU; passed is how long the one before has held.
func (n *Node) sampleAll(passed time.Duration) {
	n.forgetDescriptions()
	n.watchPlugin()

	for again := true; again; again = n.resample {
		n.resample = false
		for _, g := range n.gpus {
			n.needMedia(g)
			n.useMemory(g) // both kill processes, maybe on other GPUs too
		}
	}

	for _, g := range n.gpus {
		n.useSMs(g)
		n.useMedia(g)
		n.useTraffic(g)
		n.usePower(g, passed)
	}
}

// usePower derives power, temperature and clocks from the activity: idle power, and the rest up to
// the limit in proportion to SMs, tensor cores and memory at work. Beyond the limit the clocks
// fall.
func (n *Node) usePower(g *simGPU, passed time.Duration) {
	s := &g.sample
	m := &g.model

	if passed > 0 { // under the power of the step that has ended
		target := g.restingTemperature() + fullLoadCelsius*(s.watts-m.idleWatts)/(m.limitWatts-m.idleWatts)
		s.temperature += (target - s.temperature) * (1 - math.Exp(-passed.Seconds()/thermalTime.Seconds()))
	}

	load := 0.62*s.activity.SM + 0.18*s.activity.Tensor + 0.35*s.activity.DRAM
	load *= 1 + wattsRippleShare*noise(g.noise, n.step)
	wanted := (m.limitWatts - m.idleWatts) * load
	dynamic := min(wanted, m.limitWatts-m.idleWatts)
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

// slowDown reduces the clock of a GPU that is hot, and of one that the power supply slows down, by
// faults. What is done in hardware halves it.
func (n *Node) slowDown(g *simGPU) {
	s := &g.sample
	n.eachActiveFault(g.index, n.at, func(f *FaultSpec) {
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

// restingTemperature differs a little with the GPU's place in the air stream.
func (g *simGPU) restingTemperature() float64 { return 34 + float64(g.noise%5) }

// useTraffic adds up what the tasks send, and receive as much, over PCIe and NVLink; NVLink is off
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
