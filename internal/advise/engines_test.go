package advise

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// video returns an H100, which has seven decoders, whose decoders are busy for a share of the time.
func video(t testing.TB, decoders float64) gpu.GPU {
	g := wholeGPU(t, "H100-80GB", 0, load{busy: 0.3, sm: 0.01, gib: 2}, pod("video", "Deployment/decode"))
	g.Readings.Media.Decoder = gpu.Some(decoders)

	return g
}

// TestEnginesAreQuantities: a slice has a fifth more decoders than are busy at p99. Of an H100's
// slices 1g has one, 2g two, 3g three and 4g four.
func TestEnginesAreQuantities(t *testing.T) {
	for _, c := range []struct {
		busy float64 // decoders
		want answer
	}{
		{0, answer{Action: ActionSlice, Profile: "1g.10gb"}},
		{0.1, answer{Action: ActionSlice, Profile: "1g.10gb"}},
		{0.79, answer{Action: ActionSlice, Profile: "1g.10gb"}},
		{0.9, answer{Action: ActionSlice, Profile: "2g.20gb"}},
		{1.7, answer{Action: ActionSlice, Profile: "3g.40gb"}},
		{2.5, answer{Action: ActionSlice, Profile: "4g.40gb"}},
		{3.3, answer{Action: ActionKeep, Reason: ReasonMedia}},
		{5, answer{Action: ActionKeep, Reason: ReasonMedia}},
		{7, answer{Action: ActionKeep, Reason: ReasonMedia}},
	} {
		r := recommendFor(fastOptions(), longEnough, video(t, c.busy/7))
		cmptest.Equal(t, fmt.Sprintf("%v decoders: %s", c.busy, r.Explanation),
			answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended}, c.want)

		if r.Action == ActionSlice && c.busy > 0 {
			p := r.Predicted.MediaEngines[0]
			if p.Engine != "decoder" || p.Needed < c.busy || p.Needed > float64(p.Count) {
				t.Errorf("%v decoders: predicted %+v", c.busy, p)
			}
		}
	}
}

// TestEnginesAreExplained: answer and refusal say how many engines are used, and how many there
// are.
func TestEnginesAreExplained(t *testing.T) {
	for busy, want := range map[float64]string{
		1.7: "1.7 of 7 decoders busy at p99 and 1.7 at the busiest time: 3g.40gb does the work with 3 decoders",
		5: "5.0 of 7 decoders busy at p99 and 5.0 at the busiest time; no smaller profile is known to have what it needs: " +
			"6.2 decoders",
	} {
		if r := recommendFor(fastOptions(), longEnough, video(t, busy/7)); !strings.Contains(r.Explanation, want) {
			t.Errorf("%q; want %q in it", r.Explanation, want)
		}
	}

	r := recommendFor(fastOptions(), longEnough, video(t, 5./7))
	cmptest.Equal(t, "evidence", r.Evidence.MediaUse,
		[]MediaUse{{Engine: "decoder", Count: 7, BusyP99: 0.714, BusyMaxMinute: 0.714}})
}

// TestRareUseOfEngines: five decoders for ten minutes of each day are less than a hundredth of the
// time, and need five decoders then. They are forgotten after eight days.
func TestRareUseOfEngines(t *testing.T) {
	a := New(fastOptions())
	s := show(a, start(), longEnough, video(t, 0), func(at time.Time, g *gpu.GPU) {
		g.Readings.Media.Decoder = gpu.Some(0.1)
		if at.Hour() == 3 && at.Minute() < 10 {
			g.Readings.Media.Decoder = gpu.Some(5. / 7)
		}
	})
	r := recommend(a, s).Devices[0]
	cmptest.Equal(t, "answer", answer{Action: r.Action, Reason: r.Reason}, answer{Action: ActionKeep, Reason: ReasonMedia})

	if use := r.Evidence.MediaUse[0]; use.BusyP99 > 0.11 || use.BusyMaxMinute < 0.7 {
		t.Errorf("%+v, want 0.1 at p99 and 0.71 in the busiest minute", use)
	}

	for range 11 {
		s = observeFor(a, s.Time.Add(time.Minute), day, video(t, 0.1))
		r = recommend(a, s).Devices[0]
	}

	cmptest.Equal(t, "eleven days later", r.Recommended, "1g.10gb")
}

