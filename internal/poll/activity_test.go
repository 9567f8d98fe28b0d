package poll

import (
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// profiledGPU is a MIG GPU of two 3g with an activity of each instance.
func profiledGPU(first, second gpu.Opt[float64]) gpu.GPU {
	g := migGPU()
	g.ActivitySource = gpu.ActivityGPM

	g.Profiles[1].MemorySlices = 8
	for i, ratio := range []gpu.Opt[float64]{first, second} {
		g.Instances[i].MemorySlices = gpu.Some(4)
		for _, r := range g.Instances[i].Activity.All() {
			*r = ratio
		}
	}

	return g
}

// TestActivityIsRolledUp: NVIDIA's worked example, two 3g at 98.6 % on an A100, are 84.5 %.
func TestActivityIsRolledUp(t *testing.T) {
	tr := newTestGPU()
	g := profiledGPU(gpu.Some(0.986), gpu.Some(0.986))
	g.Activity.SM = gpu.Some(0.1) // the GPU's own counters give way
	tr.recordReading(g, time.Unix(1, 0))

	if !tr.last.ActivityRollup {
		t.Error("not marked as rolled up")
	}

	if got := tr.last.Activity.SM.Or(-1); math.Abs(got-0.845) > 0.0005 {
		t.Errorf("SM activity of the GPU %v, want 0.845", got)
	}

	if got := tr.last.Activity.DRAM.Or(-1); math.Abs(got-0.986) > 1e-9 {
		t.Errorf("DRAM activity of the GPU %v, want 0.986: both halves of the memory", got)
	}
}

func TestRollUpNeedsEveryInstance(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*gpu.GPU)
		want   gpu.Opt[float64] // SM activity
		rollup bool
	}{
		{"one does not report", func(g *gpu.GPU) { g.Instances[1].Activity = gpu.Activity{} }, gpu.None[float64](), true},
		{"one has no compute instance", func(g *gpu.GPU) {
			g.Instances[1].Activity, g.Instances[1].ComputeInstances = gpu.Activity{}, nil
		}, gpu.Some(0.5 * 42 / 98), true},
		{"one of unknown size", func(g *gpu.GPU) { g.Instances[1].SMs = gpu.None[int]() }, gpu.None[float64](), true},
		{"no instance at all", func(g *gpu.GPU) { g.Instances = nil }, gpu.Some(0.25), false},
		{"MIG is off", func(g *gpu.GPU) { g.MIG.Enabled, g.Instances = gpu.Some(false), nil }, gpu.Some(0.25), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTestGPU()
			g := profiledGPU(gpu.Some(0.5), gpu.Some(0.5))
			g.Activity.SM = gpu.Some(0.25)
			tt.change(&g)
			tr.recordReading(g, time.Unix(1, 0))

			got := tr.last.Activity.SM
			if got.Present() != tt.want.Present() || math.Abs(got.Or(0)-tt.want.Or(0)) > 1e-9 {
				t.Errorf("SM activity %v, want %v", got, tt.want)
			}

			cmptest.Equal(t, "rolled up", tr.last.ActivityRollup, tt.rollup)
		})
	}
}

// TestWhatCannotBeIsPassedOnAndCounted: a compute instance that is all of its GPU instance repeats
// its ratios, and does not count again.
func TestWhatCannotBeIsPassedOnAndCounted(t *testing.T) {
	tr := newTestGPU()
	g := profiledGPU(gpu.Some(0.5), gpu.Some(0.5))
	g.InvalidActivity = 3

	split := &g.Instances[0]
	split.ComputeInstances[0].Activity.SM = gpu.Some(1.1)
	split.ComputeInstances[1].Activity.SM = gpu.Some(1.1)

	whole := &g.Instances[1]
	whole.Activity.SM = gpu.Some(1.2)
	whole.ComputeInstances[0].Activity.SM = gpu.Some(1.2)

	tr.recordReading(g, time.Unix(1, 0))

	if got := tr.last.Instances[1].Activity.SM; got != gpu.Some(1.2) {
		t.Errorf("an activity of 1.2 was made %v", got)
	}

	if got := tr.totals.ActivityAnomalies.Or(gpu.Counter{}); got.Value != 6 || !got.Since.Equal(time.Unix(1, 0)) {
		t.Errorf("counted %+v; want 3 above 1 and 3 invalid", got)
	}

	plain := migGPU()
	fresh := newTestGPU()
	fresh.recordReading(plain, time.Unix(1, 0))

	if fresh.totals.ActivityAnomalies.Present() || fresh.last.ActivityRollup {
		t.Error("a GPU that nothing profiles has a count of what its profiling said")
	}
}

