package poll

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// gpmSource is a driver that measures the activity of the first GPU on request; it has no GPM for
// the second.
type gpmSource struct {
	*fakeSource
}

func (s *gpmSource) ReadWith(id gpu.UUID, cues gpu.ReadCues) (gpu.GPU, error) {
	g, err := s.fakeSource.ReadWith(id, cues)
	if id == uuidA && cues.GPM {
		g.ActivitySource = gpu.ActivityGPM
		for i := range g.Instances {
			g.Instances[i].Activity = gpu.Activity{GraphicsEngine: gpu.Some(0.5), SM: gpu.Some(0.5)}
		}
	}

	return g, err
}

// reportingProfiler answers for all GPUs but those that are left out, with instances unless they
// are left out.
type reportingProfiler struct {
	err              error
	without          gpu.UUID
	withoutInstances bool
	blank            bool   // answers have no values
	paused           bool   // answers have no values and say why
	behind           uint64 // answers are of an earlier layout generation
	now              func() time.Time
}

func (p *reportingProfiler) Profile(s *gpu.Snapshot) (map[gpu.UUID]gpu.Profiling, error) {
	out := map[gpu.UUID]gpu.Profiling{}

	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.UUID == p.without {
			continue
		}

		answer := gpu.Profiling{LayoutGeneration: g.MIG.LayoutGeneration - p.behind, Source: gpu.ActivityDCGM,
			Paused: p.paused}
		if !p.blank && !p.paused {
			answer.Time = p.now()

			answer.GPU.GraphicsEngine = gpu.Some(0.25)
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
	profiler *reportingProfiler
	joules   float64
}

func startFallback(t *testing.T, change ...func(*Options)) (n *fallbackNode, stop func() error) {
	n = &fallbackNode{source: &gpmSource{fakeSource: newFakeSource(uuidA, uuidB)}, profiler: &reportingProfiler{}}
	n.source.gpus[uuidA] = migGPU()
	n.harness = newHarness(t, n.source, func(o *Options) {
		withProfiler(n.profiler)(o)
		o.ReplaceProfiler = true

		for _, c := range change {
			c(o)
		}
	})
	n.profiler.now = n.clock.Now

	return n, n.startLoop()
}

// pollSecond lets one pass and returns the source of the activity of both GPUs.
func (n *fallbackNode) pollSecond() (a, b gpu.ActivitySource) {
	n.t.Helper()
	n.joules += 100
	g := n.source.gpus[uuidA]
	g.Readings.EnergyJoules, g.Readings.PowerWatts = gpu.Some(n.joules), gpu.Some(100.0)
	n.source.set(func() { n.source.gpus[uuidA] = g })
	s := n.pollAfter(time.Second)

	return findGPU(n.t, s, uuidA).ActivitySource, findGPU(n.t, s, uuidB).ActivitySource
}

// totalEnergy is what has been shared among the instances of the MIG GPU, and the rest.
func (n *fallbackNode) totalEnergy() (sum float64) {
	g := findGPU(n.t, n.Current(), uuidA)
	for i := range g.Instances {
		sum += g.Instances[i].EnergyJoules.Or(gpu.Counter{}).Value
	}

	return sum + g.Totals.EnergyUnallocatedJoules.Or(gpu.Counter{}).Value
}

// TestFallBackToTheDriver: if the profiler reports nothing of a GPU, the driver is asked for it as
// soon as the last answer does not count any more, and no longer than the profiler needs to report
// everything again. No energy is counted twice or lost meanwhile.
func TestFallBackToTheDriver(t *testing.T) {
	lost := errors.New("connection lost")

	for _, tt := range []struct {
		name   string
		change func(*reportingProfiler)
		after  int                // seconds until the driver is asked
		other  gpu.ActivitySource // of the GPU without GPM, meanwhile
	}{
		{"no answer", func(p *reportingProfiler) { p.err = lost }, 3, gpu.ActivityUnknown},
		{"not of this GPU", func(p *reportingProfiler) { p.without = uuidA }, 3, gpu.ActivityDCGM},
		{"not of its instances", func(p *reportingProfiler) { p.withoutInstances = true }, 10, gpu.ActivityDCGM},
		{"of a passed layout", func(p *reportingProfiler) { p.behind = 1 }, 10, gpu.ActivityUnknown},
		{"no values", func(p *reportingProfiler) { p.blank = true }, 3, gpu.ActivityDCGM},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, stop := startFallback(t)
			defer stop()

			for range 5 {
				n.pollSecond()
			}

			before := n.totalEnergy()
			tt.change(n.profiler)

			for second := 1; second <= 30; second++ {
				a, b := n.pollSecond()
				if (a == gpu.ActivityGPM) != (second >= tt.after) || second >= tt.after && b != tt.other {
					t.Errorf("second %d: by %q, the other by %q, want GPM and %q from second %d on", second, a, b, tt.other, tt.after)
				}

				if spent := n.totalEnergy() - before; math.Abs(spent-float64(second)*100) > 1e-6 {
					t.Errorf("second %d: %v J", second, spent)
				}
			}

			*n.profiler = reportingProfiler{now: n.clock.Now, withoutInstances: true}
			if a, _ := n.pollSecond(); a != gpu.ActivityGPM {
				t.Errorf("back without its instances: by %q", a)
			}

			n.profiler.withoutInstances = false
			for second := 1; second <= 5; second++ {
				if a, _ := n.pollSecond(); a != gpu.ActivityGPM {
					t.Errorf("complete for %d s: by %q", second, a)
				}
			}

			a, b := n.pollSecond()
			g := findGPU(t, n.Current(), uuidA)
			cmptest.Equal(t, "sources with the profiler back", []gpu.ActivitySource{a, b},
				[]gpu.ActivitySource{gpu.ActivityDCGM, gpu.ActivityDCGM})
			cmptest.Equal(t, "SM activity with the profiler back", g.Instances[0].Activity.SM, gpu.Some(0.25))

			if spent := n.totalEnergy() - before; math.Abs(spent-3700) > 1e-6 {
				t.Errorf("after it: %v J", spent)
			}
		})
	}
}