// TestEnginesInBursts: a decoder has a queue of some frames. What is decoded in ten seconds of each
// minute needs the decoders of these ten seconds, whatever the mean of the minute is.
func TestEnginesInBursts(t *testing.T) {
	a := New(fastOptions())
	g := video(t, 0)
	var s *gpu.Snapshot

	for at := start(); at.Before(start().Add(longEnough)); at = at.Add(10 * time.Second) {
		g.Readings.Media.Decoder = gpu.Some(0.)
		if at.Second() == 30 {
			g.Readings.Media.Decoder = gpu.Some(5. / 7)
		}

		s = &gpu.Snapshot{Time: at, Hostname: "node-a", GPUs: []gpu.GPU{g}}
		a.Observe(s)
	}

	r := recommend(a, s).Devices[0]
	cmptest.Equal(t, "answer", answer{Action: r.Action, Reason: r.Reason}, answer{Action: ActionKeep, Reason: ReasonMedia})

	if use := r.Evidence.MediaUse[0]; use.BusyP99 < 0.7 || use.BusyMaxMinute > 0.15 {
		t.Errorf("%+v, want 0.71 at p99 and 0.12 in the busiest minute", use)
	}
}

// TestEnginesOfOldEvidence: older exporters noted only that decoders were used. How many is unknown
// then, so a profile must have all of the device's, until all use of the last eight days was
// counted.
func TestEnginesOfOldEvidence(t *testing.T) {
	before := New(fastOptions())
	g := video(t, 0.1)
	s := observeFor(before, start(), longEnough, g)
	cmptest.Equal(t, "counted", recommend(before, s).Devices[0].Recommended, "1g.10gb")

	for _, w := range before.workloads {
		w.Engines = nil
	}

	a := restarted(t, before, s)

	for _, c := range []struct {
		about string
		after time.Duration
		want  answer
	}{
		{"at once", 0, answer{Action: ActionKeep, Reason: ReasonMedia}},
		{"after a day", day, answer{Action: ActionKeep, Reason: ReasonMedia}},
		{"after ten days", 9 * day, answer{Action: ActionSlice, Profile: "1g.10gb"}},
	} {
		var r Recommendation

		for from := s.Time; s.Time.Sub(from) <= c.after; {
			s = observeFor(a, s.Time.Add(time.Minute), day/2, g)
			r = recommend(a, s).Devices[0]
		}

		cmptest.Equal(t, c.about, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended}, c.want)
		cmptest.Equal(t, c.about+": unknown", r.Evidence.MediaUse[0].Unknown, c.want.Action == ActionKeep)
		a = restarted(t, a, s)
	}
}

// TestUnknownEngines: a profile whose engines the driver does not report is no candidate if any are
// in use, nor is any if we do not know how many the GPU has.
func TestUnknownEngines(t *testing.T) {
	without := func(g *gpu.GPU, which func(gpu.Profile) bool) {
		g.Profiles = slices.Clone(g.Profiles)
		for i := range g.Profiles {
			if which(g.Profiles[i]) {
				g.Profiles[i].Engines = gpu.None[gpu.Engines]()
			}
		}
	}
	small := func(p gpu.Profile) bool { return p.MemorySlices < 2 }

	all := func(gpu.Profile) bool { return true }
	for _, c := range []struct {
		about string
		busy  float64
		which func(gpu.Profile) bool
		want  answer
	}{
		{"of small profiles, not used", 0, small, answer{Action: ActionSlice, Profile: "1g.10gb"}},
		{"of small profiles, used", 0.1, small, answer{Action: ActionSlice, Profile: "1g.20gb"}},
		{"of all, not used", 0, all, answer{Action: ActionSlice, Profile: "1g.10gb"}},
		{"of all, used", 0.1, all, answer{Action: ActionKeep, Reason: ReasonMedia}},
	} {
		g := video(t, c.busy/7)
		without(&g, c.which)
		r := recommendFor(fastOptions(), longEnough, g)
		cmptest.Equal(t, c.about, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended}, c.want)

		if r.Action == ActionKeep && !strings.Contains(r.Explanation, "it is not known of how many") {
			t.Errorf("%s: %q", c.about, r.Explanation)
		}
	}

	// A GPU that has none of a kind by its profiles, and uses it, has none in a slice either.
	g := video(t, 0)
	g.Readings.Media.Encoder = gpu.Some(0.3)
	cmptest.Equal(t, "encoder of an H100", recommendFor(fastOptions(), longEnough, g).Reason, ReasonMedia)
}

