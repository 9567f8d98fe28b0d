package advise

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// start is the beginning of a minute and of a day of UTC.
func start() time.Time { return time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC) }

// load is what a whole GPU shows: shares of the GPU, and memory in GiB.
type load struct {
	busy, sm, dram, gib float64
}

// pod returns the holder of a device, of which the pod is the owner's only one.
func pod(namespace, owner string) gpu.Holder {
	_, name, _ := strings.Cut(owner, "/")

	return gpu.Holder{
		Container: gpu.Container{Namespace: namespace, Pod: name + "-0", Name: "main"}, PodUID: "uid-" + name, Workload: owner,
		Resource: "nvidia.com/gpu", Sharing: gpu.SharingExclusive,
	}
}

// wholeGPU returns a GPU of a known model without MIG mode.
func wholeGPU(t testing.TB, model string, index int, l load, holders ...gpu.Holder) gpu.GPU {
	t.Helper()

	m, ok := mig.FindModel(model)
	if !ok {
		t.Fatalf("no model %q", model)
	}

	var total uint64
	for _, p := range m.Profiles {
		total = max(total, p.MemoryBytes)
	}

	return gpu.GPU{
		Facts: gpu.Facts{
			UUID: gpu.UUID(fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", index)), Index: index, Name: model, SMs: gpu.Some(m.SMs),
			Profiles: m.Profiles,
		},
		Device: gpu.Device{
			Up:        true,
			Holders:   holders,
			Allocated: gpu.Some(len(holders) > 0),
			Activity:  gpu.Activity{GraphicsEngine: gpu.Some(l.busy), SM: gpu.Some(l.sm), DRAM: gpu.Some(l.dram)},
		},
		MIG: gpu.MIGState{Enabled: gpu.Some(false)}, ActivitySource: gpu.ActivityGPM,
		Readings: gpu.Readings{
			SlowReadings: gpu.SlowReadings{PowerLimitWatts: gpu.Some(700.)},
			Memory:       gpu.Memory{Total: gpu.Some(total), Used: gpu.Some(uint64(l.gib * (1 << 30)))},
			Media:        gpu.Media{Encoder: gpu.Some(0.), Decoder: gpu.Some(0.), JPEG: gpu.Some(0.), OFA: gpu.Some(0.)},
			PowerWatts:   gpu.Some(200.),
		},
		Power: gpu.PowerEstimate{IdleWatts: gpu.Some(80.)},
	}
}

// fastOptions are the defaults for Snapshots a minute apart.
func fastOptions() Options {
	o := DefaultOptions()
	o.MaxGap = 2 * time.Minute

	return o
}

// unheld returns GPUs as they are before anything holds them.
func unheld(gpus []gpu.GPU) []gpu.GPU {
	free := slices.Clone(gpus)
	for i := range free {
		g := &free[i]

		g.Holders, g.Jobs, g.Allocated, g.Readings.Memory.Used = nil, nil, gpu.Some(false), gpu.Some(uint64(0))
		if g.Readings.Processes.Present() {
			g.Readings.Processes = gpu.Some([]gpu.Process{})
		}

		g.Instances = slices.Clone(g.Instances)
		for k := range g.Instances {
			n := &g.Instances[k]
			n.Holders, n.Jobs, n.Allocated, n.Memory.Used = nil, nil, gpu.Some(false), gpu.Some(uint64(0))
		}
	}

	return free
}

// observeFor shows the same GPUs every minute for a time, and returns the last Snapshot. An Advisor
// that has observed nothing yet sees them unheld first, so that it sees the start of what holds
// them.
func observeFor(a *Advisor, from time.Time, duration time.Duration, gpus ...gpu.GPU) *gpu.Snapshot {
	var s *gpu.Snapshot

	if a.now.IsZero() {
		a.Observe(&gpu.Snapshot{Time: from.Add(-time.Minute), Hostname: "node-a", GPUs: unheld(gpus)})
	}

	for at := from; !at.After(from.Add(duration)); at = at.Add(time.Minute) {
		s = &gpu.Snapshot{Time: at, Hostname: "node-a", GPUs: gpus}
		a.Observe(s)
	}

	return s
}

// recommend returns the whole report on the last Snapshot.
func recommend(a *Advisor, s *gpu.Snapshot) *Report {
	report := a.Recommend(s)
	report.Pack(s)

	return report
}

// recommendFor returns the answer for the first device after it has shown a load for a time.
func recommendFor(o Options, duration time.Duration, gpus ...gpu.GPU) Recommendation {
	a := New(o)
	return recommend(a, observeFor(a, start(), duration, gpus...)).Devices[0]
}

// profileCase is a load of a whole GPU and what is recommended for it.
type profileCase struct {
	about    string
	load     load
	change   func(*gpu.GPU)
	options  func(*Options)
	duration time.Duration
	want     answer
}

func profileCases() []profileCase {
	narrow := load{busy: 0.9, sm: 0.9 * 5 / 132, dram: 0.02, gib: 4} // 5 of 132 SMs while anything runs

	return []profileCase{
		{about: "narrow and always busy", load: narrow, want: answer{Action: ActionSlice, Profile: "1g.10gb"}},
		{about: "idle", load: load{gib: 0.6}, want: answer{Action: ActionSlice, Profile: "1g.10gb"}},
		{
			about: "needs memory", load: load{busy: 0.5, sm: 0.03, gib: 15},
			want: answer{Action: ActionSlice, Profile: "1g.20gb"},
		},
		{
			about: "rare and wide", load: load{busy: 0.05, sm: 0.05, dram: 0.01, gib: 4},
			want: answer{Action: ActionShare, Reason: ReasonStretch},
		},
		{about: "wide and busy", load: load{busy: 0.9, sm: 0.9, gib: 4}, want: answer{Action: ActionKeep, Reason: ReasonStretch}},
		{
			about: "half as wide, stretched by 2 at most", load: load{busy: 0.3, sm: 0.15, gib: 4},
			want: answer{Action: ActionSlice, Profile: "3g.40gb"},
		},
		{
			about: "the same, busy", load: load{busy: 0.75, sm: 0.375, gib: 4},
			want: answer{Action: ActionKeep, Reason: ReasonBusy},
		},
		{
			about: "the same, strictly", load: load{busy: 0.2, sm: 0.1, gib: 4}, options: func(o *Options) { o.Strict, o.MaxStretch = true, 1.3 },
			want: answer{Action: ActionShare, Reason: ReasonStretch},
		},
		{about: "too much memory", load: load{busy: 0.2, sm: 0.01, gib: 44}, want: answer{Action: ActionKeep, Reason: ReasonMemory}},
		{about: "all memory at once", load: load{busy: 0.2, sm: 0.01, gib: 72}, want: answer{Action: ActionKeep, Reason: ReasonPreallocated}},
		{about: "a short time", load: narrow, duration: 23 * time.Hour, want: answer{Action: ActionKeep, Reason: ReasonLittleEvidence}},
		{
			about: "no SM activity", load: load{busy: 0.1, gib: 4}, change: func(g *gpu.GPU) { g.Activity = gpu.Activity{GraphicsEngine: gpu.Some(0.1)} },
			want: answer{Action: ActionUnknown, Reason: ReasonNoActivity},
		},
		{
			about: "opted out", load: narrow, change: func(g *gpu.GPU) { g.Holders[0].Rightsizing.OptOut = true },
			want: answer{Action: ActionKeep, Reason: ReasonOptedOut},
		},
		{
			about: "shared", load: narrow, change: func(g *gpu.GPU) { g.Holders[0].Sharing = gpu.SharingMPS },
			want: answer{Action: ActionKeep, Reason: ReasonShared},
		},
		{
			about: "no MIG", load: narrow, change: func(g *gpu.GPU) { g.Profiles, g.MIG = nil, gpu.MIGState{} },
			want: answer{Action: ActionKeep, Reason: ReasonNoMIG},
		},
		{
			about: "MIG mode waits for a reset", load: narrow, change: func(g *gpu.GPU) { g.MIG.Pending = gpu.Some(true) },
			want: answer{Action: ActionKeep, Reason: ReasonModePending},
		},
		{
			about: "graphics", load: narrow, change: func(g *gpu.GPU) { g.Readings.Processes = gpu.Some([]gpu.Process{{Graphics: true}}) },
			want: answer{Action: ActionKeep, Reason: ReasonGraphics},
		},
	}
}

func TestRecommendedProfiles(t *testing.T) {
	for _, c := range profileCases() {
		t.Run(c.about, func(t *testing.T) {
			g := wholeGPU(t, "H100-80GB", 0, c.load, pod("ml", "Deployment/a"))
			if c.change != nil {
				c.change(&g)
			}

			o := fastOptions()
			if c.options != nil {
				c.options(&o)
			}

			if c.duration == 0 {
				c.duration = 8 * 24 * time.Hour
			}

			r := recommendFor(o, c.duration, g)
			cmptest.Equal(t, r.Explanation, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended}, c.want)
		})
	}
}

