package poll

import (
	"math"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// energyReader reads an idle GPU that reports no power.
type energyReader struct {
	*trackedGPU
	at   time.Time
	late time.Duration // how long after its beginning a reading reads the counter
}

func newEnergyReader() *energyReader {
	opts := &Options{StaleAfter: 3 * time.Second, Logger: log.NewNopLogger()}
	return &energyReader{newTrackedGPU(uuidA, time.Time{}, opts), time.Unix(1000, 0), 0}
}

// after reads the energy counter some time after the last reading, and returns the power.
func (r *energyReader) after(d time.Duration, joules float64) gpu.Opt[float64] {
	r.at = r.at.Add(d)
	g := idleSlices(0)
	g.Readings.PowerWatts, g.Readings.EnergyJoules = gpu.None[float64](), gpu.Some(joules)
	g.Readings.EnergyAt = r.at.Add(r.late)
	r.recordReading(g, r.at)

	return r.last.Readings.PowerWatts
}

// TestEnergyCounterThatStandsStill is no power of 0 W: even an idle GPU draws some.
func TestEnergyCounterThatStandsStill(t *testing.T) {
	r := newEnergyReader()
	none := gpu.None[float64]()
	r.after(0, 5000)

	for range 5 {
		cmptest.Equal(t, "power", r.after(time.Second, 5000), none)
		cmptest.Equal(t, "method", r.last.Power.Method, gpu.PowerUnknown)
	}

	cmptest.Equal(t, "power over a window of which most is not known", r.after(time.Second, 5100), none)
	cmptest.Equal(t, "power after that", r.after(time.Second, 5200), gpu.Some(100.0))

	cmptest.Equal(t, "the counter is updated every other second", r.after(time.Second, 5200), none)
	cmptest.Equal(t, "the mean of both", r.after(time.Second, 5500), gpu.Some(150.0))
}

// TestPowerAfterAnOutage is not the mean over it, nor what a counter that began anew has grown past
// its old value.
func TestPowerAfterAnOutage(t *testing.T) {
	for name, away := range map[string]func(r *energyReader) time.Duration{
		"the GPU was down": func(r *energyReader) time.Duration {
			r.markDown(gpu.ErrLost, r.at)
			return time.Second
		},
		"no reading for ten minutes": func(*energyReader) time.Duration { return 10 * time.Minute },
	} {
		r := newEnergyReader()
		r.after(0, 5000)
		cmptest.Equal(t, name+": before", r.after(time.Second, 5100), gpu.Some(100.0))
		cmptest.Equal(t, name+": after", r.after(away(r), 5200), gpu.None[float64]())
		cmptest.Equal(t, name+": a second later", r.after(time.Second, 5500), gpu.Some(300.0))
	}
}

// TestPowerOfFrequentReadings: they share a window that is long enough, and those between two polls
// make no hole.
func TestPowerOfFrequentReadings(t *testing.T) {
	r := newEnergyReader()
	r.after(0, 5000)
	want := gpu.None[float64]()

	for i := 1; i <= 12; i++ {
		if i%3 == 0 {
			want = gpu.Some(100.0)
		}

		cmptest.Equal(t, "power of readings every 200 ms", r.after(200*time.Millisecond, 5000+20*float64(i)), want)
	}

	r = newEnergyReader()
	r.after(0, 5000)
	r.after(time.Second, 5100)
	cmptest.Equal(t, "an event after a poll", r.after(100*time.Millisecond, 5190), gpu.Some(100.0))
	cmptest.Equal(t, "the next poll", r.after(900*time.Millisecond, 5300), gpu.Some(200.0))
}

// TestPowerOfLateCounters is the growth over the time between two reads of the counter, not between
// the beginnings of their readings: every slow tier reads much else before it.
func TestPowerOfLateCounters(t *testing.T) {
	r := newEnergyReader()
	r.after(0, 5000)
	joules := 5000.0
	read := time.Duration(0)

	for i := range 30 {
		late := 10 * time.Millisecond
		if i%5 == 0 {
			late = 400 * time.Millisecond
		}

		joules += 128 * (time.Second + late - read).Seconds()
		r.late = late
		read = late

		watts := r.after(time.Second, joules).Or(0)
		if math.Abs(watts-128) > 1e-6 {
			t.Fatalf("reading %d: %v W, want 128", i, watts)
		}

		if idle := r.last.Power.IdleWatts.Or(128); i > 15 && math.Abs(idle-128) > 1e-6 {
			t.Fatalf("reading %d: idle power %v W, want 128", i, idle)
		}
	}
}

// TestIdlePowerByTheEnergyCounter: the lowest of many short means is what the counter's updates
// make of them. It is learned from long ones, and that of a sensor is not kept.
func TestIdlePowerByTheEnergyCounter(t *testing.T) {
	r := newEnergyReader()

	joules := 5000.0
	for i := range 40 {
		joules += []float64{60, 140}[i%2] // the counter is updated late, and late no more
		r.after(time.Second, joules)

		if idle, ok := r.last.Power.IdleWatts.Get(); ok && (i < 10 || idle < 95) {
			t.Fatalf("after %d s: idle power %v, want 100 W after ten seconds", i, idle)
		}
	}

	if !r.last.Power.IdleWatts.Present() {
		t.Error("no idle power was learned")
	}

	for range 4 {
		r.at = r.at.Add(time.Second)
		r.recordReading(idleSlices(130), r.at)
	}

	cmptest.Equal(t, "by the sensor", r.last.Power.IdleWatts, gpu.Some(130.0))
}

// TestHiddenComputeInstances: what runs on an instance whose MIG devices are denied is unknown, not
// nothing.
func TestHiddenComputeInstances(t *testing.T) {
	g := idleSlices(200)
	g.Instances[0].Activity.GraphicsEngine = gpu.Some(0.5)

	g.Instances[1].ComputeInstances, g.Instances[1].Activity = nil, gpu.Activity{}
	for _, hidden := range []bool{false, true} {
		g.Instances[1].ComputeInstancesHidden = hidden
		tr := newTestGPU()
		readEverySecond(tr, g)

		cmptest.Equal(t, "the GPU's activity is known", tr.last.Activity.GraphicsEngine.Present(), !hidden)

		method := gpu.PowerByActivity
		if hidden {
			method = gpu.PowerUnallocated
		}

		cmptest.Equal(t, "method", tr.last.Power.Method, method)
	}
}