// TestAnomaliesOfAnAnswerCountOnce: a reading with the driver's own activity between two readings
// with the same answer of the profiler does not make its anomalies count again.
func TestAnomaliesOfAnAnswerCountOnce(t *testing.T) {
	tr := newTestGPU()
	tr.profiling = profilerReading{
		Profiling: gpu.Profiling{Source: gpu.ActivityDCGM, LayoutGeneration: 1, Invalid: 2}, requestedAt: time.Unix(1, 0),
	}

	tr.recordReading(migGPU(), time.Unix(1, 0))
	tr.recordReading(profiledGPU(gpu.Some(0.5), gpu.Some(0.5)), time.Unix(2, 0))
	tr.recordReading(migGPU(), time.Unix(3, 0))

	cmptest.Equal(t, "source", tr.last.ActivitySource, gpu.ActivityDCGM)
	cmptest.Equal(t, "anomalies", tr.totals.ActivityAnomalies.Or(gpu.Counter{}).Value, 2.0)
}

// fakeProfiler answers for the layout of the Snapshot that it is asked for.
type fakeProfiler struct {
	sm   float64
	err  error
	wait chan struct{} // nil: it answers at once
	seen []uint64      // layout generations
}

func (p *fakeProfiler) Profile(s *gpu.Snapshot) (map[gpu.UUID]gpu.Profiling, error) {
	if p.wait != nil {
		<-p.wait
	}

	out := map[gpu.UUID]gpu.Profiling{}

	for i := range s.GPUs {
		g := &s.GPUs[i]
		p.seen = append(p.seen, g.MIG.LayoutGeneration)

		answer := gpu.Profiling{
			LayoutGeneration: g.MIG.LayoutGeneration, Source: gpu.ActivityDCGM, GPU: gpu.Activity{SM: gpu.Some(p.sm)},
			Instances: map[gpu.InstanceID]gpu.Activity{}, ComputeInstances: map[[2]uint32]gpu.Activity{},
		}
		for k := range g.Instances {
			gi := &g.Instances[k]
			answer.Instances[gi.ID] = gpu.Activity{SM: gpu.Some(p.sm)}
			answer.ComputeInstances[[2]uint32{uint32(gi.ID),
				uint32(gi.ComputeInstances[0].ID)}] = gpu.Activity{SM: gpu.Some(p.sm)}
		}

		out[g.UUID] = answer
	}

	return out, p.err
}

func withProfiler(p Profiler) func(*Options) { return func(o *Options) { o.Profiler = p } }

func TestProfilerCompletesWhatTheDriverDoesNotTell(t *testing.T) {
	src := newFakeSource(uuidA, uuidB)
	src.gpus[uuidA] = migGPU()
	own := src.gpus[uuidB]
	own.ActivitySource, own.Activity.SM = gpu.ActivityGPM, gpu.Some(0.9)
	src.gpus[uuidB] = own
	p := &fakeProfiler{sm: 0.5}
	h := newHarness(t, src, withProfiler(p))
	stop := h.startLoop()
	defer stop()
	h.pollAfter(time.Second)
	s := h.pollAfter(time.Second)
	a := findGPU(t, s, uuidA)
	b := findGPU(t, s, uuidB)
	cmptest.Equal(t, "source of A", a.ActivitySource, gpu.ActivityDCGM)
	cmptest.Equal(t, "SM activity of a GPU instance", a.Instances[0].Activity.SM, gpu.Some(0.5))
	cmptest.Equal(t, "SM activity of a compute instance", a.Instances[1].ComputeInstances[0].Activity.SM, gpu.Some(0.5))

	if b.ActivitySource != gpu.ActivityGPM || b.Activity.SM != gpu.Some(0.9) {
		t.Errorf("what the driver said was replaced: %q, %v", b.ActivitySource, b.Activity.SM)
	}

	state := s.Sources[len(s.Sources)-1]
	if state.Name != gpu.SourceDCGM || !state.Up {
		t.Errorf("source state %+v", state)
	}

	p.err = errors.New("connection lost")

	s = h.pollAfter(10 * time.Second)
	if a := findGPU(t, s, uuidA); a.ActivitySource != "" || a.Instances[0].Activity.SM.Present() {
		t.Error("values outlive a profiler that is gone")
	}

	if state := s.Sources[len(s.Sources)-1]; state.Up || state.Err == nil {
		t.Errorf("source state %+v, want down with the reason", state)
	}
}