// TestFewerEnginesThatAreNotRead: where the use of engines cannot be read, a profile with fewer is
// shown and no candidate.
func TestFewerEnginesThatAreNotRead(t *testing.T) {
	g := video(t, 0)
	g.Readings.Media = gpu.Media{}
	r := recommendFor(fastOptions(), longEnough, g)
	cmptest.Equal(t, "not checked", [2]bool{r.NotChecked, r.Candidate()}, [2]bool{true, false})
}

// videoSlice returns a slice whose decoders are busy for a share of the time.
func videoSlice(t testing.TB, model, profile string, decoders float64) gpu.GPU {
	g := slicedGPU(t, model, profile, load{busy: 0.3, sm: 0.1, gib: 2}, pod("video", "Deployment/decode"))
	g.Instances[0].Media.Decoder = gpu.Some(decoders)

	return g
}

// TestSliceWithTooFewEngines: a slice whose decoders are busy all the time has to grow to one with
// more, within a quarter of an hour, if there is one; otherwise to no other.
func TestSliceWithTooFewEngines(t *testing.T) {
	for _, c := range []struct {
		about, model, profile string
		change                func(*gpu.GPU)
		want                  answer
	}{
		{about: "1g", model: "H100-80GB", profile: "1g.10gb",
			want: answer{Action: ActionGrow, Reason: ReasonMedia, Profile: "2g.20gb"}},
		{about: "4g", model: "H100-80GB", profile: "4g.40gb",
			want: answer{Action: ActionGrow, Reason: ReasonMedia, Profile: "7g.80gb"}},
		{about: "all of the GPU's", model: "H100-80GB", profile: "7g.80gb",
			want: answer{Action: ActionKeep, Reason: ReasonLittleEvidence}},
		{about: "the only JPEG engine", model: "A100-40GB", profile: "1g.5gb+me",
			change: func(g *gpu.GPU) { g.Instances[0].Media = gpu.Media{JPEG: gpu.Some(1.), Decoder: gpu.Some(0.)} },
			want:   answer{Action: ActionKeep, Reason: ReasonLittleEvidence}},
		{about: "busy for most of the time", model: "H100-80GB", profile: "1g.10gb",
			change: func(g *gpu.GPU) { g.Instances[0].Media.Decoder = gpu.Some(0.9) },
			want:   answer{Action: ActionKeep, Reason: ReasonLittleEvidence}},
		{about: "without other activity", model: "H100-80GB", profile: "1g.10gb",
			change: func(g *gpu.GPU) { setInstanceActivity(g, 0, 0) },
			want:   answer{Action: ActionGrow, Reason: ReasonMedia, Profile: "2g.20gb"}},
	} {
		g := videoSlice(t, c.model, c.profile, 1)
		if c.change != nil {
			c.change(&g)
		}

		r := recommendFor(fastOptions(), 12*time.Minute, g)
		cmptest.Equal(t, c.about+": "+r.Explanation, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended}, c.want)
	}
}

