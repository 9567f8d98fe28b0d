package advise

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestBusyMinutesAreNotTheWideOnes: twenty minutes of each half hour are busy with narrow kernels,
// the other ten minutes have wide kernels and are busy for less: no minute of a slice is as busy as
// the busiest one with the widest kernels.
func TestBusyMinutesAreNotTheWideOnes(t *testing.T) {
	type times struct{ busy, wide float64 } // busy time with narrow and with wide kernels

	for _, c := range []struct {
		about          string
		times          times
		strict, closed bool
		want           answer
	}{
		{"neither fills a slice", times{0.7, 0.3}, false, false, answer{Action: ActionSlice, Profile: "3g.40gb"}},
		{"strictly", times{0.7, 0.3}, true, false, answer{Action: ActionKeep, Reason: ReasonBusy}},
		{"wide kernels pass the target", times{0.5, 0.47}, false, false, answer{Action: ActionKeep, Reason: ReasonLatency}},
		{"and no client waits", times{0.5, 0.47}, false, true, answer{Action: ActionSlice, Profile: "3g.40gb"}},
	} {
		h := pod("ml", "Deployment/a")
		h.Rightsizing.Closed = c.closed
		g := wholeGPU(t, "H100-80GB", 0, load{gib: 25}, h)
		g.Profiles = g.Profiles[:0:0]

		for _, p := range wholeGPU(t, "H100-80GB", 0, load{}, h).Profiles {
			if p.Name == "3g.40gb" || p.Name == "7g.80gb" {
				g.Profiles = append(g.Profiles, p)
			}
		}

		o := fastOptions()
		o.MaxStretch = 10 // of latency
		o.Strict = c.strict

		a := New(o)
		s := show(a, start(), longEnough, g, func(at time.Time, g *gpu.GPU) {
			busy, width := c.times.busy, 0.1
			if at.Minute()%30 >= 20 {
				busy, width = c.times.wide, 0.7
			}

			g.Activity.GraphicsEngine, g.Activity.SM = gpu.Some(busy), gpu.Some(busy*width)
			g.Activity.DRAM = gpu.Some(0.)
		})

		r := recommend(a, s).Devices[0]
		cmptest.Equal(t, c.about+": "+r.Explanation,
			answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended}, c.want)

		if p := r.Predicted; p != nil && !c.closed && (p.BusyP99 > o.TargetBusy || p.Busy10Minutes > 0.8) {
			t.Errorf("%s: predicted %+v", c.about, p)
		}
	}
}

// TestUnreadSampleLeavesNoMinuteOut: a sample of the busy minutes that lacks SM activity must not
// leave only the idle ones to judge by.
func TestUnreadSampleLeavesNoMinuteOut(t *testing.T) {
	h := pod("ml", "Deployment/a")
	h.Rightsizing.Closed = true

	g := wholeGPU(t, "H100-80GB", 0, load{gib: 25}, h)
	g.Profiles = slices.DeleteFunc(slices.Clone(g.Profiles), func(p gpu.Profile) bool {
		return p.Name != "3g.40gb" && p.Name != "7g.80gb"
	})
	o := fastOptions()
	o.MaxStretch = 10
	a := New(o)
	before := start().Add(-5 * time.Second)
	a.Observe(&gpu.Snapshot{Time: before, Hostname: "node-a", GPUs: unheld([]gpu.GPU{g})})

	var s *gpu.Snapshot

	for at := start(); at.Before(start().Add(longEnough)); at = at.Add(5 * time.Second) {
		busy := 0.3
		width := 0.1

		if at.Minute()%10 < 3 {
			busy = 0.95
			width = 0.7
		}

		g.Activity.GraphicsEngine = gpu.Some(busy)
		g.Activity.SM = gpu.Some(busy * width)
		g.Activity.DRAM = gpu.Some(0.0)

		if width == 0.7 && at.Second() == 30 {
			g.Activity.SM = gpu.None[float64]()
		}

		s = &gpu.Snapshot{Time: at, Hostname: "node-a", GPUs: []gpu.GPU{g}}
		a.Observe(s)
	}

	r := recommend(a, s).Devices[0]
	cmptest.Equal(t, "advice", fmt.Sprint(r.Action, " ", r.Reason), "keep busy")
}
