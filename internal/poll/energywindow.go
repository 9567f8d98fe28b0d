package poll

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	// minEnergyWindow is the least time over which the growth of an energy counter is a power:
	// drivers update it some times a second.
	minEnergyWindow = 500 * time.Millisecond
	// minIdleWindow is that of a power that idle power is learned from. A counter that is updated
	// every 100 ms makes a power over half a second wrong by up to a fifth, and the lowest of many
	// such is far below the truth.
	minIdleWindow = 10 * time.Second
	maxIdleWindow = 10 * time.Minute
)

// energyWindow is the time over which the growth of an energy counter becomes a power. The zero
// energyWindow has not begun.
type energyWindow struct {
	began  time.Time
	joules float64 // the counter then
	open   bool
}

// measure returns the mean power since the window began, and begins the next one; absent if that is
// not known. Until the window is long enough, and until the counter moves, it stays as it is: a
// counter that stands still says nothing, since even an idle GPU draws power. A window longer than
// most, and one in which the counter began anew, is dropped.
func (w *energyWindow) measure(
	joules float64,
	at time.Time,
	least, most time.Duration,
) gpu.Opt[float64] {
	length := at.Sub(w.began)
	if w.open && joules == w.joules && length >= 0 {
		return gpu.None[float64]()
	}

	if !w.open || joules < w.joules || length < 0 || length > most {
		*w = energyWindow{began: at, joules: joules, open: true}
		return gpu.None[float64]()
	}

	if length < least {
		return gpu.None[float64]()
	}

	watts := (joules - w.joules) / length.Seconds()
	*w = energyWindow{began: at, joules: joules, open: true}

	return gpu.Some(watts)
}

// derivedPower is the power of a GPU that reports none, as a B200 with MIG, by its energy counter.
type derivedPower struct {
	window energyWindow
	watts  gpu.Opt[float64] // of the last window that has ended
}

// derivePower sets the power of a GPU that reports none to the mean over the last window, if its
// energy counter shows one, and reports whether it did.
func (t *trackedGPU) derivePower(g *gpu.GPU) bool {
	d := &t.derived
	at := g.Readings.EnergyAt
	joules, counts := g.Readings.EnergyJoules.Get()

	if g.Readings.PowerWatts.Present() {
		*d = derivedPower{}
		return false
	}

	if !counts {
		return false
	}

	watts := d.window.measure(joules, at, minEnergyWindow, t.maxGap)

	// A reading that comes soon after another, as after an event, is in the window that has begun
	// with that one.
	if !watts.Present() && d.window.open && !d.window.began.Equal(at) &&
		at.Sub(d.window.began) < minEnergyWindow {
		watts = d.watts
	}

	d.watts = watts
	g.Readings.PowerWatts = watts

	return watts.Present()
}

// measureRest returns the power that idle power may be learned from, of a reading after enough
// windows without work: the driver's own, or the mean by the energy counter over a longer time of
// rest.
func (p *idlePower) measureRest(g *gpu.GPU) gpu.Opt[float64] {
	joules, counts := g.Readings.EnergyJoules.Get()

	if p.quiet < quietWindows {
		p.rest = energyWindow{}
		return gpu.None[float64]()
	}

	if !g.Power.FromEnergy {
		return g.Readings.PowerWatts
	}

	if !counts {
		return gpu.None[float64]()
	}

	return p.rest.measure(joules, g.Readings.EnergyAt, minIdleWindow, maxIdleWindow)
}