// TestDecodingIsNotIdle: a slice that decodes without any kernel, in a part of its polls, is not
// idle.
func TestDecodingIsNotIdle(t *testing.T) {
	for about, c := range map[string]struct {
		every int // minutes
		want  Action
	}{"decodes": {1, ActionKeep}, "now and then": {30, ActionKeep}, "not any more": {1 << 20, ActionIdle}} {
		a := New(fastOptions())
		g := videoSlice(t, "H100-80GB", "1g.10gb", 0)
		setInstanceActivity(&g, 0, 0)
		minute := 0
		s := show(a, start(), 26*time.Hour, g, func(_ time.Time, g *gpu.GPU) {
			instance := g.Instances[0]
			instance.Media.Decoder = gpu.Some(0.3 * float64(1/(1+minute%c.every)))
			g.Instances = []gpu.GPUInstance{instance}
			minute++
		})
		cmptest.Equal(t, about, recommend(a, s).Devices[0].Action, c.want)
	}
}

// TestIdleIsNoWordOnUnreadEngines: an idle slice with media engines that cannot be read may use these. One
// that has none, or whose engines are read, does nothing.
func TestIdleIsNoWordOnUnreadEngines(t *testing.T) {
	read := gpu.Media{Decoder: gpu.Some(0.), JPEG: gpu.Some(0.), OFA: gpu.Some(0.)}

	for about, c := range map[string]struct {
		model, profile string
		media          gpu.Media
		says           string
	}{
		"with decoders":    {"A100-40GB", "2g.10gb", gpu.Media{}, "no kernel ran; its media engines cannot be read"},
		"without engines":  {"A100-40GB", "1g.5gb", gpu.Media{}, ""},
		"that can be read": {"H100-80GB", "2g.20gb", read, ""},
	} {
		g := videoSlice(t, c.model, c.profile, 0)
		g.Instances[0].Media = c.media
		setInstanceActivity(&g, 0, 0)

		r := recommendFor(fastOptions(), 26*time.Hour, g)
		cmptest.Equal(t, about, r.Action, ActionIdle)
		cmptest.Equal(t, about+": "+r.Explanation, r.Explanation == "", c.says == "")
		cmptest.HasTexts(t, r.Explanation, c.says)
	}
}

func setInstanceActivity(g *gpu.GPU, busy, sm float64) {
	g.Instances[0].Activity.GraphicsEngine, g.Instances[0].Activity.SM = gpu.Some(busy), gpu.Some(sm)
}

// TestShrinkKeepsTheEngines: a slice shrinks as far as its decoders allow; its own figures are of
// its own engines.
func TestShrinkKeepsTheEngines(t *testing.T) {
	for busy, want := range map[float64]answer{ // of three decoders
		0.5: {Action: ActionShrink, Profile: "1g.10gb"},
		1.3: {Action: ActionShrink, Profile: "2g.20gb"},
		1.9: {Action: ActionKeep},
	} {
		g := videoSlice(t, "H100-80GB", "3g.40gb", busy/3)
		setInstanceActivity(&g, 0.3, 0.02)
		r := recommendFor(fastOptions(), longEnough, g)
		cmptest.Equal(t, fmt.Sprint(busy, " decoders"), answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended}, want)
	}
}

// TestEnginesThatASliceLacksNeedNotBeRead: the driver reports nothing of engines that a GPU
// instance does not have.
func TestEnginesThatASliceLacksNeedNotBeRead(t *testing.T) {
	for _, c := range []struct {
		about   string
		media   gpu.Media
		checked bool
	}{
		{"of what it has", gpu.Media{Decoder: gpu.Some(0.), JPEG: gpu.Some(0.)}, true},
		{"not of decoders", gpu.Media{JPEG: gpu.Some(0.)}, false},
		{"of nothing", gpu.Media{}, false},
	} {
		g := videoSlice(t, "H100-80GB", "3g.40gb", 0)
		setInstanceActivity(&g, 0.3, 0.02)
		g.Instances[0].Media = c.media
		r := recommendFor(fastOptions(), longEnough, g)
		cmptest.Equal(t, c.about, answer{Action: r.Action, Profile: r.Recommended},
			answer{Action: ActionShrink, Profile: "1g.10gb"})
		cmptest.Equal(t, c.about+": not checked", r.NotChecked, !c.checked)
	}
}

