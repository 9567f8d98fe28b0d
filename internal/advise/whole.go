package advise

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// capacity is what a whole GPU or a GPU instance has. We compare profiles with it.
type capacity struct {
	whole             bool
	sms, memorySlices int
	memoryBytes       float64
	engines           gpu.Opt[gpu.Engines]
}

// answer is a decision on a workload. It is part of a Checkpoint.
type answer struct {
	Action  Action
	Reason  Reason
	Profile string
}

// trial is what a profile would do to a workload.
type trial struct {
	profile    *gpu.Profile
	reason     Reason  // why it is too small; ReasonNone if it is large enough
	notChecked bool    // it has fewer media engines than the device, and their use cannot be read
	share      float64 // of the device's SMs that it has

	// Of kernels: zero if unknown.
	median, p95 Stretch
	latency     Latency

	// served is how many times as long requests take, 0 if unknown. With requests that take twice
	// as long, twice as many of them use the cache of an inference server at once.
	served float64

	busyP99, busy10 float64 // in the slice, above 1 if it falls behind

	// kept and waiting are what is left of the throughput, see Evidence.throughputIn.
	kept, waiting float64

	decided Decided
}

// minCoverage is the share of the held time that must have been observed.
const minCoverage = 0.95

// unchangedStretch is the stretch up to which we say that a slice changes nothing. Below it, a
// workload may keep the slice busy all the time, as it may the whole GPU.
const unchangedStretch = 1.05

// wholeCapacity returns what a whole GPU has. If the driver does not report the number of SMs, it is
// that of the largest profile.
func wholeCapacity(g *gpu.GPU) capacity {
	c := capacity{
		whole:       true,
		sms:         g.SMs.Or(0),
		memoryBytes: float64(g.Readings.Memory.Total.Or(0)),
		engines:     mostEngines(g.Profiles),
	}

	for i := range g.Profiles {
		p := &g.Profiles[i]
		c.sms = max(c.sms, p.SMs)
		c.memorySlices = max(c.memorySlices, p.MemorySlices)
	}

	return c
}

// smallerProfiles returns the profiles that are smaller than a device, the smallest first. A profile
// with all memory of a whole GPU counts as no smaller: beside it nothing else fits.
func smallerProfiles(g *gpu.GPU, than capacity) []*gpu.Profile {
	var list []*gpu.Profile

	for i := range g.Profiles {
		p := &g.Profiles[i]

		smaller := p.MemorySlices < than.memorySlices && p.SMs <= than.sms ||
			p.MemorySlices == than.memorySlices && p.SMs < than.sms && !than.whole
		if smaller && p.SMs > 0 && p.MemorySlices > 0 && len(p.Placements) > 0 {
			list = append(list, p)
		}
	}

	slices.SortStableFunc(list, compareProfiles)

	return list
}