// TestProfilingEndsWithItsLayout: what was asked for one layout is laid to no other, whose ids may
// be the same.
func TestProfilingEndsWithItsLayout(t *testing.T) {
	src := newFakeSource(uuidA)
	src.gpus[uuidA] = migGPU()
	h := newHarness(t, src, withProfiler(&fakeProfiler{sm: 0.5}))
	stop := h.startLoop()
	defer stop()
	h.pollAfter(time.Second)

	if g := findGPU(t, h.pollAfter(time.Second), uuidA); !g.Instances[0].Activity.SM.Present() {
		t.Fatal("no activity to begin with")
	}

	src.set(func() {
		g := migGPU()
		g.Instances[0].Placement = gpu.Some(gpu.Placement{Start: 0, Size: 2})
		src.gpus[uuidA] = g
	})

	if g := findGPU(t, h.pollAfter(time.Second), uuidA); g.Instances[0].Activity.SM.Present() ||
		g.Instances[1].Activity.SM.Present() {
		t.Errorf("activity of the layout before: %v", g.Instances[0].Activity)
	}

	if g := findGPU(t, h.pollAfter(time.Second), uuidA); !g.Instances[0].Activity.SM.Present() {
		t.Error("no activity of the new layout in the poll after it was seen")
	}
}

// TestHungProfilerCostsNoReading: the GPUs are read all the same.
func TestHungProfilerCostsNoReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(uuidA)
		p := &fakeProfiler{wait: make(chan struct{})}
		h := newHarness(t, src, withProfiler(p))

		stop := h.startLoop()
		for range 7 {
			h.pollAfter(time.Second)
		}

		s := h.Current()
		if g := findGPU(t, s, uuidA); !g.Up || !g.LastRead.Equal(s.Time) {
			t.Errorf("the GPU is up: %v, read at %v of %v", g.Up, g.LastRead, s.Time)
		}

		cmptest.Equal(t, "profiler", s.Sources[len(s.Sources)-1], gpu.SourceState{Name: gpu.SourceDCGM, Err: gpu.ErrTimeout})
		cmptest.Equal(t, "hung calls", s.HungCalls, 1)
		close(p.wait)

		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// fakeJobs answers with a mapping or an error.
type fakeJobs struct {
	jobs  gpu.Jobs
	err   error
	asked []gpu.JobDevice
}

func (j *fakeJobs) Jobs(devices []gpu.JobDevice) (gpu.Jobs, error) {
	j.asked = devices
	return j.jobs, j.err
}

// TestJobsOfPartsOfAGPU: a job of the whole GPU, or one that may be there, may have any part of which no job is
// known. A job that is known is known.
func TestJobsOfPartsOfAGPU(t *testing.T) {
	own := gpu.JobDevice{Instance: gpu.Some(gpu.InstanceID(1))}
	other := gpu.JobDevice{Instance: gpu.Some(gpu.InstanceID(2))}

	for about, c := range map[string]struct {
		jobs gpu.Jobs
		want [2]bool // are they unknown
	}{
		"none":                        {gpu.Jobs{{}: nil, own: {"17"}, other: nil}, [2]bool{false, false}},
		"one of the whole GPU":        {gpu.Jobs{{}: {"16"}, own: {"17"}, other: nil}, [2]bool{false, true}},
		"unknown of the whole GPU":    {gpu.Jobs{own: {"17"}, other: nil}, [2]bool{false, true}},
		"unknown of one part":         {gpu.Jobs{{}: nil, own: {"17"}}, [2]bool{false, true}},
		"unknown, the folder is away": {nil, [2]bool{true, true}},
	} {
		gpus := []gpu.GPU{{Instances: []gpu.GPUInstance{{ID: 1}, {ID: 2}}}}
		attachJobs(gpus, c.jobs, time.Now())
		cmptest.Equal(t, about, [2]bool{gpus[0].Instances[0].JobsUnknown, gpus[0].Instances[1].JobsUnknown}, c.want)
	}
}

