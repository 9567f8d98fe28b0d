package advise

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// changedLoads are what a workload can begin to do, all of which a small slice lacks.
func changedLoads() map[string]func(*gpu.GPU) {
	return map[string]func(*gpu.GPU){
		"decodes":          func(g *gpu.GPU) { g.Readings.Media.Decoder = gpu.Some(0.4) },
		"decodes JPEG":     func(g *gpu.GPU) { g.Readings.Media.JPEG = gpu.Some(0.4) },
		"estimates motion": func(g *gpu.GPU) { g.Readings.Media.OFA = gpu.Some(0.4) },
		"takes 12 GiB":     func(g *gpu.GPU) { g.Readings.Memory.Used = gpu.Some[uint64](12 << 30) },
		"wide kernels":     func(g *gpu.GPU) { setActivity(g, 0.9, 0.8, 0.1) },
		"half as wide":     func(g *gpu.GPU) { setActivity(g, 0.3, 0.1, 0.02) },
		"much bandwidth":   func(g *gpu.GPU) { setActivity(g, 0.5, 0.01, 0.4) },
	}
}

// checkRecommended fails if a report recommends a profile of which it says why it does not do, or
// none that it has considered.
func checkRecommended(t *testing.T, about string, report *Report) {
	t.Helper()

	for i := range report.Devices {
		r := &report.Devices[i]
		if r.Action != ActionSlice && r.Action != ActionShrink {
			continue
		}

		found := false

		for _, c := range r.Considered {
			if c.Profile == r.Recommended {
				found = true
				cmptest.Equal(t, about+": why "+c.Profile+" does not do", c.Reason, ReasonNone)
			}
		}

		if !found {
			t.Errorf("%s: %s was not considered", about, r.Recommended)
		}
	}
}

// TestRecommendedProfileDoes: a recommended profile that does not do any more is replaced at once,
// whatever replaces it; the one before is not shown for as long as it would have to hold.
func TestRecommendedProfileDoes(t *testing.T) {
	for _, model := range []string{"A30-24GB", "A100-40GB", "H100-80GB"} {
		for about, change := range changedLoads() {
			a := New(fastOptions())
			g := wholeGPU(t, model, 0, load{busy: 0.5, sm: 0.01, gib: 1}, pod("ml", "Deployment/a"))
			s := observeFor(a, start(), longEnough, g)
			cmptest.Equal(t, model+" "+about+": before", recommend(a, s).Devices[0].Action, ActionSlice)
			change(&g)

			for range 20 {
				s = observeFor(a, s.Time.Add(time.Minute), 3*time.Minute, g)
				checkRecommended(t, model+" "+about, recommend(a, s))
			}

			for range 8 {
				s = observeFor(a, s.Time.Add(time.Minute), 24*time.Hour, g)
				checkRecommended(t, model+" "+about, recommend(a, s))
			}
		}
	}
}

// TestVideoThatBeginsLater: the slice without a decoder is no candidate from the first window with
// video on.
func TestVideoThatBeginsLater(t *testing.T) {
	a := New(fastOptions())
	g := wholeGPU(t, "A100-40GB", 0, load{busy: 0.5, sm: 0.01, gib: 1}, pod("ml", "Deployment/a"))
	s := observeFor(a, start(), longEnough, g)
	cmptest.Equal(t, "before", recommend(a, s).Devices[0].Recommended, "1g.5gb")
	g.Readings.Media.Decoder = gpu.Some(0.1)
	s = observeFor(a, s.Time.Add(time.Minute), time.Minute, g)
	r := recommend(a, s)
	cmptest.Equal(t, "with video", r.Devices[0].Recommended, "1g.5gb+me")
	cmptest.Equal(t, "slice in the packing", r.Packing.GPUs[0].Slices[0].Profile, "1g.5gb+me")
}

// TestShrinkOfASliceThatDoes: the smaller profile for a slice is one that does, too, and the last
// one that does stays until a smaller one has been the answer for long enough.
func TestShrinkOfASliceThatDoes(t *testing.T) {
	for about, c := range map[string]struct {
		change        func(*gpu.GPUInstance)
		before, after string
	}{
		"decodes":           {func(i *gpu.GPUInstance) { i.Media.Decoder = gpu.Some(0.3) }, "1g.5gb", "1g.5gb+me"},
		"runs wide kernels": {func(i *gpu.GPUInstance) { i.Activity.SM = gpu.Some(0.25) }, "1g.5gb", "2g.10gb"},
	} {
		a := New(fastOptions())
		g := slicedGPU(t, "A100-40GB", "3g.20gb", load{busy: 0.5, sm: 0.02, gib: 1}, pod("ml", "Deployment/a"))
		small := g.Instances[0]
		s := observeFor(a, start(), longEnough, g)
		cmptest.Equal(t, about+": before", recommend(a, s).Devices[0].Recommended, c.before)
		c.change(&g.Instances[0])
		s = observeFor(a, s.Time.Add(time.Minute), 8*time.Hour, g)
		cmptest.Equal(t, about, recommend(a, s).Devices[0].Recommended, c.after)
		checkRecommended(t, about, recommend(a, s))
		g.Instances[0] = small
		s = observeFor(a, s.Time.Add(time.Minute), longEnough+time.Hour, g)
		r := recommend(a, s).Devices[0]
		cmptest.Equal(t, about+": when it has just ended", answer{Action: r.Action, Profile: r.Recommended},
			answer{Action: ActionShrink, Profile: c.after})

		for range 5 { // the busiest hours of up to twelve days count
			s = observeFor(a, s.Time.Add(time.Minute), 24*time.Hour, g)
			recommend(a, s)
		}

		cmptest.Equal(t, about+": days later", recommend(a, s).Devices[0].Recommended, c.before)
	}
}
