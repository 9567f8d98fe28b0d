package advise

import (
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// idleAfter is how long a container must have held its memory, and run nothing, before we call its
// slice idle.
const idleAfter = 24 * time.Hour

// A slice is too small from these shares on: means over ten minutes of busy time, of the width of its
// kernels and of memory bandwidth, and the largest use of memory in the last minute.
const (
	saturatedBusy      = 0.98
	saturatedWidth     = 0.95
	saturatedBandwidth = 0.95 * reachableBandwidth
	fullMemory         = 0.95
)

// recommendInstance fills in the recommendation for a GPU instance that is held.
func (a *Advisor) recommendInstance(
	r *Recommendation,
	g *gpu.GPU,
	i *gpu.GPUInstance,
	d *device,
	hints gpu.RightsizingHints,
) {
	w := d.workload
	current := instanceCapacity(g, i)
	whole := wholeCapacity(g)
	stretch := d.minStretch(current, whole)
	mean := max(stretch, d.meanStretch(current, whole))

	e := evidenceOf(w, a.now)
	defer func() { e.queueOf = nil }() // it refers to the workload, and the report outlives that

	a.requireVersions(w, &e)
	a.addServer(w, &e, hints)
	e.countEngines(current)
	e.requests = requestsOf(w, &e, hints, stretch)

	r.Evidence = &e
	r.Confidence = confidence(&e)
	r.Provisional = w.isProvisional(a.now) || e.Server.isProvisional()

	short := d.shortEngines(current, g.Profiles)
	reason := a.reasonToGrow(d, &e, current, stretch, mean, a.limitsOf(hints), short)

	switch {
	case hints.OptOut:
		r.keep(ReasonOptedOut)
	case !i.IsSplit() && a.recommendDown(r, g, d, current):
	case reason != ReasonNone:
		engines := a.largerEngines(&e, w, current, g, short)
		r.Action = ActionGrow
		r.Reason = reason
		r.Recommended = largerProfile(g, current, reason, needBytes(&e, a.options.Headroom), engines)
	case d.isIdle(a.now):
		r.Action = ActionIdle
		r.Confidence = idleConfidence(&e)
	case r.job != "":
		r.keep(ReasonMultiGPU)
	case w.Key.Shared || i.IsSplit():
		r.keep(ReasonShared)
	case time.Duration(w.Observed*float64(time.Second)) < a.options.MinEvidence:
		r.keep(ReasonLittleEvidence)
	case e.CoverageRatio < minCoverage:
		r.keep(ReasonLowCoverage)
	default:
		a.recommendShrink(r, g, w, &e, current, hints)
	}
}

// keep recommends to keep the device, for a reason.
func (r *Recommendation) keep(reason Reason) {
	r.Action = ActionKeep
	r.Reason = reason
}

// reasonToGrow returns why the workload of a slice needs a larger one; ReasonNone if it does not. The
// slice stretches its kernels by stretch at least, and by mean on average; it has too few of the media
// engines that are short.
func (a *Advisor) reasonToGrow(
	d *device,
	e *Evidence,
	current capacity,
	stretch, mean float64,
	limits limits,
	short [mediaKinds]bool,
) Reason {
	reason := d.saturation(current, stretch, mean, limits, e.requests)

	// A workload that takes all memory that it finds would fill a larger device, too.
	takesAll := isPreallocated(d.workload, e, current.memoryBytes) || e.Server.isKnown()
	if reason == ReasonMemoryFull && takesAll {
		reason = ReasonNone
	}

	if reason != ReasonNone {
		return reason
	}

	if e.Server != nil && d.server.isFull(a.now, a.options.serverGap()) {
		e.Server.full = true
		return ReasonMemoryFull
	}

	if short != [mediaKinds]bool{} {
		return ReasonMedia
	}

	return ReasonNone
}

// recommendShrink looks for a smaller profile.
func (a *Advisor) recommendShrink(
	r *Recommendation,
	g *gpu.GPU,
	w *workload,
	e *Evidence,
	current capacity,
	hints gpu.RightsizingHints,
) {
	r.Action = ActionKeep
	days := w.sums(a.now)
	stretch := w.minStretch(float64(days.MinWidth), float64(days.MinBandwidth), current, wholeCapacity(g))

	switch {
	case isPreallocated(w, e, current.memoryBytes):
		r.Reason = ReasonPreallocated
	case e.MemoryUnread:
		r.Reason = ReasonMemoryUnread
	case e.ActivityUnread || w.Untrusted:
		r.Action = ActionUnknown
		r.Reason = ReasonNoActivity
	case e.P95.Width >= saturatedWidth:
		// Kernels that fill the slice may be wider than it: we cannot tell whether they fit a
		// smaller one.
		w.Answer = answer{Action: ActionKeep}
		w.Next = answer{}

		return
	case stretch > unchangedStretch:
		r.Reason = ReasonStretch
	}

	if r.Reason != ReasonNone {
		w.keepRefusal(r.Reason)
		return
	}

	trials := tryProfiles(g, e, current, a.limitsOf(hints), a.options)
	decided := answer{Action: ActionKeep}

	at := slices.IndexFunc(trials, func(t trial) bool { return t.reason == ReasonNone })
	if at >= 0 {
		decided = answer{Action: ActionShrink, Profile: trials[at].profile.Name}
	}

	stable := a.stableAnswer(w, decided, trials)
	if stable.Action != ActionShrink {
		stable = answer{Action: ActionKeep} // the last answer may have been kept for another reason
	}

	r.setAnswer(requireStart(stable, e), trials, a.options)
}

// instanceCapacity returns what a GPU instance has. Its profile says it or, if the GPU does not offer
// the profile, the instance itself.
func instanceCapacity(g *gpu.GPU, i *gpu.GPUInstance) capacity {
	c := capacity{
		sms:          i.SMs.Or(0),
		memorySlices: i.MemorySlices.Or(0),
		memoryBytes:  float64(i.Memory.Total.Or(0)),
	}

	if p := findProfile(g, i.Profile); p != nil {
		c.sms = p.SMs
		c.memorySlices = p.MemorySlices
		c.engines = p.Engines

		if c.memoryBytes == 0 {
			c.memoryBytes = float64(p.MemoryBytes)
		}
	}

	return c
}

// minStretch returns how far the kernels of the last ten minutes are stretched at least; 1 if hardly
// any ran.
func (d *device) minStretch(current, whole capacity) float64 {
	last := d.lastTenMinutes()
	if last.busy < minBusy {
		return 1
	}

	return d.workload.minStretch(float64(last.sm/last.busy), float64(last.dram/last.busy), current, whole)
}

// minStretch returns how far kernels are stretched at least in a GPU instance if they use these shares
// of it while they run: the same work on fewer SMs, or at less bandwidth, takes that much longer. It
// is 1 if the workload was not seen on the whole GPU.
func (w *workload) minStretch(width, drawn float64, current, whole capacity) float64 {
	stretch := 1.
	if whole.sms == 0 || whole.memorySlices == 0 {
		return stretch
	}

	// As shares of the whole GPU.
	width *= float64(current.sms) / float64(whole.sms)
	drawn *= float64(current.memorySlices) / float64(whole.memorySlices)

	if width > 0 {
		stretch = max(stretch, float64(w.Before.Width)/width)
	}

	if drawn > 0 && w.Before.Bandwidth > minBandwidth {
		stretch = max(stretch, float64(w.Before.Bandwidth)/drawn)
	}

	return stretch
}

// minBandwidth is the share of the whole GPU's bandwidth that kernels must have drawn there for a
// comparison to count: the ratio of two smaller readings says little.
const minBandwidth = 0.02

// saturation returns what a slice has had too little of for the last ten minutes, see reasonToGrow.
func (d *device) saturation(
	current capacity,
	stretch, mean float64,
	limits limits,
	requests requests,
) Reason {
	if used := d.memory * (1 << 20); current.memoryBytes > 0 && used >= fullMemory*current.memoryBytes {
		return ReasonMemoryFull
	}

	last := d.lastTenMinutes()
	if d.count < len(d.last10) || last.unread || d.workload.Untrusted {
		return ReasonNone
	}

	busy := float64(last.busy)

	switch {
	case float64(last.dram) >= saturatedBandwidth:
		return ReasonBandwidth
	case busy >= saturatedBusy && (float64(last.sm) >= saturatedWidth*busy || stretch > unchangedStretch):
		return ReasonSaturated
	case stretch > limits.stretch:
		return ReasonStretch
	case mean <= unchangedStretch:
		return ReasonNone
	case requests.closed: // no client waits for a single one: only throughput counts
	case meanLatencyRatio(stretch, busy) > limits.stretch || d.isLate(mean, requests, limits):
		return ReasonLatency
	}

	if d.loses(mean, requests, limits) {
		return ReasonThroughput
	}

	return ReasonNone
}

// largerProfile returns the smallest profile that has more of what a slice is short of, and has the
// memory and the media engines that are needed. It is empty if only the whole GPU has all of that.
func largerProfile(
	g *gpu.GPU,
	than capacity,
	short Reason,
	need float64,
	engines engineNeeds,
) string {
	var best *gpu.Profile

	for i := range g.Profiles {
		p := &g.Profiles[i]
		more := p.SMs > than.sms && p.MemorySlices >= than.memorySlices

		if short == ReasonBandwidth || short == ReasonMemoryFull {
			more = p.MemorySlices > than.memorySlices && p.SMs >= than.sms
		}

		// What is short is in engines, which also ask for more.
		if short == ReasonMedia {
			more = p.MemorySlices >= than.memorySlices && p.SMs >= than.sms
		}

		fits := more && len(p.Placements) > 0 && need <= float64(p.MemoryBytes) && !lacksEngines(p, engines)
		if fits && (best == nil || compareProfiles(p, best) < 0) {
			best = p
		}
	}

	if best == nil {
		return ""
	}

	return best.Name
}