// compareProfiles orders profiles by memory, SMs and name. The shorter name comes first, so that
// 1g.10gb comes before 1g.10gb+me.
func compareProfiles(a, b *gpu.Profile) int {
	return cmp.Or(cmp.Compare(a.MemorySlices, b.MemorySlices), cmp.Compare(a.SMs, b.SMs),
		cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
}

// tryProfile returns what a profile would do to a workload that holds a larger device.
func tryProfile(e *Evidence, p *gpu.Profile, current capacity, limits limits, o Options) trial {
	slice := sliceOf(p, current)
	t := trial{profile: p, share: slice.SMs}

	// What would happen to the workload's time?
	if !e.stretchUnknown() {
		t.median = StretchOf(e.Median, slice)
		t.p95 = StretchOf(e.decisive, slice)
	}

	t.latency = e.predictLatency(p, t.median, t.p95)
	t.busyP99, t.busy10 = e.busyIn(p, t.p95.deciding(limits.strict), limits.strict, o)
	t.kept, t.waiting = e.throughputIn(p, t.p95, limits.strict)
	t.notChecked = e.MediaUnread && lacksEngines(p, current.allEngines())

	// The first reason is the one that we show: what it lacks, then what is unknown, then time.
	switch {
	case needBytes(e, o.Headroom) > float64(p.MemoryBytes):
		t.reason = ReasonMemory
	case lacksEngines(p, e.engineNeeds()):
		t.reason = ReasonMedia
	case e.ActivityUnread:
		t.reason = ReasonNoActivity
	case e.NeverBusy && limits.strict:
		t.reason = ReasonNoBusyTime // strictly, what is unknown is not within the limit
	default:
		t.reason = t.judgeTime(e, limits, o)
	}

	// Requests that take longer use more of a server's cache, so its need of memory depends on them.
	latency, _ := t.latency.deciding(limits.strict)
	t.served = max(t.p95.deciding(limits.strict), latency)
	t.decided = t.decidedBy(e, limits, o)

	if t.reason == ReasonNone && e.Server.lacksCache(p, t.served) {
		t.reason = ReasonMemory
	}

	if t.reason == ReasonNone && e.mayBeReserved(current) {
		t.reason = ReasonPreallocated
	}

	return t
}

// judgeTime returns why work takes too long in a profile; ReasonNone if it does not. We ask for the
// stretch of kernels, for the time that is left, for latency and for throughput: each of them sees
// what the others do not.
func (t *trial) judgeTime(e *Evidence, limits limits, o Options) Reason {
	stretch := t.p95.deciding(limits.strict)
	latency, _ := t.latency.deciding(limits.strict)

	switch {
	case stretch > limits.stretch:
		return ReasonStretch
	case stretch > unchangedStretch && (t.busyP99 > t.mostBusy(e, limits, o) || t.busy10 > 1 ||
		t.kept < leastKept):
		return ReasonBusy
	case latency > limits.stretch:
		return ReasonLatency
	case stretch > unchangedStretch && t.waiting < e.requests.leastWaiting(limits):
		return ReasonThroughput
	}

	return ReasonNone
}

// mostBusy returns how busy a slice may be at p99. Above Options.TargetBusy requests would wait for
// each other. If we know how long they wait, latency decides instead, and if no client waits for a
// single request, the slice only has to keep up. Strict limits make neither exception.
func (t *trial) mostBusy(e *Evidence, limits limits, o Options) float64 {
	if limits.strict {
		return o.TargetBusy
	}

	if t.latency != (Latency{}) {
		return math.Inf(1)
	}

	if e.requests.closed {
		return 1
	}

	return o.TargetBusy
}

// sliceOf returns a profile as a share of the current device.
func sliceOf(p *gpu.Profile, current capacity) Slice {
	return Slice{
		SMs:       float64(p.SMs) / float64(current.sms),
		Bandwidth: float64(p.MemorySlices) / float64(current.memorySlices),
	}
}

// limits are the limits for one workload: its pod can override the node's.
type limits struct {
	strict  bool
	stretch float64
}

func (a *Advisor) limitsOf(h gpu.RightsizingHints) limits {
	return limits{
		strict:  a.options.Strict || h.Strict,
		stretch: h.MaxStretch.Or(a.options.MaxStretch),
	}
}

// recommendWhole fills in the recommendation for a whole GPU that is held.
func (a *Advisor) recommendWhole(
	r *Recommendation,
	g *gpu.GPU,
	w *workload,
	hints gpu.RightsizingHints,
) []trial {
	e := evidenceOf(w, a.now)
	defer func() { e.queueOf = nil }() // it refers to the workload, and the report outlives that

	current := wholeCapacity(g)

	a.requireVersions(w, &e)
	a.addServer(w, &e, hints)
	e.countEngines(current)
	e.requests = requestsOf(w, &e, hints, 1)

	r.Evidence = &e
	r.Confidence = confidence(&e)
	r.Provisional = w.isProvisional(a.now) || e.lacksLatency(w) || e.Server.isProvisional()

	facts := a.factsOf(w, &e, current, hints)
	facts.MultiGPU = r.job != ""

	if reason := facts.disqualified(g, current, a.options); reason != ReasonNone {
		w.keepRefusal(reason)
		r.Action = ActionKeep
		r.Reason = reason

		return nil
	}

	trials := tryProfiles(g, &e, current, a.limitsOf(hints), a.options)
	decided := decide(trials, &facts, current, a.options)
	stable := a.stableAnswer(w, decided, trials)
	r.setAnswer(requireStart(stable, &e), trials, a.options)

	return trials
}

// setAnswer fills in an answer and the trials that it comes from.
func (r *Recommendation) setAnswer(decided answer, trials []trial, o Options) {
	r.Action = decided.Action
	r.Reason = decided.Reason
	r.Recommended = decided.Profile

	for i := range trials {
		t := &trials[i]

		r.Considered = append(
			r.Considered,
			Considered{Profile: t.profile.Name, Reason: t.reason, StretchP95: t.p95},
		)
		if t.profile.Name == r.Recommended {
			r.predict(t, o)
		}
	}
}

// factsOf returns what we know of the workload that holds a whole GPU.
func (a *Advisor) factsOf(w *workload, e *Evidence, current capacity, hints gpu.RightsizingHints) Facts {
	return Facts{
		Evidence:       e,
		OptedOut:       hints.OptOut,
		Shared:         w.Key.Shared,
		NVLink:         isRecent(w.NVLink, a.now),
		Graphics:       isRecent(w.Graphics, a.now),
		NVLinkUnread:   e.nvlinkUnread,
		GraphicsUnread: e.graphicsUnread,
		Preallocated:   isPreallocated(w, e, current.memoryBytes),
		MemoryUnread:   e.MemoryUnread,
	}
}

// decide recommends the smallest profile that is large enough. If none is, it returns the reason why
// the largest one is too small.
func decide(trials []trial, f *Facts, current capacity, o Options) answer {
	e := f.Evidence

	for i := range trials {
		if trials[i].reason == ReasonNone {
			return answer{Action: ActionSlice, Profile: trials[i].profile.Name}
		}
	}

	if len(trials) == 0 {
		return answer{Action: ActionKeep, Reason: ReasonNoMIG}
	}

	// A workload with wide kernels that uses half of the GPU at most can share it with another one:
	// then both have all SMs in turn.
	reason := trials[len(trials)-1].reason
	slow := reason == ReasonStretch || reason == ReasonLatency || reason == ReasonBusy ||
		reason == ReasonThroughput

	halfIdle := e.BusyP99 <= o.TargetBusy/2 && e.Busy10Minutes <= 0.5 &&
		needBytes(e, o.Headroom) <= current.memoryBytes/2

	if reason.isUnknown() {
		return answer{Action: ActionUnknown, Reason: reason}
	}

	if slow && halfIdle {
		return answer{Action: ActionShare, Reason: reason}
	}

	return answer{Action: ActionKeep, Reason: reason}
}

// stableAnswer returns the answer to show if the trials lead to a decision now. A refusal replaces
// the last answer at once, and so does any decision if the profile of the last answer has become too
// small. Another profile replaces it once it has been the decision without a break for as long as
// the first answer took.
func (a *Advisor) stableAnswer(w *workload, decided answer, trials []trial) answer {
	switch {
	case decided.Action == ActionUnknown && w.Answer != answer{}:
		w.Next = answer{}

		// We keep the last answer: the next known one has to replace it like any other.
		return decided
	case decided == w.Answer:
		w.Next = answer{}
	case w.Answer == answer{} || w.Answer.Action == ActionUnknown || decided.Profile == "" ||
		!w.Answer.isLargeEnough(trials):
		w.Answer = decided
		w.Next = answer{}
	case decided != w.Next:
		w.Next = decided
		w.NextSince = float32(w.Observed)
	case w.Observed-float64(w.NextSince) >= a.options.MinEvidence.Seconds():
		w.Answer = decided
		w.Next = answer{}
	}

	return w.Answer
}

// isLargeEnough reports whether the trial of the answer's profile has succeeded. It is true for an
// answer without a profile, which keeps the device.
func (x answer) isLargeEnough(trials []trial) bool {
	return x.Profile == "" || slices.ContainsFunc(trials, func(t trial) bool {
		return t.profile.Name == x.Profile && t.reason == ReasonNone
	})
}

// keepRefusal makes a refusal the last answer if it comes from the evidence: a bolder one then has to
// hold for as long as any other. A refusal by the operator, or by what else the pod holds, leaves no
// trace once its reason has gone.
func (w *workload) keepRefusal(reason Reason) {
	w.Next = answer{}

	switch reason {
	case ReasonLowCoverage,
		ReasonMemoryUnread,
		ReasonNVLink,
		ReasonNVLinkUnread,
		ReasonGraphics,
		ReasonGraphicsUnread,
		ReasonPreallocated,
		ReasonNoActivity,
		ReasonStretch:
		w.Answer = answer{Action: ActionKeep, Reason: reason}
	}
}

// sizeRank returns a number that orders profiles by SMs, then by memory; -1 for a profile that the
// GPU does not offer any more. A GPU has eight memory slices at most, so 64 keeps the two apart.
func sizeRank(name string, profiles []gpu.Profile) int {
	at := slices.IndexFunc(profiles, func(p gpu.Profile) bool { return p.Name == name })
	if at < 0 {
		return -1
	}

	return profiles[at].SMs*64 + profiles[at].MemorySlices
}

// predict fills in what is expected of a workload in a profile.
func (r *Recommendation) predict(t *trial, o Options) {
	e := r.Evidence
	stretch := max(1, t.p95.Expected) // it is 0 if unknown
	busy, busy10 := e.busyIn(t.profile, stretch, false, o)

	r.Predicted = &Predicted{
		StretchMedian: t.median, StretchP95: t.p95, Latency: t.latency,
		BusyP99: round3(min(1, busy)), Busy10Minutes: round3(min(1, busy10)),
		SMActivity: round3(min(1, e.BusyMean*e.Median.Width/t.share)),
		MemoryFree: float64(t.profile.MemoryBytes) - e.HeldBytes(),
		Decided:    t.decided,
	}

	if !e.stretchUnknown() {
		left := min(1, 1/max(busy, 1e-9), t.kept) // busy may be 0
		if e.requests.closed && !e.requests.annotated {
			left = min(left, t.waiting)
		}

		r.Predicted.ThroughputRatio = round3(left)
	}

	r.Predicted.MediaEngines = e.predictedEngines(t.profile)
	r.Predicted.Server = e.predictServer(t.profile, t.served)
	r.Reclaimable = round3(1 - t.share)
	r.NotChecked = t.notChecked
}

// explain returns a sentence on a recommendation. The width of kernels in it is the one that we
// compute the stretch from, see decisiveQuantile.
func (r *Recommendation) explain(o Options) string {
	e := r.Evidence
	gib := func(bytes float64) string { return fmt.Sprintf("%.1f GiB", bytes/(1<<30)) }

	switch {
	case r.Action == ActionSlice && e.NeverBusy:
		return fmt.Sprintf(
			"at most %s of memory, and no kernel ran on it%s: %s has the memory%s; how far it would stretch "+
				"requests is unknown",
			gib(e.HeldBytes()),
			prefixed("; ", e.describeMedia()),
			r.Recommended,
			prefixed(", and ", r.Predicted.describeEngines()),
		)
	case r.Action == ActionSlice:
		return fmt.Sprintf(
			"at most %s of memory, busy %.0f %% of the time, kernels on %.0f %% of the SMs%s%s: %s does the "+
				"work%s, %s",
			gib(e.HeldBytes()),
			100*e.BusyMean,
			100*e.decisive.Width,
			e.describeSample(),
			prefixed(", ", e.describeMedia()),
			r.Recommended,
			prefixed(" with ", r.Predicted.describeEngines()),
			r.Predicted.describeTime(),
		)
	case r.Action == ActionShare:
		return fmt.Sprintf(
			"busy %.0f %% of the time at p99, with kernels on %.0f %% of the SMs: a slice would stretch "+
				"requests; MPS or time-slicing would not",
			100*e.BusyP99,
			100*e.decisive.Width,
		)
	}

	return explainReason(r, o)
}