// TestNoGapAfterAReconnect: a profiler that is back first answers without values, then without
// those of instances. The driver is asked until it reports everything again; no second is without
// activity.
func TestNoGapAfterAReconnect(t *testing.T) {
	for _, outage := range []int{4, 8, 30} {
		n, stop := startFallback(t)
		n.pollSecond()

		n.profiler.err = errors.New("connection lost")
		for range outage {
			n.pollSecond()
		}

		for second, p := range []reportingProfiler{
			{blank: true}, {blank: true}, {without: uuidA}, {withoutInstances: true}, {withoutInstances: true}, {blank: true},
			{}, {}, {}, {}, {}, {}, {},
		} {
			p.now = n.clock.Now
			*n.profiler = p

			want := gpu.ActivityGPM
			sm := 0.5

			if second >= 11 {
				want = gpu.ActivityDCGM
				sm = 0.25
			}

			a, _ := n.pollSecond()
			if got := findGPU(t, n.Current(), uuidA).Instances[0].Activity.SM; a != want || got != gpu.Some(sm) {
				t.Errorf("outage of %d s, second %d after it: by %q, SM activity %v", outage, second+1, a, got)
			}
		}

		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

// TestProfilerThatAnswersInPart: one that reports everything now and then, and leaves instances out
// or has no values in between, is not used again. No second is without activity.
func TestProfilerThatAnswersInPart(t *testing.T) {
	for _, part := range []reportingProfiler{{withoutInstances: true}, {blank: true}, {behind: 1}} {
		n, stop := startFallback(t)
		n.pollSecond()

		n.profiler.err = errors.New("connection lost")
		for range 5 {
			n.pollSecond()
		}

		for second := range 60 {
			*n.profiler = reportingProfiler{}
			if second%4 == 3 {
				*n.profiler = part
			}

			n.profiler.now = n.clock.Now
			if a, _ := n.pollSecond(); a != gpu.ActivityGPM {
				t.Errorf("%+v, second %d: by %q", part, second, a)
			}
		}

		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

// TestOneCompleteAnswerIsNotEnough: a profiler that reports everything once and then fails, or
// omits the GPU, is not used again, also if its values count for long.
func TestOneCompleteAnswerIsNotEnough(t *testing.T) {
	for _, failing := range []reportingProfiler{{err: errors.New("connection lost")}, {without: uuidA}} {
		n, stop := startFallback(t, func(o *Options) { o.StaleAfter = 20 * time.Second })
		n.pollSecond()

		n.profiler.err = errors.New("connection lost")
		for range 25 {
			n.pollSecond()
		}

		*n.profiler = reportingProfiler{now: n.clock.Now}
		n.pollSecond()
		failing.now = n.clock.Now

		*n.profiler = failing
		for second := range 15 {
			if a, _ := n.pollSecond(); a != gpu.ActivityGPM {
				t.Errorf("%+v, second %d: by %q", failing, second, a)
			}
		}

		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

// TestPausedProfilerIsLeftAlone: another program uses the counters. The driver is not asked, and no
// longer if it was.
func TestPausedProfilerIsLeftAlone(t *testing.T) {
	for _, before := range []reportingProfiler{{}, {err: errors.New("connection lost")}, {paused: true}} {
		n, stop := startFallback(t)
		before.now = n.clock.Now

		*n.profiler = before
		for range 5 {
			n.pollSecond()
		}

		*n.profiler = reportingProfiler{paused: true}
		for range 60 {
			if a, _ := n.pollSecond(); a == gpu.ActivityGPM {
				t.Fatal("the driver was asked")
			}
		}

		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}