// TestGrowLeavesNoEnginesBehind: a slice with too few SMs grows to one with the engines that it
// uses, and need not find more of them.
func TestGrowLeavesNoEnginesBehind(t *testing.T) {
	g := videoSlice(t, "H100-80GB", "2g.20gb", 0.9) // 1.8 of 2 decoders
	setInstanceActivity(&g, 1, 0.97)
	r := recommendFor(fastOptions(), 15*time.Minute, g)
	cmptest.Equal(t, "answer", answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended},
		answer{Action: ActionGrow, Reason: ReasonSaturated, Profile: "3g.40gb"})
}

// TestEnginesAreKept: evidence on engines survives restarts and clocks that are set.
func TestEnginesAreKept(t *testing.T) {
	a := New(fastOptions())
	s := show(a, start(), 4*day, video(t, 0), func(at time.Time, g *gpu.GPU) {
		g.Readings.Media.Decoder = gpu.Some(0.1)
		if at.Hour() == 3 {
			g.Readings.Media.Decoder = gpu.Some(0.5)
		}
	})
	want := recommend(a, s).Devices[0].Evidence.MediaUse
	after := restarted(t, a, s)
	after.Observe(s)
	cmptest.Equal(t, "after a restart", recommend(after, s).Devices[0].Evidence.MediaUse, want)
	s = observeFor(after, s.Time.Add(-30*day), 15*time.Minute, video(t, 0.1))
	cmptest.Equal(t, "a month earlier", recommend(after, s).Devices[0].Evidence.MediaUse, want)

	for _, w := range after.workloads {
		w.Engines = append(w.Engines, w.Engines[0])
		if err := w.validate(after.now); err == nil {
			t.Error("engines of one kind twice are valid")
		}

		w.Engines[1].Kind = mediaKinds
		if err := w.validate(after.now); err == nil {
			t.Error("engines of an unknown kind are valid")
		}
	}
}

// TestEnginesTakeLittle: 10,000 workloads that decode a day stay below 25 MiB: each takes 0.3 KiB
// more than one that does not. Counting allocates nothing.
func TestEnginesTakeLittle(t *testing.T) {
	a := New(fastOptions())
	base := video(t, 0.3)
	before := heapBytes()

	for i := range 25_000 {
		g := base
		g.Holders = []gpu.Holder{pod("batch", fmt.Sprintf("Job/video-%d", i))}
		observeFor(a, start().Add(time.Duration(i)*9*time.Second), 0, g)
	}

	checkHeap(t, a, before, 25<<20)

	counted := 0

	for _, w := range a.workloads {
		if len(w.Engines) > 0 {
			counted++
		}
	}

	if counted < len(a.workloads)-1 { // the last one was seen once
		t.Errorf("of %d of %d workloads engines are counted", counted, len(a.workloads))
	}

	var saved bytes.Buffer
	if err := a.Checkpoint().Write(&saved); err != nil {
		t.Fatal(err)
	}

	if c, err := ReadCheckpoint(&saved); err != nil || len(c.Workloads) != len(a.workloads) {
		t.Errorf("%v: %d workloads were read, want %d", err, len(c.Workloads), len(a.workloads))
	}

	s := &gpu.Snapshot{Time: start().Add(10 * day), Hostname: "node-a", GPUs: []gpu.GPU{base}}
	a.Observe(s)

	if allocs := testing.AllocsPerRun(200, func() {
		s.Time = s.Time.Add(time.Second)
		a.Observe(s)
	}); allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// TestExplanationWithoutKernels: what decodes and runs no kernel is not said to do nothing.
func TestExplanationWithoutKernels(t *testing.T) {
	g := video(t, 0.1)
	g.Activity = gpu.Activity{GraphicsEngine: gpu.Some(0.), SM: gpu.Some(0.), DRAM: gpu.Some(0.)}
	r := recommendFor(fastOptions(), longEnough, g)
	cmptest.HasTexts(t, r.Explanation, "no kernel ran on it; 0.7 of 7 decoders busy at p99", "1g.10gb has the memory, and 1 decoder;")
}
