package poll

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestEstimatesAddUpToTheBoard: whatever runs where, the instances' and the unallocated part are
// the GPU's, in watts and in joules.
func TestEstimatesAddUpToTheBoard(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))

	for range 2000 {
		tr := newTestGPU()
		at := time.Unix(1000, 0)
		energy := rng.Float64() * 1e6
		var counted, first float64 // what all counters grew by, destroyed instances' too

		for step := range 5 {
			g := migGPU()

			g.Instances = g.Instances[:rng.IntN(3)]
			for i := range g.Instances {
				switch rng.IntN(5) {
				case 0: // its activity is unknown
				case 1:
					g.Instances[i].SMs = gpu.None[int]()
				case 2:
					g.Instances[i].Activity.GraphicsEngine = gpu.Some(0.0)
				default:
					g.Instances[i].Activity.GraphicsEngine = gpu.Some(rng.Float64() * 1.2) // the hardware says more than 1 at times
				}
			}

			if rng.IntN(3) > 0 {
				g.ActivitySource = gpu.ActivityGPM
			}

			gpuWatts := rng.Float64() * 400
			energy += gpuWatts

			g.Readings.PowerWatts, g.Readings.EnergyJoules = gpu.Some(gpuWatts), gpu.Some(energy)
			if rng.IntN(2) == 0 {
				g.Readings.Processes = gpu.Some([]gpu.Process{})
			}

			before := energyByInstance(tr)
			tr.recordReading(g, at)
			at = at.Add(time.Second)
			counted += sumGrowth(before, energyByInstance(tr))

			unallocated, ok := tr.last.Power.UnallocatedWatts.Get()
			if !ok || unallocated < 0 {
				t.Fatalf("unallocated %v", tr.last.Power.UnallocatedWatts)
			}

			sum := unallocated

			for i := range tr.last.Instances {
				w := tr.last.Instances[i].PowerWatts
				if w.Present() != tr.last.Instances[i].SMs.Present() || w.Or(0) < 0 {
					t.Fatalf("estimate %v of an instance with %v SMs", w, tr.last.Instances[i].SMs)
				}

				sum += w.Or(0)
			}

			if math.Abs(sum-gpuWatts) > 1e-9 {
				t.Fatalf("watts add up to %v, the GPU draws %v", sum, gpuWatts)
			}

			if step == 0 {
				first = energy
			}
		}

		if want := energy - first; math.Abs(counted-want) > 1e-6 {
			t.Fatalf("joules add up to %v, the GPU spent %v", counted, want)
		}
	}
}

// energyByInstance is every energy counter by what it belongs to; the zero key is the unallocated
// part.
func energyByInstance(tr *trackedGPU) map[gpu.DeviceID]float64 {
	out := map[gpu.DeviceID]float64{{}: tr.totals.EnergyUnallocatedJoules.Or(gpu.Counter{}).Value}
	for i := range tr.last.Instances {
		gi := &tr.last.Instances[i]
		out[gpu.IDOfInstance(tr.last.UUID, gi)] = gi.EnergyJoules.Or(gpu.Counter{}).Value
	}

	return out
}

// newTestGPU is a GPU that has not been read yet.
func newTestGPU() *trackedGPU {
	return newTrackedGPU(uuidA, time.Time{}, &Options{StaleAfter: time.Hour, Logger: log.NewNopLogger()})
}

func sumGrowth(before, after map[gpu.DeviceID]float64) float64 {
	var sum float64
	for k, v := range after {
		sum += v - before[k]
	}

	return sum
}

func TestActivePowerGoesToWhatIsActive(t *testing.T) {
	tr := newTestGPU()
	tr.recordReading(idleSlices(49), time.Unix(0, 0))
	tr.recordReading(idleSlices(49), time.Unix(1, 0))
	busy := migGPU() // 200 W
	busy.Instances[0].Activity.GraphicsEngine, busy.Instances[1].Activity.GraphicsEngine = gpu.Some(0.9), gpu.Some(0.3)
	tr.recordReading(busy, time.Unix(2, 0))

	g := tr.last
	if g.Power.Method != gpu.PowerByActivity || g.Power.IdleWatts != gpu.Some(49.0) {
		t.Errorf("method %q, idle %v; want activity and the 49 W seen while nothing ran", g.Power.Method, g.Power.IdleWatts)
	}

	// Idle by SM share: 42/98 of 49 W each; the 151 W of work as 3 to 1.
	for i, want := range []float64{21 + 151*0.75, 21 + 151*0.25} {
		if got := g.Instances[i].PowerWatts.Or(-1); math.Abs(got-want) > 1e-9 {
			t.Errorf("instance %d draws %v W, want %v", i, got, want)
		}
	}

	if got := g.Power.UnallocatedWatts.Or(-1); math.Abs(got-7) > 1e-9 {
		t.Errorf("unallocated %v W, want 7: idle power of the SMs that no instance has", got)
	}

	busy.Instances[1].Activity = gpu.Activity{}
	tr.recordReading(busy, time.Unix(3, 0))

	if g := tr.last; g.Power.Method != gpu.PowerUnallocated || math.Abs(g.Power.UnallocatedWatts.Or(0)-158) > 1e-9 {
		t.Errorf("activity unknown: method %q, unallocated %v; want all 151 W of work and 7 W idle", g.Power.Method,
			g.Power.UnallocatedWatts)
	}
}

