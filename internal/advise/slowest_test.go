package advise

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// mixed sets an activity to that of short requests with narrow kernels, of which each fifth second
// has one with wide kernels instead.
func mixed(v *gpu.Activity, second int, narrow, wide float64) {
	busy, width := 0.05, narrow
	if second%5 == 0 {
		width = wide
	}

	v.GraphicsEngine, v.SM, v.DRAM = gpu.Some(busy), gpu.Some(busy*width), gpu.Some(0.)
}

// TestSlowestRequestsDecide: minutes that are all alike hide the fifth of the busy time that a slice
// stretches beyond the limit.
func TestSlowestRequestsDecide(t *testing.T) {
	for about, c := range map[string]struct {
		wide float64
		late bool
	}{"all alike": {0.2, false}, "a fifth is wide": {0.98, true}} {
		a := New(DefaultOptions())
		g := wholeGPU(t, "H100-80GB", 0, load{gib: 4}, pod("ml", "Deployment/a"))
		s := &gpu.Snapshot{Time: start(), GPUs: []gpu.GPU{g}}

		for second := range 3660 {
			mixed(&s.GPUs[0].Activity, second, 0.2, c.wide)
			a.Observe(s)
			s.Time = s.Time.Add(time.Second)
		}

		e := evidenceOf(a.devices[gpu.IDOfGPU(g.UUID)].workload, a.now)
		for _, tried := range tryProfiles(&g, &e, wholeCapacity(&g), limits{stretch: 2}, a.options) {
			if tried.profile.Name != "3g.40gb" {
				continue
			}

			if tried.p95.Expected > 2 {
				t.Errorf("%s: minutes are stretched by %.2f: they should hide it", about, tried.p95.Expected)
			}

			if late := tried.reason == ReasonLatency; late != c.late {
				t.Errorf("%s: %q, with a latency of %+v", about, tried.reason, tried.latency)
			}
		}
	}
}

// TestSlowestRequestsInASlice: a slice that stretches all kernels somewhat stretches some beyond the
// limit if those were wider on the whole GPU.
func TestSlowestRequestsInASlice(t *testing.T) {
	for about, c := range map[string]struct {
		wide float64
		want answer
	}{
		"all alike":       {0.2, answer{Action: ActionKeep, Reason: ReasonLittleEvidence}},
		"a fifth is wide": {0.98, answer{Action: ActionGrow, Reason: ReasonLatency, Profile: "4g.40gb"}},
	} {
		o := DefaultOptions()
		o.MaxGap = 2 * time.Minute
		a := New(o)
		g := wholeGPU(t, "H100-80GB", 0, load{gib: 4}, pod("ml", "Deployment/a"))
		s := &gpu.Snapshot{Time: start(), GPUs: []gpu.GPU{g}}

		for second := range 3660 {
			mixed(&s.GPUs[0].Activity, second, 0.2, c.wide)
			a.Observe(s)
			s.Time = s.Time.Add(time.Second)
		}

		// The slice works on all its SMs, somewhat longer than the whole GPU.
		mean := (4*0.2 + c.wide) / 5
		moved := slicedGPU(t, "H100-80GB", "3g.40gb", load{0.07, 0.07 * mean / 1.4 * 132 / 60, 0, 4}, pod("ml", "Deployment/a"))
		s = observeFor(a, s.Time.Add(time.Second), 30*time.Minute, moved)
		r := recommend(a, s).Devices[0]
		cmptest.Equal(t, about+": "+r.Explanation, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended}, c.want)
	}
}

// TestSpellsFillASlice: requests that come in spells for which a slice has no time are late, however
// little it is busy on the whole.
func TestSpellsFillASlice(t *testing.T) {
	for seconds, want := range map[int]answer{
		1:  {Action: ActionKeep, Reason: ReasonLittleEvidence},
		30: {Action: ActionGrow, Reason: ReasonLatency, Profile: "4g.40gb"},
	} {
		a := New(fastOptions())
		h := pod("ml", "Deployment/a")
		h.Rightsizing.ServiceTime = gpu.Some(10 * time.Millisecond)
		s := observeFor(a, start(), 48*time.Hour, wholeGPU(t, "H100-80GB", 0, load{busy: 0.1, sm: 0.05, gib: 4}, h))
		g := slicedGPU(t, "H100-80GB", "3g.40gb", load{gib: 4}, h)
		s = &gpu.Snapshot{Time: s.Time, Hostname: s.Hostname, GPUs: []gpu.GPU{g}}

		for second := range 3000 {
			v := &s.GPUs[0].Instances[0].Activity
			busy := 0.03 // not idle: requests are shorter than a second

			if second%(10*seconds) < seconds {
				busy = 0.97
			}

			v.GraphicsEngine, v.SM, v.DRAM = gpu.Some(busy), gpu.Some(busy*0.5/1.2*132/60), gpu.Some(0.)
			s.Time = s.Time.Add(time.Second)
			a.Observe(s)
		}

		r := recommend(a, s).Devices[0]
		cmptest.Equal(t, r.Explanation, answer{Action: r.Action, Reason: r.Reason, Profile: r.Recommended}, want)
	}
}
