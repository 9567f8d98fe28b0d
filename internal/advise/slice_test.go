package advise

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// slicedGPU returns a GPU with one GPU instance that is held, unless there are no holders.
func slicedGPU(t testing.TB, model, profile string, l load, holders ...gpu.Holder) gpu.GPU {
	g := wholeGPU(t, model, 0, load{})

	g.MIG.Enabled = gpu.Some(true)
	for _, p := range g.Profiles {
		if p.Name == profile {
			g.Instances = []gpu.GPUInstance{{
				ID: 2, Generation: 1, Profile: profile, ProfileID: gpu.Some(p.ID),
				Device: gpu.Device{
					Up:        true,
					Activity:  gpu.Activity{GraphicsEngine: gpu.Some(l.busy), SM: gpu.Some(l.sm), DRAM: gpu.Some(l.dram)},
					Allocated: gpu.Some(len(holders) > 0),
					Holders:   holders,
				},
				Placement: gpu.Some(p.Placements[0]),
				Memory:    gpu.Memory{Total: gpu.Some(p.MemoryBytes), Used: gpu.Some(uint64(l.gib * (1 << 30)))},
				Media:     gpu.Media{Encoder: gpu.Some(0.), Decoder: gpu.Some(0.), JPEG: gpu.Some(0.), OFA: gpu.Some(0.)}, ComputeInstances: make([]gpu.ComputeInstance, 1),
			}}
		}
	}

	if len(g.Instances) == 0 {
		t.Fatalf("%s has no profile %q", model, profile)
	}

	return g
}

// sliceCase is a load of a GPU instance and what is recommended for it.
type sliceCase struct {
	about, profile string
	load           load
	change         func(*gpu.GPU)
	duration       time.Duration
	want           answer
}

func sliceCases() []sliceCase {
	return []sliceCase{
		{about: "fits", profile: "2g.20gb", load: load{busy: 0.75, sm: 0.5, gib: 12}, want: answer{Action: ActionKeep}},
		{
			about: "far too big", profile: "3g.40gb", load: load{busy: 0.5, sm: 0.05, gib: 3},
			want: answer{Action: ActionShrink, Profile: "1g.10gb"},
		},

		{
			about: "saturated, noticed within a quarter of an hour", profile: "1g.10gb", load: load{busy: 1, sm: 0.97, gib: 3},
			duration: 12 * time.Minute, want: answer{Action: ActionGrow, Reason: ReasonSaturated, Profile: "1g.20gb"},
		},
		{
			about: "out of bandwidth", profile: "3g.40gb", load: load{busy: 1, sm: 0.4, dram: 0.92, gib: 20},
			duration: 12 * time.Minute, want: answer{Action: ActionGrow, Reason: ReasonBandwidth, Profile: "7g.80gb"},
		},
		{
			about: "full from its start, as a framework takes it", profile: "1g.10gb", load: load{busy: 0.2, sm: 0.1, gib: 9.5},
			want: answer{Action: ActionKeep, Reason: ReasonPreallocated},
		},

		{about: "idle for a day, with its memory", profile: "1g.10gb", load: load{gib: 1}, duration: 24*time.Hour + time.Minute,
			want: answer{Action: ActionIdle}},
		{
			about: "idle for less", profile: "1g.10gb", load: load{gib: 1}, duration: 24*time.Hour - 2*time.Minute,
			want: answer{Action: ActionKeep, Reason: ReasonLittleEvidence},
		},
		{
			about: "holds nothing", profile: "1g.10gb", load: load{}, duration: 25 * time.Hour,
			want: answer{Action: ActionKeep, Reason: ReasonNotUp},
		},
		{
			about: "activity that is not reported is not idleness", profile: "1g.10gb", load: load{gib: 1},
			duration: 25 * time.Hour,
			change:   func(g *gpu.GPU) { g.Instances[0].Activity = gpu.Activity{} }, want: answer{Action: ActionKeep,
				Reason: ReasonLittleEvidence},
		},

		{
			about: "width at the limit is a lower bound", profile: "3g.40gb", load: load{busy: 0.2, sm: 0.2, gib: 3},
			want: answer{Action: ActionKeep},
		},
		{
			about: "busy time below SM activity, from DCGM", profile: "3g.40gb", load: load{busy: 0.3, sm: 0.5, gib: 3},
			change: func(g *gpu.GPU) { g.ActivitySource = gpu.ActivityDCGM }, want: answer{Action: ActionUnknown,
				Reason: ReasonNoActivity},
		},

		{
			about: "free", profile: "1g.10gb", change: func(g *gpu.GPU) {
				g.Instances[0].Holders, g.Instances[0].Allocated = nil, gpu.Some(false)
			}, want: answer{Action: ActionFree},
		},
		{
			about: "whose batch job is not known", profile: "1g.10gb", change: func(g *gpu.GPU) {
				g.Instances[0].Holders, g.Instances[0].Allocated = nil, gpu.Some(false)
				g.Instances[0].JobsUnknown = true
			}, want: answer{Action: ActionKeep, Reason: ReasonHoldersUnknown},
		},
		{
			about: "saturated, and its batch job is not known", profile: "1g.10gb", load: load{busy: 1, sm: 0.97, gib: 3},
			change: func(g *gpu.GPU) { withoutPod(g, 1) },
			want:   answer{Action: ActionKeep, Reason: ReasonHoldersUnknown},
		},
		{
			about: "saturated, and a batch job has the whole GPU", profile: "1g.10gb", load: load{busy: 1, sm: 0.97, gib: 3},
			change: func(g *gpu.GPU) { withoutPod(g, 1); g.Jobs = []string{"16"} },
			want:   answer{Action: ActionGrow, Reason: ReasonSaturated, Profile: "1g.20gb"},
		},
		{
			about: "not in use, and a batch job has the whole GPU", profile: "3g.40gb",
			change: func(g *gpu.GPU) { withoutPod(g, 0); g.Jobs = []string{"16"} },
			want:   answer{Action: ActionKeep, Reason: ReasonHoldersUnknown},
		},
		{
			about: "of an unknown holder", profile: "1g.10gb", change: func(g *gpu.GPU) {
				g.Instances[0].Holders, g.Instances[0].Allocated = nil, gpu.Some(true)
			}, want: answer{Action: ActionKeep, Reason: ReasonHoldersUnknown},
		},
	}
}

