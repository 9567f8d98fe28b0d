package poll

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestPowerByTheEnergyCounter: a GPU that reports no power with MIG on, as a B200, may still count
// energy. Its power is the mean since the last reading then, and the estimates of its instances
// follow.
func TestPowerByTheEnergyCounter(t *testing.T) {
	tr := newTestGPU()
	at := time.Unix(1000, 0)
	read := func(joules gpu.Opt[float64]) *gpu.GPU {
		g := migGPU()
		for i := range g.Instances {
			g.Instances[i].Activity.GraphicsEngine = gpu.Some(0.5)
		}

		g.Readings.PowerWatts = gpu.None[float64]()
		g.Readings.EnergyJoules = joules
		g.Readings.EnergyAt = at
		g.ActivitySource = gpu.ActivityGPM
		tr.recordReading(g, at)
		at = at.Add(2 * time.Second)

		return &tr.last
	}
	wantUnknown := func(when string, g *gpu.GPU) {
		t.Helper()
		cmptest.Equal(t, when+": power", g.Readings.PowerWatts, gpu.None[float64]())
		cmptest.Equal(t, when+": method", g.Power.Method, gpu.PowerUnknown)
		cmptest.Equal(t, when+": unallocated", g.Power.UnallocatedWatts, gpu.None[float64]())

		for _, gi := range g.Instances {
			cmptest.Equal(t, when+": estimate of "+gi.Profile, gi.PowerWatts, gpu.None[float64]())
		}
	}

	wantUnknown("before a window has passed", read(gpu.Some(5000.0)))

	g := read(gpu.Some(5600.0))
	cmptest.Equal(t, "power", g.Readings.PowerWatts, gpu.Some(300.0))
	cmptest.Equal(t, "it is said to be by energy", g.Power.FromEnergy, true)
	cmptest.Equal(t, "method", g.Power.Method, gpu.PowerByActivity)

	watts := g.Power.UnallocatedWatts.Or(0)
	joules := tr.totals.EnergyUnallocatedJoules.Or(gpu.Counter{}).Value

	for _, gi := range g.Instances {
		if own, ok := gi.PowerWatts.Get(); !ok || own <= 0 {
			t.Errorf("estimate of %s: %v", gi.Profile, gi.PowerWatts)
		}

		watts += gi.PowerWatts.Or(0)
		joules += gi.EnergyJoules.Or(gpu.Counter{}).Value
	}

	if watts < 299.999 || watts > 300.001 || joules < 599.999 || joules > 600.001 {
		t.Errorf("the parts add up to %v W and %v J, want 300 and 600", watts, joules)
	}

	wantUnknown("the counter began anew", read(gpu.Some(10.0)))
	cmptest.Equal(t, "power after that", read(gpu.Some(210.0)).Readings.PowerWatts, gpu.Some(100.0))
	wantUnknown("neither power nor energy", read(gpu.None[float64]()))
}

// TestMissingPowerIsSaid: a GPU in MIG mode that reports neither power nor energy has no estimates,
// and an error says why, which is counted once. Without MIG nothing is estimated, and before the
// energy counter has a window nothing is missing.
func TestMissingPowerIsSaid(t *testing.T) {
	tr := newTestGPU()
	at := time.Unix(1000, 0)

	for _, c := range []struct {
		when        string
		mig         bool
		watts       gpu.Opt[float64]
		joules      gpu.Opt[float64]
		denied      bool
		said        gpu.Opt[gpu.Reason]
		wantCounted float64
	}{
		{when: "an energy counter begins", mig: true, joules: gpu.Some(5000.0)},
		{when: "neither", mig: true, said: gpu.Some(gpu.ReasonNotSupported), wantCounted: 1},
		{when: "still neither", mig: true, said: gpu.Some(gpu.ReasonNotSupported), wantCounted: 1},
		{when: "MIG is off", wantCounted: 1},
		{when: "power", mig: true, watts: gpu.Some(90.0), wantCounted: 1},
		{when: "the reading failed", mig: true, denied: true, said: gpu.Some(gpu.ReasonNoPermission), wantCounted: 1},
		{when: "neither again", mig: true, said: gpu.Some(gpu.ReasonNotSupported), wantCounted: 2},
	} {
		g := migGPU()
		g.MIG.Enabled = gpu.Some(c.mig)
		g.Readings.PowerWatts = c.watts
		g.Readings.EnergyJoules = c.joules

		g.Readings.EnergyAt = at
		if c.denied {
			g.Errors = append(g.Errors, gpu.ReadError{Reading: gpu.ReadingPower, Err: gpu.ErrNoPermission})
		}

		tr.recordReading(g, at)
		at = at.Add(2 * time.Second)

		said := gpu.None[gpu.Reason]()

		for _, e := range tr.last.Errors {
			if e.Reading == gpu.ReadingPower {
				said = gpu.Some(e.Reason())
			}
		}

		cmptest.Equal(t, c.when+": said", said, c.said)

		counted := 0.0

		for _, e := range tr.totals.ReadErrors {
			if e.Reading == gpu.ReadingPower && e.Reason == gpu.ReasonNotSupported {
				counted = e.Value
			}
		}

		cmptest.Equal(t, c.when+": counted", counted, c.wantCounted)
	}
}
