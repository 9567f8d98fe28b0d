package advise

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestWorkOfRareBursts: two busy minutes in four hours are less than a hundredth of the time, and
// most of the work: a slice that has no time for all of theirs is refused.
func TestWorkOfRareBursts(t *testing.T) {
	for about, c := range map[string]struct {
		burst float64
		want  answer
	}{
		"the slice keeps up": {0.5, answer{Action: ActionSlice, Profile: "3g.40gb"}},
		"it falls behind":    {1, answer{Action: ActionShare, Reason: ReasonBusy}},
	} {
		a := New(fastOptions())
		g := served(t, 0, 0, func(h *gpu.Holder) { h.Rightsizing.Closed = true })
		g.Readings.Memory.Used = gpu.Some(uint64(25 << 30))
		s := show(a, start(), longEnough, g, func(at time.Time, g *gpu.GPU) {
			busy := 0.001
			if at.Hour()%4 == 0 && at.Minute() < 2 {
				busy = c.burst
			}

			g.Activity.GraphicsEngine, g.Activity.SM = gpu.Some(busy), gpu.Some(busy*0.55)
			g.Activity.DRAM = gpu.Some(0.)
		})
		r := recommend(a, s).Devices[0]
		cmptest.Equal(t, about+": "+r.Explanation, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended}, c.want)
	}
}

// TestClientsThatWait: clients that wait for answers that take longer send fewer requests, though the
// slice has time for all of them.
func TestClientsThatWait(t *testing.T) {
	refused := answer{Action: ActionShare, Reason: ReasonThroughput}
	sliced := answer{Action: ActionSlice, Profile: "3g.40gb"}
	none := func(h *gpu.Holder) { h.Rightsizing.Closed = true }

	for _, c := range []struct {
		about  string
		busy   float64
		change func(*gpu.Holder)
		want   answer
	}{
		{"they may wait", 0.25, nil, refused},
		{"they may wait, and hardly any comes", 0.13, nil, sliced},
		{"they do not wait", 0.25, func(h *gpu.Holder) { h.Rightsizing.ServiceTime = gpu.Some(time.Second) }, sliced},
		{"they may wait for long", 0.25, func(h *gpu.Holder) { h.Rightsizing.MaxStretch = gpu.Some(4.) }, sliced},
		{"none is said to wait", 0.25, none, sliced},
		{"they wait for nine tenths of the time", 0.92, nil, answer{Action: ActionKeep, Reason: ReasonBusy}},
	} {
		r := recommendFor(fastOptions(), longEnough, served(t, c.busy, 0.6, c.change))
		cmptest.Equal(t, c.about+": "+r.Explanation, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended}, c.want)
	}
}

// TestClientsThatWaitInASlice: a slice has to grow if clients that wait do less than on the whole
// GPU, as far as busy time and the stretch of kernels show.
func TestClientsThatWaitInASlice(t *testing.T) {
	kept := answer{Action: ActionKeep, Reason: ReasonLittleEvidence}

	for _, c := range []struct {
		about        string
		before, busy float64 // on the whole GPU, and now
		change       func(*gpu.Holder)
		want         answer
	}{
		{"they may wait", 0.24, 0.3, func(*gpu.Holder) {}, answer{Action: ActionGrow, Reason: ReasonThroughput, Profile: "4g.40gb"}},
		{"and hardly any comes", 0.16, 0.2, func(*gpu.Holder) {}, kept},
		{"they do not wait", 0.24, 0.3, func(h *gpu.Holder) { h.Rightsizing.ServiceTime = gpu.Some(time.Second) }, kept},
		{"none is said to wait, and less is done", 0.24, 0.3, func(h *gpu.Holder) { h.Rightsizing.Closed = true },
			answer{Action: ActionGrow, Reason: ReasonThroughput, Profile: "4g.40gb"}},
		{"a quiet hour", 0.5, 0.3, func(*gpu.Holder) {}, kept},
		{"as much is done", 0.3 / 1.4, 0.3, func(h *gpu.Holder) { h.Rightsizing.Closed = true }, kept},
	} {
		a := New(fastOptions())
		s := observeFor(a, start(), 48*time.Hour, served(t, c.before, 0.6, c.change))

		h := pod("ml", "Deployment/a")
		c.change(&h)

		moved := slicedGPU(t, "H100-80GB", "3g.40gb", load{c.busy, c.busy * 0.6 / 1.4 * 132 / 60, 0, 25}, h)
		s = observeFor(a, s.Time.Add(time.Minute), 30*time.Minute, moved)
		r := recommend(a, s).Devices[0]
		cmptest.Equal(t, c.about+": "+r.Explanation, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended}, c.want)
	}
}

// TestLossesAreMeasured: polls without SM activity do not show how wide their kernels were, and so no
// work that a slice has no time for.
func TestLossesAreMeasured(t *testing.T) {
	a := New(fastOptions())
	g := wholeGPU(t, "H100-80GB", 0, load{0.6, 0.6 * 0.55, 0, 4}, pod("ml", "Deployment/a"))
	s := &gpu.Snapshot{Time: start(), GPUs: []gpu.GPU{g}}

	for poll := range 120 {
		s.GPUs[0].Activity.SM = gpu.Some(0.6 * 0.55)
		if poll%2 > 0 {
			s.GPUs[0].Activity.SM = gpu.None[float64]()
		}

		s.Time = s.Time.Add(30 * time.Second)
		a.Observe(s)
	}

	use := a.devices[gpu.IDOfGPU(g.UUID)].workload.queueOf(60, 4)
	cmptest.Equal(t, "work in half of the minutes", use.Spans[0].Work+use.Spans[1].Work+use.Spans[2].Work > 0.6*30*50, true)
	cmptest.Equal(t, "kept", use.kept(a.now), 1.)
}

// TestLossesAreKept: what a slice has had no time for counts for as long as the busiest hours, by a
// clock that is set, too.
func TestLossesAreKept(t *testing.T) {
	const day = 24 * time.Hour

	var u queueUse

	cmptest.Equal(t, "nothing seen", u.kept(start()), 1.)
	u.spanAt(spanOf(start())).addWork(30, 2)
	u.spanAt(spanOf(start())).addWork(30, 0.5)
	cmptest.Equal(t, "half of half the work", u.kept(start()), 0.75)
	u.shift(30)
	cmptest.Equal(t, "after the clock was set", u.kept(start().Add(30*day)), 0.75)
	cmptest.Equal(t, "a month later", u.kept(start().Add(60*day)), 1.)
}