// withoutPod gives the instance of slicedGPU processes instead of a pod, and no batch job that is known.
func withoutPod(g *gpu.GPU, processes int) {
	i := &g.Instances[0]
	i.Holders, i.Allocated = nil, gpu.None[bool]()
	i.Processes = gpu.Some(processes)
	i.JobsUnknown = true
}

// TestUnheldSaysWhatIsUnknown: the explanation says which holder a device may have, and a note says why we do
// not know the batch jobs.
func TestUnheldSaysWhatIsUnknown(t *testing.T) {
	const incomplete = "the kubelet has restarted"
	none := gpu.None[bool]()

	for want, c := range map[string]struct {
		allocated                   gpu.Opt[bool]
		incomplete                  string
		processesKnown, jobsUnknown bool
	}{
		"":                                      {none, "", true, false},
		"it is not known what holds the device": {gpu.Some(true), "", true, true},
		"it is not known whether a pod holds the device":       {none, incomplete, true, true},
		"it is not known whether a batch job has the device":   {gpu.Some(false), incomplete, false, true},
		"it is not known whether a process runs on the device": {none, "", false, false},
	} {
		var r Recommendation
		r.setUnheld(&gpu.Snapshot{HoldersIncomplete: c.incomplete}, c.allocated, c.processesKnown, c.jobsUnknown)
		cmptest.Equal(t, "explanation", r.explain(DefaultOptions()), want)
		cmptest.Equal(t, want+": free", r.Action == ActionFree, want == "")
	}

	a := New(DefaultOptions())
	g := wholeGPU(t, "H100-80GB", 0, load{})
	g.JobsUnknown = true
	s := observeFor(a, start(), time.Minute, g)
	missing := fmt.Errorf("job mapping: folder /run/jobs: %w", gpu.ErrNotFound)
	s.Sources = []gpu.SourceState{{Name: gpu.SourceJobs, Err: missing}}

	report := a.Recommend(s)
	cmptest.Equal(t, "explanation", report.Devices[0].Explanation, "it is not known whether a batch job has the device")
	cmptest.HasTexts(t, strings.Join(report.Notes, "\n"),
		"devices without a pod may have a batch job: job mapping: folder /run/jobs: not found")
}

// TestUnheldByProcesses: on a node without a kubelet a device is free if nothing runs on it, not if
// that is not known.
func TestUnheldByProcesses(t *testing.T) {
	for processes, want := range map[gpu.Opt[int]]Action{gpu.Some(0): ActionFree, gpu.None[int](): ActionKeep} {
		var r Recommendation
		r.setUnheld(&gpu.Snapshot{}, gpu.None[bool](), processes.Present(), false)

		if r.Action != want {
			t.Errorf("processes %v: %s, want %s", processes, r.Action, want)
		}
	}
}

