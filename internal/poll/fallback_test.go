package poll

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// gpmSource is a driver that measures the activity of the first GPU where it is asked to; it has no GPM for the second.
type gpmSource struct {
	*fakeSource
	asked func(gpu.UUID) bool
}

func (s *gpmSource) Read(id gpu.UUID) (gpu.GPU, error) {
	g, err := s.fakeSource.Read(id)
	if id == uuidA && s.asked(id) {
		g.ActivitySource = gpu.ActivityGPM
		for i := range g.Instances {
			g.Instances[i].Activity = gpu.Activity{GraphicsEngine: gpu.Some(0.5), SM: gpu.Some(0.5)}
		}
	}
	return g, err
}

// tellingProfiler answers for all GPUs but those that are left out, with instances unless they are left out.
type tellingProfiler struct {
	err                     error
	without                 gpu.UUID
	withoutInstances, blank bool
	now                     func() time.Time
}

func (p *tellingProfiler) Profile(s *gpu.Snapshot) (map[gpu.UUID]gpu.Profiling, error) {
	out := map[gpu.UUID]gpu.Profiling{}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.UUID == p.without {
			continue
		}
		answer := gpu.Profiling{LayoutGeneration: g.MIG.LayoutGeneration, Source: gpu.ActivityDCGM}
		if !p.blank {
			answer.Time = p.now()
			answer.Board.GraphicsEngine = gpu.Some(0.25)
			if !p.withoutInstances {
				answer.Instances = map[gpu.InstanceID]gpu.Activity{}
				for k := range g.Instances {
					answer.Instances[g.Instances[k].ID] = gpu.Activity{GraphicsEngine: gpu.Some(0.25), SM: gpu.Some(0.25)}
				}
			}
		}
		out[g.UUID] = answer
	}
	return out, p.err
}

// fallbackNode is a MIG GPU with GPM and a GPU without; each second takes 100 J.
type fallbackNode struct {
	*harness
	source   *gpmSource
	profiler *tellingProfiler
	joules   float64
}

func startFallback(t *testing.T) (n *fallbackNode, stop func() error) {
	n = &fallbackNode{source: &gpmSource{fakeSource: newFakeSource(uuidA, uuidB)}, profiler: &tellingProfiler{}}
	n.source.gpus[uuidA] = migGPU()
	n.harness = start(t, n.source, withProfiler(n.profiler))
	n.source.asked, n.profiler.now = n.ProfilerFails, n.clock.Now
	return n, n.run()
}

// second lets one pass and returns who tells the activity of both GPUs.
func (n *fallbackNode) second() (a, b gpu.ActivitySource) {
	n.t.Helper()
	n.joules += 100
	g := n.source.gpus[uuidA]
	g.Readings.EnergyJoules, g.Readings.PowerWatts = gpu.Some(n.joules), gpu.Some(100.0)
	n.source.set(func() { n.source.gpus[uuidA] = g })
	s := n.step(time.Second)
	return find(n.t, s, uuidA).ActivitySource, find(n.t, s, uuidB).ActivitySource
}

// energy is what has been shared among the instances of the MIG GPU, and the rest.
func (n *fallbackNode) energy() (sum float64) {
	g := find(n.t, n.Current(), uuidA)
	for i := range g.Instances {
		sum += g.Instances[i].EnergyJoules.Or(gpu.Counter{}).Value
	}
	return sum + g.Totals.EnergyUnallocatedJoules.Or(gpu.Counter{}).Value
}

// TestFallBackToTheDriver: where the profiler says nothing of a GPU, the driver is asked for it as soon as the last answer does not
// count any more, and no longer than the profiler needs to tell everything again. No energy is counted twice or lost meanwhile.
func TestFallBackToTheDriver(t *testing.T) {
	lost := errors.New("connection lost")
	for _, tt := range []struct {
		name   string
		change func(*tellingProfiler)
		after  int                // seconds until the driver is asked
		other  gpu.ActivitySource // of the GPU without GPM, meanwhile
	}{
		{"no answer", func(p *tellingProfiler) { p.err = lost }, 3, gpu.ActivityUnknown},
		{"not of this GPU", func(p *tellingProfiler) { p.without = uuidA }, 3, gpu.ActivityDCGM},
		{"not of its instances", func(p *tellingProfiler) { p.withoutInstances = true }, 10, gpu.ActivityDCGM},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, stop := startFallback(t)
			defer stop()
			for range 5 {
				n.second()
			}
			before := n.energy()
			tt.change(n.profiler)
			for second := 1; second <= 30; second++ {
				a, b := n.second()
				if (a == gpu.ActivityGPM) != (second >= tt.after) || second >= tt.after && b != tt.other {
					t.Errorf("second %d: by %q, the other by %q", second, a, b)
				}
				if spent := n.energy() - before; math.Abs(spent-float64(second)*100) > 1e-6 {
					t.Errorf("second %d: %v J", second, spent)
				}
			}
			*n.profiler = tellingProfiler{now: n.clock.Now, withoutInstances: true}
			if a, _ := n.second(); a != gpu.ActivityGPM {
				t.Errorf("back without its instances: by %q", a)
			}
			n.profiler.withoutInstances = false
			a, b := n.second()
			g := find(t, n.Current(), uuidA)
			if a != gpu.ActivityDCGM || b != gpu.ActivityDCGM || g.Instances[0].Activity.SM != gpu.Some(0.25) {
				t.Errorf("back: by %q and %q, SM activity %v", a, b, g.Instances[0].Activity.SM)
			}
			if spent := n.energy() - before; math.Abs(spent-3200) > 1e-6 {
				t.Errorf("after it: %v J", spent)
			}
		})
	}
}

// TestPausedProfilerIsLeftAlone: another program uses the counters. An answer without any value is no failure.
func TestPausedProfilerIsLeftAlone(t *testing.T) {
	n, stop := startFallback(t)
	defer stop()
	for range 5 {
		n.second()
	}
	n.profiler.blank = true
	for range 60 {
		if a, _ := n.second(); a == gpu.ActivityGPM || n.ProfilerFails(uuidA) {
			t.Fatal("the driver was asked")
		}
	}
}