// TestMediaEngines: a video service gets no plain 1g of an A100, which has no decoder. Where the
// use of decoders cannot be read it is shown and no candidate.
func TestMediaEngines(t *testing.T) {
	for _, c := range []struct {
		about     string
		decoder   gpu.Opt[float64]
		profile   string
		candidate bool
	}{
		{"not used", gpu.Some(0.), "1g.5gb", true},
		{"used", gpu.Some(0.1), "1g.5gb+me", true},
		{"unread", gpu.None[float64](), "1g.5gb", false},
	} {
		g := wholeGPU(t, "A100-40GB", 0, load{busy: 0.4, sm: 0.02, gib: 2}, pod("video", "Deployment/transcode"))
		g.Readings.Media.Decoder = c.decoder
		r := recommendFor(fastOptions(), 8*24*time.Hour, g)
		cmptest.Equal(t, c.about+": profile", r.Recommended, c.profile)
		cmptest.Equal(t, c.about+": candidate", r.Candidate(), c.candidate)
	}
}

// TestAnswersDoNotFlap: a workload that grows gets more at once, and less again only after as much
// evidence as the first answer needed.
func TestAnswersDoNotFlap(t *testing.T) {
	small := load{busy: 0.5, sm: 0.03, gib: 4}
	large := load{busy: 0.5, sm: 0.03, gib: 15}
	a := New(fastOptions())
	at := start()
	show := func(l load, d time.Duration) string {
		s := observeFor(a, at, d, wholeGPU(t, "H100-80GB", 0, l, pod("ml", "Deployment/a")))
		at = s.Time.Add(time.Minute)

		return recommend(a, s).Devices[0].Recommended
	}
	cmptest.Equal(t, "at first", show(small, 25*time.Hour), "1g.10gb")
	cmptest.Equal(t, "with more memory", show(large, 10*time.Minute), "1g.20gb")
	cmptest.Equal(t, "a week later", show(small, 7*24*time.Hour-time.Hour), "1g.20gb")
	cmptest.Equal(t, "the day is forgotten", show(small, 24*time.Hour), "1g.20gb")
	cmptest.Equal(t, "for as long as at first", show(small, 26*time.Hour), "1g.10gb")
}