// TestJobsOfALostGPU: once another GPU has the index of a lost one, the file of that index says nothing of it.
func TestJobsOfALostGPU(t *testing.T) {
	gpus := []gpu.GPU{{Facts: gpu.Facts{UUID: uuidA}}, {Facts: gpu.Facts{UUID: uuidB}}}
	gpus[1].Instances = make([]gpu.GPUInstance, 1)
	attachJobs(gpus, gpu.Jobs{{}: {"16"}}, time.Now())
	cmptest.Equal(t, "jobs of the GPU", gpus[0].Jobs, []string{"16"})
	cmptest.Equal(t, "jobs of the lost GPU", gpus[1].Jobs, nil)
	cmptest.Equal(t, "unknown jobs of both, and of its instance",
		[]bool{gpus[0].JobsUnknown, gpus[1].JobsUnknown, gpus[1].Instances[0].JobsUnknown}, []bool{false, true, true})
}

func TestJobsAreLaidToTheirDevices(t *testing.T) {
	src := newFakeSource(uuidA, uuidB)
	src.gpus[uuidA] = migGPU()
	jobs := &fakeJobs{jobs: gpu.Jobs{
		{Index: 0}: nil,
		{Index: 0, Instance: gpu.Some(gpu.InstanceID(2))}: {"17", "18"},
		{Index: 1}: {"19"},
	}}
	h := newHarness(t, src, func(o *Options) { o.Jobs = jobs })
	stop := h.startLoop()
	defer stop()
	s := h.pollAfter(time.Second)
	a := findGPU(t, s, uuidA)
	b := findGPU(t, s, uuidB)
	got := []int{len(a.Jobs), len(a.Instances[0].Jobs), len(a.Instances[1].Jobs), len(b.Jobs)}
	cmptest.Equal(t, "number of jobs of A, its instances, and B", got, []int{0, 2, 0, 1})

	unknown := []bool{a.JobsUnknown, a.Instances[0].JobsUnknown, a.Instances[1].JobsUnknown, b.JobsUnknown}
	cmptest.Equal(t, "unknown jobs of A, its instances, and B", unknown, []bool{false, false, true, false})

	want := map[gpu.JobDevice]bool{{Index: 0}: true, {Index: 1}: true}
	for _, gi := range a.Instances {
		want[gpu.JobDevice{Instance: gpu.Some(gi.ID)}] = true
	}

	for _, d := range jobs.asked {
		if !want[d] {
			t.Errorf("asked for the jobs of %+v, which does not exist or was asked for before", d)
		}

		delete(want, d)
	}

	if len(want) > 0 {
		t.Errorf("not asked for the jobs of %+v", want)
	}

	jobs.err = errors.New("one file cannot be read")

	s = h.pollAfter(time.Second)
	if b, state := findGPU(t, s, uuidB), s.Sources[len(s.Sources)-1]; len(b.Jobs) != 1 || state.Up {
		t.Errorf("jobs %v of a mapping that can be read in part, source %+v", b.Jobs, state)
	}

	jobs.jobs, jobs.err = nil, errors.New("stale file handle")

	s = h.pollAfter(time.Second)
	if b := findGPU(t, s, uuidB); len(b.Jobs) != 0 || !b.JobsUnknown {
		t.Errorf("jobs %v of a mapping that cannot be read, unknown: %v", b.Jobs, b.JobsUnknown)
	}

	if state := s.Sources[len(s.Sources)-1]; state.Name != gpu.SourceJobs || state.Up {
		t.Errorf("source state %+v", state)
	}
}
