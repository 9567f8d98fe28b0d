package advise

import (
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// idleAfter is how long a container must have held its memory, and run nothing, before its slice is
// called idle.
const idleAfter = 24 * time.Hour

// A slice is saturated from these means over ten minutes on: of busy time, of the width of its
// kernels, and of the bandwidth that can be reached; and full from this share of memory on.
const (
	saturatedBusy, saturatedWidth = 0.98, 0.95
	saturatedBandwidth            = 0.95 * reachableBandwidth
	fullMemory                    = 0.95
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
	of := instanceCapacity(g, i)
	stretch := d.stretchedBy(of, wholeOf(g))

	e := evidenceOf(w, a.now)
	defer func() { e.queueOf = nil }() // the report outlives what it holds on to

	a.addServer(w, &e, hints)
	r.Evidence = &e
	r.Confidence = confidence(&e)
	r.Provisional = w.isProvisional(a.now)
	e.countEngines(of)
	e.requests = requestsOf(w, &e, hints, stretch)

	short := d.shortEngines(of, g.Profiles)
	mean := max(stretch, d.meanStretch(of, wholeOf(g)))
	reason := d.reasonToGrow(&e, of, stretch, mean, a.limitsOf(hints), short, a.now)

	switch {
	case hints.OptOut:
		r.keep(ReasonOptedOut)
	case !i.IsSplit() && a.recommendDown(r, g, d, of):
	case reason != ReasonNone:
		engines := a.largerEngines(&e, w, of, g, short)
		r.Action = ActionGrow
		r.Reason = reason
		r.Recommended = largerProfile(g, of, reason, needBytes(&e, a.options.Headroom), engines)
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
		a.recommendShrink(r, g, w, &e, of, hints)
	}
}

// keep makes the answer one that keeps the device, for a reason.
func (r *Recommendation) keep(reason Reason) {
	r.Action = ActionKeep
	r.Reason = reason
}

// reasonToGrow returns why the workload of a device needs a larger one, which stretches kernels at
// least and on average so far: ReasonNone if it does not.
func (d *device) reasonToGrow(
	e *Evidence,
	of capacity,
	stretch, mean float64,
	limits limits,
	short [mediaKinds]bool,
	now time.Time,
) Reason {
	reason := d.saturation(of, stretch, mean, limits, e.requests)

	// A workload that takes all memory that it finds would fill a larger device, too.
	if reason == ReasonMemoryFull && (isPreallocated(d.workload, e, of.memoryBytes) || e.Server.isKnown()) {
		reason = ReasonNone
	}

	if reason != ReasonNone {
		return reason
	}

	if e.Server != nil && d.server.isFull(now) {
		e.Server.full = true
		return ReasonMemoryFull
	}

	if short != [mediaKinds]bool{} {
		return ReasonMedia
	}

	return ReasonNone
}

// recommendShrink looks for a smaller profile. What was seen on a slice that is nearly full of
// kernels is a lower bound: it does not count as evidence for a smaller one.
func (a *Advisor) recommendShrink(
	r *Recommendation,
	g *gpu.GPU,
	w *workload,
	e *Evidence,
	of capacity,
	hints gpu.RightsizingHints,
) {
	r.Action = ActionKeep
	days := w.sums(a.now)

	switch {
	case isPreallocated(w, e, of.memoryBytes):
		r.Reason = ReasonPreallocated
	case e.MemoryUnread:
		r.Reason = ReasonMemoryUnread
	case e.ActivityUnread || w.Untrusted:
		r.Action = ActionUnknown
		r.Reason = ReasonNoActivity
	case e.P95.Width >= saturatedWidth:
		w.Answer = answer{Action: ActionKeep}
		w.Next = answer{}

		return
	case w.stretch(float64(days.MinWidth), float64(days.MinBandwidth), of, wholeOf(g)) > unchangedStretch:
		r.Reason = ReasonStretch
	}

	if r.Reason != ReasonNone {
		w.settleRefusal(r.Reason)
		return
	}

	trials := tryAll(g, e, of, a.limitsOf(hints), a.options)

	smaller := answer{Action: ActionKeep}

	at := slices.IndexFunc(trials, func(t trial) bool { return t.reason == ReasonNone })
	if at >= 0 {
		smaller = answer{Action: ActionShrink, Profile: trials[at].profile.Name}
	}

	decided := a.settleAnswer(w, smaller, trials)
	if decided.Action != ActionShrink {
		decided = answer{Action: ActionKeep} // whatever refused it before
	}

	r.setAnswer(withStart(decided, e), trials, a.options)
}

// instanceCapacity returns what a GPU instance has: its profile's if the driver reports it, else
// its own.
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

// stretchedBy returns how far the kernels of the last ten minutes are stretched at least; 1 if next
// to none ran.
func (d *device) stretchedBy(of, whole capacity) float64 {
	last := d.meanOfLast()
	if last.busy < minBusy {
		return 1
	}

	return d.workload.stretch(float64(last.sm/last.busy), float64(last.dram/last.busy), of, whole)
}

// stretch returns how far kernels are stretched at least in a GPU instance, of which they use these
// shares while they run: the same work on fewer SMs, or at less bandwidth, takes that much longer.
// It is 1 if the workload was not seen on the whole GPU.
func (w *workload) stretch(width, drawn float64, of, whole capacity) float64 {
	stretch := 1.
	if whole.sms == 0 || whole.memorySlices == 0 {
		return stretch
	}

	if width *= float64(of.sms) / float64(whole.sms); width > 0 {
		stretch = max(stretch, float64(w.Before.Width)/width)
	}

	if drawn *= float64(of.memorySlices) / float64(whole.memorySlices); drawn > 0 &&
		w.Before.Bandwidth > minBandwidth {
		stretch = max(stretch, float64(w.Before.Bandwidth)/drawn)
	}

	return stretch
}

// minBandwidth is what kernels must have drawn before for a comparison to count.
const minBandwidth = 0.02

// saturation returns what a slice has had too little of for the last ten minutes.
func (d *device) saturation(of capacity, stretch, mean float64, limits limits, requests requests) Reason {
	if used := d.memory * (1 << 20); of.memoryBytes > 0 && used >= fullMemory*of.memoryBytes {
		return ReasonMemoryFull
	}

	last := d.meanOfLast()
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
	case requests.closed: // no client waits for a single one
	case stretchedLatency(stretch, busy) > limits.stretch || d.isLate(mean, requests, limits):
		return ReasonLatency
	}

	if d.loses(mean, requests, limits) {
		return ReasonThroughput
	}

	return ReasonNone
}

// largerProfile returns the smallest profile that has more of what is short, and the memory and
// media engines that are needed; empty if there is none but the whole GPU.
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

		if short == ReasonMedia { // the engines are more
			more = p.MemorySlices >= than.memorySlices && p.SMs >= than.sms
		}

		if more && len(p.Placements) > 0 && need <= float64(p.MemoryBytes) &&
			!lacksEngines(p, engines) &&
			(best == nil || compareProfiles(p, best) < 0) {
			best = p
		}
	}

	if best == nil {
		return ""
	}

	return best.Name
}