// TestGapsLowerTheCoverage: time in which a held GPU could not be read is no evidence.
func TestGapsLowerTheCoverage(t *testing.T) {
	g := wholeGPU(t, "H100-80GB", 0, load{busy: 0.5, sm: 0.03, gib: 4}, pod("ml", "Deployment/a"))
	down := g
	down.Up = false
	a := New(fastOptions())
	s := observeFor(a, start(), 30*time.Hour, g)
	observeFor(a, s.Time.Add(time.Minute), 10*time.Hour, down)
	s = observeFor(a, s.Time.Add(10*time.Hour+2*time.Minute), 10*time.Minute, g)
	r := recommend(a, s).Devices[0]
	cmptest.Equal(t, "reason", r.Reason, ReasonLowCoverage)

	if c := r.Evidence.CoverageRatio; c < 0.74 || c > 0.76 {
		t.Errorf("coverage %v, want 0.75", c)
	}
}

// TestClockThatIsSet: neither a jump ahead nor one back makes evidence up, loses it, or ends the
// program.
func TestClockThatIsSet(t *testing.T) {
	g := wholeGPU(t, "H100-80GB", 0, load{busy: 0.5, sm: 0.03, gib: 4}, pod("ml", "Deployment/a"))

	for _, jump := range []time.Duration{400 * 24 * time.Hour, -400 * 24 * time.Hour, -time.Hour} {
		a := New(fastOptions())
		s := observeFor(a, start(), 48*time.Hour, g)
		s = observeFor(a, s.Time.Add(jump), 2*time.Hour, g)

		r := recommend(a, s).Devices[0]
		if jump < 0 && r.Recommended != "1g.10gb" {
			t.Errorf("%v: %s %s (%s)", jump, r.Action, r.Recommended, r.Explanation)
		}

		if h := r.Evidence.ObservedHours; h > 50.1 {
			t.Errorf("%v: observed for %v h, want 50 at most", jump, h)
		}
	}
}