func TestSlices(t *testing.T) {
	for _, c := range sliceCases() {
		t.Run(c.about, func(t *testing.T) {
			g := slicedGPU(t, "H100-80GB", c.profile, c.load, pod("ml", "Deployment/a"))
			if c.change != nil {
				c.change(&g)
			}

			if c.duration == 0 {
				c.duration = 8 * 24 * time.Hour
			}

			r := recommendFor(fastOptions(), c.duration, g)
			cmptest.Equal(t, r.Explanation, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended}, c.want)
		})
	}
}

// TestIdleOverARestart: an exporter that was away for minutes goes on with an idle slice where it
// was; after an hour it does not know that nothing has run meanwhile.
func TestIdleOverARestart(t *testing.T) {
	g := slicedGPU(t, "H100-80GB", "1g.10gb", load{gib: 3}, pod("ml", "Deployment/a"))

	for away, want := range map[time.Duration]Action{5 * time.Minute: ActionIdle, time.Hour: ActionKeep} {
		a := New(fastOptions())
		a = restarted(t, a, observeFor(a, start(), 20*time.Hour, g))

		// The pod is described a poll later, as after each start of the exporter.
		g.Instances[0].Holders[0].Undescribed = true
		observeFor(a, a.now.Add(away), 0, g)

		g.Instances[0].Holders[0].Undescribed = false
		s := observeFor(a, a.now.Add(time.Minute), 5*time.Hour, g)
		cmptest.Equal(t, away.String(), a.Recommend(s).Devices[0].Action, want)
	}
}

// TestSingleStrategy: if the device plugin gives all GPUs of a node one profile, it must do for
// every pod, or nothing is recommended.
func TestSingleStrategy(t *testing.T) {
	o := fastOptions()
	o.SingleStrategy = true
	small := load{busy: 0.3, sm: 0.01, gib: 3}
	medium := load{busy: 0.3, sm: 0.01, gib: 14}

	wide := load{busy: 0.9, sm: 0.9, gib: 3}
	for _, c := range []struct {
		about string
		loads []load
		want  []answer
	}{
		{"one profile does", []load{small, medium},
			[]answer{{Action: ActionSlice, Profile: "1g.20gb"}, {Action: ActionSlice, Profile: "1g.20gb"}}},
		{
			"none does", []load{small, wide},
			[]answer{{Action: ActionKeep, Reason: ReasonSingleStrategy}, {Action: ActionKeep, Reason: ReasonStretch}},
		},
	} {
		a := New(o)

		var gpus []gpu.GPU
		for i, l := range c.loads {
			gpus = append(gpus, wholeGPU(t, "H100-80GB", i, l, pod("ml", "Deployment/"+string(rune('a'+i)))))
		}

		report := recommend(a, observeFor(a, start(), 8*24*time.Hour, gpus...))

		var got []answer
		for _, r := range report.Devices {
			got = append(got, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended})
		}

		cmptest.Equal(t, c.about, got, c.want)
	}
}

// TestSingleStrategyIsProvisionalAsAWhole: a node moves as one, so a pod of which too little is
// known holds back all.
func TestSingleStrategyIsProvisionalAsAWhole(t *testing.T) {
	o := fastOptions()
	o.SingleStrategy = true
	a := New(o)
	first := wholeGPU(t, "H100-80GB", 0, slight(), pod("ml", "Deployment/a"))
	free := wholeGPU(t, "H100-80GB", 1, load{})
	later := wholeGPU(t, "H100-80GB", 1, slight(), pod("ml", "Deployment/b"))
	s := observeFor(a, start(), 9*day, first, free)
	cmptest.Equal(t, "alone", recommend(a, s).Devices[0].Candidate(), true)

	for _, c := range []struct {
		days      time.Duration
		candidate bool
	}{{2, false}, {6, true}} {
		s = observeFor(a, s.Time.Add(time.Minute), c.days*day, first, later)

		report := recommend(a, s)
		for _, r := range report.Devices {
			cmptest.Equal(t, "action", r.Action, ActionSlice)
			cmptest.Equal(t, "candidate", r.Candidate(), c.candidate)
		}

		cmptest.Equal(t, "packed", report.Packing != nil, c.candidate)
	}
}