// The parts of instances that have all SMs add up to the GPU's power, but for rounding.
func TestNothingIsUnallocatedIfInstancesHaveAllSMs(t *testing.T) {
	for watts := 100.0; watts < 101; watts += 0.01 {
		tr := newTestGPU()
		tr.recordReading(idleSlices(49), time.Unix(0, 0))
		tr.recordReading(idleSlices(49), time.Unix(1, 0))
		busy := migGPU()
		busy.Readings.PowerWatts = gpu.Some(watts)
		busy.Instances[0].SMs = gpu.Some(56)
		busy.Instances[0].Activity.GraphicsEngine = gpu.Some(0.9)
		busy.Instances[1].Activity.GraphicsEngine = gpu.Some(0.3)
		tr.recordReading(busy, time.Unix(2, 0))

		if got := tr.last.Power.UnallocatedWatts; got != gpu.Some(0.0) {
			t.Fatalf("of %v W %v are unallocated, want 0", watts, got)
		}
	}
}

func TestEnergyOfANewInstanceBeginsAtZero(t *testing.T) {
	tr := newTestGPU()
	g := migGPU()
	g.Instances[0].Activity.GraphicsEngine, g.Instances[1].Activity.GraphicsEngine = gpu.Some(1.0), gpu.Some(1.0)
	tr.recordReading(g, time.Unix(1, 0))
	g = migGPU()
	g.Readings.EnergyJoules = gpu.Some(1200.0)
	g.Instances[0].Placement = gpu.Some(gpu.Placement{Start: 0, Size: 2}) // same id, repartitioned
	tr.recordReading(g, time.Unix(2, 0))

	if e := tr.last.Instances[0].EnergyJoules.Or(gpu.Counter{Value: -1}); e.Value != 0 || !e.Since.Equal(time.Unix(2, 0)) {
		t.Errorf("energy of the layout change instance %+v, want 0 from now", e)
	}

	if e := tr.last.Instances[1].EnergyJoules.Or(gpu.Counter{}); e.Value <= 0 || !e.Since.Equal(time.Unix(1, 0)) {
		t.Errorf("energy of the instance that stayed %+v, want more than 0 from its start", e)
	}
}

// TestEnergySurvivesALostRight: a GPU instance that does not show for lack of permission keeps its
// energy counter, and its share of what was spent meanwhile is unallocated. One that was destroyed
// meanwhile starts again.
func TestEnergySurvivesALostRight(t *testing.T) {
	tr := newTestGPU()
	all := migGPU()
	all.Instances[1].ComputeInstances = nil // shows only with the right to list GPU instances
	gpuWatts := 1000.0
	see := func(at int64, errs []gpu.ReadError, instances ...gpu.GPUInstance) {
		g := all
		gpuWatts += 100
		g.Readings.PowerWatts, g.Readings.EnergyJoules = gpu.Some(100.0), gpu.Some(gpuWatts)
		g.Errors, g.Instances = errs, cloneInstances(instances)
		tr.recordReading(g, time.Unix(at, 0))
	}
	energy := func() gpu.Counter { return tr.last.Instances[1].EnergyJoules.Or(gpu.Counter{Value: -1}) }
	denied := []gpu.ReadError{{Reading: gpu.ReadingMIG, Err: gpu.ErrNoPermission}}
	see(1, nil, all.Instances...)
	see(2, nil, all.Instances...)

	before := energy()
	if before.Value <= 0 {
		t.Fatalf("energy %+v, want some", before)
	}

	unallocated := tr.totals.EnergyUnallocatedJoules.Or(gpu.Counter{}).Value
	see(3, denied, all.Instances[0])
	see(4, denied, all.Instances[0])

	if now := tr.totals.EnergyUnallocatedJoules.Or(gpu.Counter{}).Value; now <= unallocated {
		t.Errorf("unallocated energy went from %v to %v while an instance was out of sight", unallocated, now)
	}

	see(5, nil, all.Instances...)

	if after := energy(); after.Value < before.Value || !after.Since.Equal(before.Since) {
		t.Errorf("energy went from %+v to %+v while the right was lost", before, after)
	}

	see(6, denied, all.Instances[0])
	see(7, nil, all.Instances[0])
	see(8, nil, all.Instances...)

	if after := energy(); after.Value != 0 || !after.Since.Equal(time.Unix(8, 0)) {
		t.Errorf("energy of an instance that was destroyed out of sight and created again: %+v, want 0 from now", after)
	}
}

// TestEnergyOverAFailedReadingOfTheMode: the energy until a reading that cannot tell whether MIG is
// on is shared with the next one.
func TestEnergyOverAFailedReadingOfTheMode(t *testing.T) {
	tr := newTestGPU()
	gpuWatts := 0.0
	read := func(at int64, fail bool) {
		g := migGPU()
		gpuWatts += 100

		g.Readings.PowerWatts, g.Readings.EnergyJoules = gpu.Some(100.0), gpu.Some(gpuWatts)
		if fail {
			g.MIG = gpu.MIGState{}
			g.Instances = nil
			g.Errors = []gpu.ReadError{{Reading: gpu.ReadingMIG, Err: gpu.ErrUnavailable}}
		}

		tr.recordReading(g, time.Unix(at, 0))
	}
	sum := func() (joules float64) {
		joules = tr.totals.EnergyUnallocatedJoules.Or(gpu.Counter{Value: math.NaN()}).Value
		for i := range tr.last.Instances {
			joules += tr.last.Instances[i].EnergyJoules.Or(gpu.Counter{Value: math.NaN()}).Value
		}

		return joules
	}
	read(1, false)
	read(2, false)
	read(3, true)

	if got := sum(); len(tr.last.Instances) != 2 || math.Abs(got-100) > 1e-9 {
		t.Errorf("without the mode: %v J of %d instances and the rest, want the 100 before", got, len(tr.last.Instances))
	}

	read(4, false)

	if got := sum(); math.Abs(got-300) > 1e-9 {
		t.Errorf("%v J, want all 300", got)
	}
}