// heapBytes returns how much memory the heap takes after a collection.
func heapBytes() uint64 {
	runtime.GC()

	var m runtime.MemStats
	runtime.ReadMemStats(&m)

	return m.HeapAlloc
}

// checkHeap holds what an adviser of 10,000 workloads has taken since before against a limit.
func checkHeap(t *testing.T, a *Advisor, before, limit uint64) {
	t.Helper()

	if grown := heapBytes() - before; grown > limit || len(a.workloads) < 8000 {
		t.Errorf("%d workloads take %.1f MiB; expected %d at most", len(a.workloads), float64(grown)/(1<<20), limit>>20)
	}

	runtime.KeepAlive(a)
}

// TestMemoryIsBounded: 10,000 workloads a day, for several days, stay below 23 MiB.
func TestMemoryIsBounded(t *testing.T) {
	a := New(fastOptions())
	base := wholeGPU(t, "H100-80GB", 0, load{busy: 0.5, sm: 0.03, gib: 4})
	before := heapBytes()

	for i := range 25_000 {
		g := base
		g.Holders = []gpu.Holder{pod("batch", fmt.Sprintf("Job/evaluation-of-candidate-%d", i))}
		observeFor(a, start().Add(time.Duration(i)*9*time.Second), 0, g)
	}

	checkHeap(t, a, before, 23<<20)
}

func TestObserveAllocatesNothing(t *testing.T) {
	a := New(DefaultOptions())
	s := slicedNode(t)
	a.Observe(s)

	if allocs := testing.AllocsPerRun(200, func() {
		s.Time = s.Time.Add(time.Second)
		a.Observe(s)
	}); allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func BenchmarkObserve(b *testing.B) {
	a := New(DefaultOptions())
	s := slicedNode(b)
	a.Observe(s)
	b.ReportAllocs()

	for b.Loop() {
		s.Time = s.Time.Add(time.Second)
		a.Observe(s)
	}
}

// slicedNode returns eight GPUs of seven held slices each.
func slicedNode(t testing.TB) *gpu.Snapshot {
	s := &gpu.Snapshot{Time: start(), Hostname: "node-a"}

	for i := range 8 {
		g := wholeGPU(t, "H100-80GB", i, load{})
		g.MIG.Enabled = gpu.Some(true)

		for k := range 7 {
			name := fmt.Sprintf("Deployment/service-%d-%d", i, k)
			g.Instances = append(g.Instances, gpu.GPUInstance{
				ID: gpu.InstanceID(7 + k), Generation: 1, Profile: "1g.10gb",
				Device: gpu.Device{
					Up:        true,
					Activity:  gpu.Activity{GraphicsEngine: gpu.Some(0.4), SM: gpu.Some(0.2), DRAM: gpu.Some(0.1)},
					Holders:   []gpu.Holder{pod("ml", name)},
					Allocated: gpu.Some(true),
				},
				Placement: gpu.Some(gpu.Placement{Start: k, Size: 1}),
				SMs:       gpu.Some(16), Memory: gpu.Memory{Total: gpu.Some(uint64(10 << 30)), Used: gpu.Some(uint64(4 << 30))}, ComputeInstances: make([]gpu.ComputeInstance, 1),
			})
		}

		s.GPUs = append(s.GPUs, g)
	}

	return s
}

// TestReportIsDeterministic: the same Snapshots give the same bytes.
func TestReportIsDeterministic(t *testing.T) {
	var first []byte

	for range 3 {
		a := New(fastOptions())

		var gpus []gpu.GPU
		for i, l := range []load{{busy: 0.5, sm: 0.03, gib: 4}, {busy: 0.4, sm: 0.05, gib: 12}, {busy: 0.3, sm: 0.1, gib: 22}, {busy: 0.3, sm: 0.04, gib: 3}} {
			gpus = append(gpus, wholeGPU(t, "H100-80GB", i, l, pod("ml", fmt.Sprintf("Deployment/d-%d", i%3))))
		}

		text, err := json.Marshal(recommend(a, observeFor(a, start(), 8*24*time.Hour, gpus...)))
		if err != nil {
			t.Fatal(err)
		}

		if first == nil {
			first = text
		}

		if !bytes.Equal(text, first) {
			t.Errorf("%s\nand\n%s", first, text)
		}
	}
}
