package advise

import (
	"math/rand"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestJobsByOwners: the pods of a job's owner are parts of a job without a label too. A label that says
// that there is no other pod counts more, and so does the annotation.
func TestJobsByOwners(t *testing.T) {
	alone := gpu.PodGroup{Name: "leaderworkerset/serve/0", Label: "leaderworkerset.sigs.k8s.io/name=serve", Size: 1}

	for _, c := range []struct {
		owner string
		group gpu.PodGroup
		hint  gpu.Opt[bool]
		want  Reason
	}{
		{"MPIJob/train", gpu.PodGroup{}, gpu.None[bool](), ReasonMultiGPU},
		{"LeaderWorkerSet/serve", gpu.PodGroup{}, gpu.None[bool](), ReasonMultiGPU},
		{"LeaderWorkerSet/serve", alone, gpu.None[bool](), ReasonNone},
		{"MPIJob/train", gpu.PodGroup{}, gpu.Some(false), ReasonNone},
		{"Job/train", gpu.PodGroup{}, gpu.None[bool](), ReasonNone},
	} {
		h := grouped(c.group, c.hint)
		h.Workload = c.owner

		for _, g := range []gpu.GPU{
			wholeGPU(t, "H100-80GB", 0, slight(), h), slicedGPU(t, "H100-80GB", "3g.40gb", slight(), h),
		} {
			r := recommendFor(fastOptions(), longEnough, g)
			cmptest.Equal(t, c.owner+": "+r.Explanation, r.Reason, c.want)

			if c.want != ReasonNone && !strings.Contains(r.Explanation, "by its owner "+c.owner) {
				t.Errorf("%s: %q", c.owner, r.Explanation)
			}
		}
	}
}

// grouped returns the holder of a GPU whose pod is part of a job.
func grouped(group gpu.PodGroup, hint gpu.Opt[bool]) gpu.Holder {
	h := pod("ml", "Job/train")
	h.Group = group
	h.Rightsizing.MultiGPU = hint

	return h
}

// TestJobsByLabels: a pod that is one of several of a job, or may be, stays on its GPU, and keeps
// its slice. A job of one pod, and what an annotation says, count.
func TestJobsByLabels(t *testing.T) {
	none := gpu.None[bool]()
	yes := gpu.Some(true)
	no := gpu.Some(false)

	job := func(size int) gpu.PodGroup {
		return gpu.PodGroup{Name: "jobset/train", Label: "jobset.sigs.k8s.io/jobset-name=train", Size: size}
	}
	for about, c := range map[string]struct {
		group    gpu.PodGroup
		hint     gpu.Opt[bool]
		want     Reason
		sentence string
	}{
		"no job":             {gpu.PodGroup{}, none, ReasonNone, ""},
		"one of four":        {job(4), none, ReasonMultiGPU, "one of 4 or more of a job, by its label jobset.sigs.k8s.io/jobset-name=train"},
		"of unknown size":    {job(0), none, ReasonMultiGPU, "how many pods that has is not known here"},
		"the only one":       {job(1), none, ReasonNone, ""},
		"annotated as none":  {job(4), no, ReasonNone, ""},
		"annotated as a job": {gpu.PodGroup{}, yes, ReasonMultiGPU, "by its annotation mig-exporter.io/multi-gpu"},
		"the only one, but annotated as a job": {job(1), yes, ReasonMultiGPU,
			"by its annotation mig-exporter.io/multi-gpu"},
	} {
		holder := grouped(c.group, c.hint)
		whole := recommendFor(fastOptions(), longEnough, wholeGPU(t, "H100-80GB", 0, slight(), holder))
		slice := recommendFor(fastOptions(), longEnough, slicedGPU(t, "H100-80GB", "3g.40gb", slight(), holder))

		wantWhole := ActionSlice
		wantSlice := ActionShrink

		if c.want != ReasonNone {
			wantWhole = ActionKeep
			wantSlice = ActionKeep
		}

		for device, r := range map[string]*Recommendation{"whole GPU": &whole, "slice": &slice} {
			if r.Reason != c.want || !strings.Contains(r.Explanation, c.sentence) {
				t.Errorf("%s, %s: %s %q: %s; want %q: ...%s...", about, device, r.Action, r.Reason, r.Explanation, c.want, c.sentence)
			}
		}

		cmptest.Equal(t, about+": action on the whole GPU", whole.Action, wantWhole)
		cmptest.Equal(t, about+": action on the slice", slice.Action, wantSlice)
	}
}

// TestAnnotationDoesNotDividePods: a pod that holds several GPUs asks its owner for so many,
// whatever it says of jobs.
func TestAnnotationDoesNotDividePods(t *testing.T) {
	holder := grouped(gpu.PodGroup{}, gpu.Some(false))
	r := recommendFor(fastOptions(), longEnough, wholeGPU(t, "H100-80GB", 0, slight(), holder),
		wholeGPU(t, "H100-80GB", 1, slight(), holder))
	cmptest.Equal(t, "reason", r.Reason, ReasonMultiGPU)
}

// link is what a GPU shows in a poll: bytes a second in each direction, and busy time.
type link struct{ sent, received, busy float64 }

// linkedNode shows four pods of an owner, each with a GPU, and returns the Advisor and the last
// Snapshot after half a day of polls. each returns what a GPU shows in a poll; it is called for one
// GPU after the other.
func linkedNode(t *testing.T, hint gpu.Opt[bool], counters bool, each func(poll, index int) link) (*Advisor, *gpu.Snapshot) {
	t.Helper()
	a := New(fastOptions())
	o := fastOptions()
	o.MinEvidence = time.Hour
	a.options = o
	s := &gpu.Snapshot{Hostname: "node-a"}

	for i := range 4 {
		holder := grouped(gpu.PodGroup{}, hint)
		holder.Pod, holder.PodUID, holder.Workload = holder.Pod+string(rune('0'+i)), holder.PodUID+string(rune('0'+i)), "StatefulSet/a"
		s.GPUs = append(s.GPUs, wholeGPU(t, "H100-80GB", i, slight(), holder))
	}

	a.Observe(&gpu.Snapshot{Time: start().Add(-time.Minute), Hostname: "node-a", GPUs: unheld(s.GPUs)})

	var totals [4][2]float64

	for poll := range 12 * 60 {
		s.Time = start().Add(time.Duration(poll) * time.Minute)
		for i := range s.GPUs {
			g := &s.GPUs[i]
			l := each(poll, i)
			setActivity(g, l.busy, l.busy*0.02, l.busy*0.02)

			g.Rates.PCIeTransmit, g.Rates.PCIeReceive = gpu.Some(l.sent), gpu.Some(l.received)
			if counters {
				totals[i][0], totals[i][1] = totals[i][0]+60*l.sent, totals[i][1]+60*l.received
				g.Rates = gpu.LinkRates{}
				g.Totals.PCIeTransmit = gpu.Some(gpu.Counter{Value: totals[i][0]})
				g.Totals.PCIeReceive = gpu.Some(gpu.Counter{Value: totals[i][1]})
			}
		}

		a.Observe(s)
	}

	return a, s
}

// trafficCase is how four pods of an owner use their GPUs.
type trafficCase struct {
	about string
	hint  gpu.Opt[bool]
	want  Reason
	each  func(poll, index int) link
}

func trafficCases() []trafficCase {
	random := rand.New(rand.NewSource(7))
	noise := func(share float64) float64 { return 1 + share*random.NormFloat64() }
	common := 0.
	// once draws what is common to all GPUs of a poll.
	once := func(index int, draw func() float64) float64 {
		if index == 0 {
			common = draw()
		}

		return common
	}
	steps := func() float64 { return noise(0.06) } // of a job, relative to their mean
	bursts := func() float64 { return 0.4 * (0.4 + random.Float64()) }
	ranks := func(_, index int) link {
		n := once(index, steps)
		return link{sent: 2e9 * n * noise(0.005), received: 2e9 * n * noise(0.005), busy: min(1, 0.97*noise(0.01))}
	}

	return []trafficCase{
		{about: "ranks that exchange gradients", want: ReasonMultiGPU, each: ranks},
		{about: "the same, annotated", hint: gpu.Some(false), want: ReasonNone, each: ranks},
		{about: "replicas with busy time in step and little traffic", want: ReasonNone, each: func(_, index int) link {
			n := once(index, bursts)
			return link{sent: 1e7 * n, received: 1e7 * n, busy: n}
		}},
		{about: "traffic in step below the floor", want: ReasonNone, each: func(_, index int) link {
			n := once(index, steps)
			return link{sent: 5e8 * n, received: 5e8 * n, busy: 0.97 * noise(0.01)}
		}},
		{about: "replicas with much traffic, each with its own requests", want: ReasonNone, each: func(_, index int) link {
			n := once(index, bursts) * noise(0.1)
			return link{sent: 8e9 * n, received: 8e9 * n, busy: min(1, n*noise(0.02))}
		}},
		{about: "replicas that get the same number of requests", want: ReasonNone, each: func(_, index int) link {
			n := once(index, bursts)
			return link{sent: 8e9 * n, received: 8e9 * n, busy: n * noise(0.03)}
		}},
		{about: "replicas that get the same requests, exactly", want: ReasonNone, each: func(_, index int) link {
			n := once(index, bursts)
			return link{sent: 8e9 * n, received: 8e9 * n, busy: n}
		}},
		{about: "replicas of full GPUs with much to receive and little to send", want: ReasonNone, each: func(_, index int) link {
			n := once(index, steps)
			return link{sent: 1e8 * n, received: 3e9 * n, busy: 0.97 * noise(0.01)}
		}},
		{about: "replicas that send half of what they receive", want: ReasonNone, each: func(_, index int) link {
			n := once(index, steps)
			return link{sent: 2e9 * n, received: 4e9 * n, busy: 0.97 * noise(0.01)}
		}},
		{about: "work of its own that is swapped to the host", want: ReasonNone, each: func(int, int) link {
			n := noise(0.2)
			return link{sent: 2e9 * n, received: 2e9 * n, busy: 0.9 * noise(0.01)}
		}},
		{about: "steady traffic, polled late now and then", want: ReasonNone, each: func(_, index int) link {
			n := once(index, func() float64 { return noise(0.01) })
			return link{sent: 2e9 * n, received: 2e9 * n, busy: 0.9}
		}},
	}
}

// TestJobsByTraffic: what is exchanged in step shows a job; load that moves together does not. It
// makes no difference whether the driver reports rates or totals.
func TestJobsByTraffic(t *testing.T) {
	for _, counters := range []bool{false, true} {
		for _, c := range trafficCases() {
			a, s := linkedNode(t, c.hint, counters, c.each)
			for i, r := range a.Recommend(s).Devices {
				wantAction := ActionSlice
				if c.want != ReasonNone {
					wantAction = ActionKeep
				}

				if r.Reason != c.want || r.Action != wantAction {
					t.Errorf("%s, counters %v: GPU %d: %s %q: %s; want %q", c.about, counters, i, r.Action, r.Reason, r.Explanation, c.want)
				}

				if c.want == ReasonMultiGPU && !strings.Contains(r.Explanation, "in step with GPU ") {
					t.Errorf("%s: GPU %d: %s; want the GPU that it is in step with", c.about, i, r.Explanation)
				}
			}
		}
	}
}

// TestTrafficWithoutPodsNamesNoAnnotation: processes without a pod have nothing to annotate.
func TestTrafficWithoutPodsNamesNoAnnotation(t *testing.T) {
	c := trafficCases()[0]
	a, s := linkedNode(t, c.hint, false, c.each)
	g := s.GPUs[0]
	d := a.devices[gpu.IDOfGPU(g.UUID)]

	for _, holders := range [][]gpu.Holder{g.Holders, nil} {
		g.Holders = holders
		text := a.findJob(s, &g, d, countGPUs(s))
		cmptest.HasTexts(t, text, "in step with GPU ")
		cmptest.Equal(t, "names the annotation", strings.Contains(text, "mig-exporter.io/"), holders != nil)
	}
}

// TestJobsByTrafficOutliveRestarts: what was in step is known for eight days, over restarts and
// changes of the clock.
func TestJobsByTrafficOutliveRestarts(t *testing.T) {
	c := trafficCases()[0]
	before, s := linkedNode(t, c.hint, false, c.each)
	after := restarted(t, before, s)
	reason := func(in time.Duration) Reason {
		next := *s
		next.Time = s.Time.Add(in)
		after.Observe(&next)

		return after.Recommend(&next).Devices[0].Reason
	}
	cmptest.Equal(t, "a minute later", reason(time.Minute), ReasonMultiGPU)
	cmptest.Equal(t, "before the clock was set back", reason(-30*24*time.Hour), ReasonMultiGPU)
}

// TestTrafficIsComparedWithoutAllocations: in the steady state, with as many GPUs as a node has
// that all exchange data.
func TestTrafficIsComparedWithoutAllocations(t *testing.T) {
	a := New(DefaultOptions())
	s := exchangingNode(t)

	step := func() {
		s.Time = s.Time.Add(time.Second)
		a.Observe(s)
	}
	for range 3 {
		step()
	}

	if x := len(a.order[0].exchanges); x != 7 {
		t.Fatalf("GPU 0 is compared with %d others, want 7", x)
	}

	if allocs := testing.AllocsPerRun(400, step); allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func BenchmarkObserveTraffic(b *testing.B) {
	a := New(DefaultOptions())
	s := exchangingNode(b)
	b.ReportAllocs()

	for b.Loop() {
		s.Time = s.Time.Add(time.Second)
		a.Observe(s)
	}
}

// exchangingNode returns eight whole GPUs that all send and receive much.
func exchangingNode(t testing.TB) *gpu.Snapshot {
	s := &gpu.Snapshot{Time: start(), Hostname: "node-a"}

	for i := range 8 {
		g := wholeGPU(t, "H100-80GB", i, slight(), pod("ml", "Deployment/service-"+string(rune('a'+i))))
		g.Rates.PCIeTransmit, g.Rates.PCIeReceive = gpu.Some(2e9), gpu.Some(2e9)
		s.GPUs = append(s.GPUs, g)
	}

	return s
}
