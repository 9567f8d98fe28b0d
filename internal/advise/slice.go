package advise

import (
	"cmp"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// idleAfter is how long nothing must have run on a held device before it is called idle.
const idleAfter = time.Hour

// A slice is saturated from these means over ten minutes on: of busy time, of the width of its kernels, and of bandwidth; and full
// from this share of memory on.
const (
	saturatedBusy, saturatedWidth, saturatedBandwidth = 0.98, 0.95, 0.9
	fullMemory                                        = 0.95
)

// recommendInstance fills in the recommendation for a GPU instance that is held.
func (a *Advisor) recommendInstance(r *Recommendation, g *gpu.GPU, i *gpu.GPUInstance, d *device, hints gpu.RightsizingHints) {
	w := d.workload
	e := evidenceOf(w, a.now)
	r.Evidence, r.Confidence = &e, confidence(&e)
	r.Provisional = a.now.Sub(w.First) < provisionalBefore
	of := instanceCapacity(g, i)
	switch reason := d.saturation(of); {
	case hints.OptOut:
		r.Action, r.Reason = ActionKeep, ReasonOptedOut
	case reason != ReasonNone:
		r.Action, r.Reason, r.Recommended = ActionGrow, reason, largerProfile(g, of, reason)
	case !d.idle.IsZero() && a.now.Sub(d.idle) >= idleAfter:
		r.Action = ActionIdle
	case w.Key.Shared || i.IsSplit():
		r.Action, r.Reason = ActionKeep, ReasonShared
	case time.Duration(w.Observed*float64(time.Second)) < a.options.MinEvidence:
		r.Action, r.Reason = ActionKeep, ReasonLittleEvidence
	case e.CoverageRatio < minCoverage:
		r.Action, r.Reason = ActionKeep, ReasonLowCoverage
	default:
		a.recommendShrink(r, g, w, &e, of, hints)
	}
}

// recommendShrink looks for a smaller profile. What was seen on a slice that is nearly full of kernels is a lower bound: it does not
// count as evidence for a smaller one.
func (a *Advisor) recommendShrink(
	r *Recommendation, g *gpu.GPU, w *workload, e *Evidence, of capacity, hints gpu.RightsizingHints,
) {
	r.Action = ActionKeep
	switch {
	case isPreallocated(w, e, of.memoryBytes):
		r.Reason = ReasonPreallocated
		return
	case isUnread(w.ActivityUnread, w.Observed) || w.Untrusted:
		r.Reason = ReasonNoActivity
		return
	case e.P95.Width >= saturatedWidth:
		return
	}
	for _, p := range smallerProfiles(g, of) {
		t := try(e, p, of, a.limitsOf(hints), a.options)
		r.Considered = append(r.Considered, Considered{Profile: p.Name, Reason: t.reason, StretchP95: t.p95})
		if t.reason != ReasonNone {
			continue
		}
		decided := a.settleAnswer(w, answer{Action: ActionShrink, Profile: p.Name}, g.Profiles)
		if decided.Action == ActionShrink && decided.Profile == p.Name {
			r.Action, r.Recommended = ActionShrink, p.Name
			r.predict(&t)
		}
		return
	}
	a.settleAnswer(w, answer{Action: ActionKeep}, g.Profiles)
}

// instanceCapacity returns what a GPU instance has: its profile's, where the driver says it, else its own.
func instanceCapacity(g *gpu.GPU, i *gpu.GPUInstance) capacity {
	c := capacity{sms: i.SMs.Or(0), memorySlices: i.MemorySlices.Or(0), memoryBytes: float64(i.Memory.Total.Or(0))}
	if at := slices.IndexFunc(g.Profiles, func(p gpu.Profile) bool { return p.Name == i.Profile }); at >= 0 {
		p := &g.Profiles[at]
		c.sms, c.memorySlices, c.engines = p.SMs, p.MemorySlices, p.Engines
		if c.memoryBytes == 0 {
			c.memoryBytes = float64(p.MemoryBytes)
		}
	}
	return c
}

// saturation returns what a slice has had too little of for the last ten minutes.
func (d *device) saturation(of capacity) Reason {
	if used := d.memory * (1 << 20); of.memoryBytes > 0 && used >= fullMemory*of.memoryBytes {
		return ReasonMemoryFull
	}
	if d.count < len(d.last10) {
		return ReasonNone
	}
	var busy, sm, dram float64
	for _, m := range d.last10 {
		busy, sm, dram = busy+float64(m.busy), sm+float64(m.sm), dram+float64(m.dram)
	}
	n := float64(len(d.last10))
	switch {
	case busy >= saturatedBusy*n && sm >= saturatedWidth*busy:
		return ReasonSaturated
	case dram >= saturatedBandwidth*n:
		return ReasonBandwidth
	}
	return ReasonNone
}

// largerProfile returns the smallest profile that has more of what is short; empty if there is none but the whole GPU.
func largerProfile(g *gpu.GPU, than capacity, short Reason) string {
	var best *gpu.Profile
	for i := range g.Profiles {
		p := &g.Profiles[i]
		more := p.SMs > than.sms && p.MemorySlices >= than.memorySlices
		if short != ReasonSaturated {
			more = p.MemorySlices > than.memorySlices && p.SMs >= than.sms
		}
		if more && len(p.Placements) > 0 && (best == nil || isSmaller(p, best)) {
			best = p
		}
	}
	if best == nil {
		return ""
	}
	return best.Name
}

func isSmaller(a, b *gpu.Profile) bool {
	return cmp.Or(cmp.Compare(a.MemorySlices, b.MemorySlices), cmp.Compare(a.SMs, b.SMs),
		cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name)) < 0
}
