package poll

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	// minEnergyWindow is the least time over which we compute a power from the growth of an energy
	// counter: drivers update the counter only a few times a second.
	minEnergyWindow = 500 * time.Millisecond
	// minIdleWindow is the least time over which we compute a power to learn the idle power. If the
	// driver updates the counter every 100 ms, a power over half a second is wrong by up to a
	// fifth, and the lowest of many such powers is far too low.
	minIdleWindow = 10 * time.Second
	// maxIdleWindow is the longest such time.
	maxIdleWindow = 10 * time.Minute
)

// energyWindow is the time over which we compute a mean power from an energy counter. The zero
// energyWindow has not begun.
type energyWindow struct {
	began  time.Time
	joules float64 // the counter when the window began
	open   bool    // the window has begun
}

// measure returns the mean power since the window began, and begins the next window. The power is
// absent, and the same window goes on, until the window is as long as least and the counter has
// grown: even an idle GPU draws power, so the driver has not updated a counter that stands still.
// If the window is longer than most, or the counter has restarted, the power is absent and a new
// window begins.
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

// derivedPower is the power, by the energy counter, of a GPU that reports no power. A B200 with MIG
// is one.
type derivedPower struct {
	window energyWindow
	watts  gpu.Opt[float64] // of the last window that has ended
}

// fillPowerFromEnergy sets the power of a GPU that reports none to the mean over the last window, if
// it has an energy counter, and reports whether it did.
func (t *trackedGPU) fillPowerFromEnergy(g *gpu.GPU) bool {
	d := &t.derived
	at := g.Readings.EnergyAt
	joules, hasCounter := g.Readings.EnergyJoules.Get()

	if g.Readings.PowerWatts.Present() {
		*d = derivedPower{}
		return false
	}

	if !hasCounter {
		return false
	}

	watts := d.window.measure(joules, at, minEnergyWindow, t.maxGap)

	// A reading soon after another, as after an event, has no window of its own yet: it gets the
	// power of the last one.
	if !watts.Present() && d.window.open && !d.window.began.Equal(at) &&
		at.Sub(d.window.began) < minEnergyWindow {
		watts = d.watts
	}

	d.watts = watts
	g.Readings.PowerWatts = watts

	return watts.Present()
}

// measureRest returns the power of a GPU at rest, from which update learns the idle power; absent
// while the GPU has not been quiet for quietWindows. It is the power that the driver reports or, if
// it reports none, the mean by the energy counter over at least minIdleWindow.
func (p *idlePower) measureRest(g *gpu.GPU) gpu.Opt[float64] {
	joules, hasCounter := g.Readings.EnergyJoules.Get()

	if p.quiet < quietWindows {
		p.rest = energyWindow{}
		return gpu.None[float64]()
	}

	if !g.Power.FromEnergy {
		return g.Readings.PowerWatts
	}

	if !hasCounter {
		return gpu.None[float64]()
	}

	return p.rest.measure(joules, g.Readings.EnergyAt, minIdleWindow, maxIdleWindow)
}
