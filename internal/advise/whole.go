package advise

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// capacity is what a whole GPU or a GPU instance has, to compare profiles with.
type capacity struct {
	whole             bool
	sms, memorySlices int
	memoryBytes       float64
	engines           gpu.Opt[gpu.Engines]
}

// answer is what was decided for a workload.
type answer struct {
	Action  Action
	Reason  Reason
	Profile string
}

// trial is a profile and what it would do to a workload.
type trial struct {
	profile    *gpu.Profile
	reason     Reason  // why it does not do; empty if it does
	notChecked bool    // it has fewer media engines than the device, and their use cannot be read
	share      float64 // of the device's SMs that it has
	median     Stretch // zero if it is unknown
	p95        Stretch
	latency    Latency
	// served is how many times as long requests take: as many more of them use the cache of a
	// server at once. It is 0 if that is unknown.
	served          float64
	busyP99, busy10 float64 // in the slice, above 1 if it falls behind
	// kept and waiting are what is left of the throughput, see Evidence.throughputIn.
	kept, waiting float64
	decided       Decided
}

// minCoverage is the share of the held time that must have been observed.
const minCoverage = 0.95

// unchangedStretch is the stretch up to which a slice changes nothing: then a workload may be busy
// all the time.
const unchangedStretch = 1.05

// wholeOf returns what a whole GPU has. The number of SMs and the profiles come from the driver.
func wholeOf(g *gpu.GPU) capacity {
	c := capacity{
		whole:       true,
		sms:         g.SMs.Or(0),
		memoryBytes: float64(g.Readings.Memory.Total.Or(0)),
	}
	for i := range g.Profiles {
		p := &g.Profiles[i]
		c.sms = max(c.sms, p.SMs)
		c.memorySlices = max(c.memorySlices, p.MemorySlices)
	}

	c.engines = mostEngines(g.Profiles)

	return c
}

// smallerProfiles returns the profiles that are smaller than a device, the smallest first. One with
// all memory of a GPU is not smaller than the GPU.
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

// compareProfiles orders profiles by memory, SMs and name, plain ones before those with attributes.
func compareProfiles(a, b *gpu.Profile) int {
	return cmp.Or(cmp.Compare(a.MemorySlices, b.MemorySlices), cmp.Compare(a.SMs, b.SMs),
		cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
}

// try says what a profile would do to a workload that was seen on a whole GPU.
func try(e *Evidence, p *gpu.Profile, of capacity, limits limits, o Options) trial {
	slice := sliceOf(p, of)
	t := trial{profile: p, share: slice.SMs}

	if !e.stretchUnknown() {
		t.median = StretchOf(e.Median, slice)
		t.p95 = StretchOf(e.decisive, slice)
	}

	t.latency = e.predictLatency(p, t.median, t.p95)
	t.busyP99, t.busy10 = e.busyIn(p, t.p95.deciding(limits.strict), limits.strict, o)
	t.kept, t.waiting = e.throughputIn(p, t.p95, limits.strict)
	t.decided = t.decidedBy(e, limits, o)
	t.notChecked = e.MediaUnread && lacksEngines(p, of.allEngines())

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

	latency, _ := t.latency.deciding(limits.strict)

	t.served = max(t.p95.deciding(limits.strict), latency)
	if t.reason == ReasonNone && e.Server.lacksCache(p, t.served) {
		t.reason = ReasonMemory // as many more requests are there at once
	}

	if t.reason == ReasonNone && e.mayBeReserved(of) {
		t.reason = ReasonPreallocated
	}

	return t
}

// judgeTime returns why a profile takes too long; empty if it does not. Latency is asked beside the
// stretch of kernels and the time that is left: each of them sees what the others do not.
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

// mostBusy returns how busy a slice may be at p99. More than Options.TargetBusy would make requests
// wait: except strictly, that does not count if no client waits, nor if we know of the busiest hour
// how long they do.
func (t *trial) mostBusy(e *Evidence, limits limits, o Options) float64 {
	switch {
	case limits.strict:
		return o.TargetBusy
	case t.latency != Latency{}:
		return math.Inf(1)
	case e.requests.closed:
		return 1
	}

	return o.TargetBusy
}

// sliceOf returns the share of a device that a profile has.
func sliceOf(p *gpu.Profile, of capacity) Slice {
	return Slice{
		SMs:       float64(p.SMs) / float64(of.sms),
		Bandwidth: float64(p.MemorySlices) / float64(of.memorySlices),
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
	a.addServer(w, &e, hints)
	r.Evidence = &e
	r.Confidence = confidence(&e)
	r.Provisional = w.isProvisional(a.now)
	defer func() { e.queueOf = nil }() // the report outlives what it holds on to
	of := wholeOf(g)
	e.countEngines(of)
	e.requests = requestsOf(w, &e, hints, 1)
	r.Provisional = r.Provisional || e.lacksLatency(w)
	facts := a.factsOf(w, &e, of, hints)
	facts.MultiGPU = r.job != ""

	if reason := facts.disqualified(g, of, a.options); reason != ReasonNone {
		w.settleRefusal(reason)
		r.Action = ActionKeep
		r.Reason = reason

		return nil
	}

	trials := tryAll(g, &e, of, a.limitsOf(hints), a.options)
	settled := a.settleAnswer(w, decide(trials, &facts, of, a.options), trials)
	r.setAnswer(withStart(settled, &e), trials, a.options)

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
func (a *Advisor) factsOf(w *workload, e *Evidence, of capacity, hints gpu.RightsizingHints) Facts {
	return Facts{
		Evidence:       e,
		OptedOut:       hints.OptOut,
		Shared:         w.Key.Shared,
		NVLink:         isRecent(w.NVLink, a.now),
		Graphics:       isRecent(w.Graphics, a.now),
		NVLinkUnread:   e.nvlinkUnread,
		GraphicsUnread: e.graphicsUnread,
		Preallocated:   isPreallocated(w, e, of.memoryBytes),
		MemoryUnread:   e.MemoryUnread,
	}
}

// decide returns the smallest profile that does. If none does, it returns the reason why the
// largest one does not.
func decide(trials []trial, f *Facts, of capacity, o Options) answer {
	e := f.Evidence

	for i := range trials {
		if trials[i].reason == ReasonNone {
			return answer{Action: ActionSlice, Profile: trials[i].profile.Name}
		}
	}

	if len(trials) == 0 {
		return answer{Action: ActionKeep, Reason: ReasonNoMIG}
	}

	reason := trials[len(trials)-1].reason
	slow := reason == ReasonStretch || reason == ReasonLatency || reason == ReasonBusy ||
		reason == ReasonThroughput

	switch {
	case reason.isUnknown():
		return answer{Action: ActionUnknown, Reason: reason}
	case slow && e.BusyP99 <= o.TargetBusy/2 && e.Busy10Minutes <= 0.5 &&
		needBytes(e, o.Headroom) <= of.memoryBytes/2:
		return answer{Action: ActionShare, Reason: reason}
	}

	return answer{Action: ActionKeep, Reason: reason}
}

// settleAnswer returns the answer to show, by the trials of which it is one. A bolder one takes the
// place of the last only after it has been the answer for as long as the first one needed; a
// refusal, and any other if the profile of the last does not do any more, at once.
func (a *Advisor) settleAnswer(w *workload, now answer, trials []trial) answer {
	switch {
	case now.Action == ActionUnknown && w.Answer != answer{}:
		w.Next = answer{}

		return now // what was known before decides how bold the next answer is
	case now == w.Answer:
		w.Next = answer{}
	case w.Answer == answer{} || w.Answer.Action == ActionUnknown || now.Profile == "" || !w.Answer.does(trials):
		w.Answer = now
		w.Next = answer{}
	case now != w.Next:
		w.Next = now
		w.NextSince = w.Observed
	case w.Observed-w.NextSince >= a.options.MinEvidence.Seconds():
		w.Answer = now
		w.Next = answer{}
	}

	return w.Answer
}

// does reports whether the profile of an answer is one of those that do. A refusal always does.
func (x answer) does(trials []trial) bool {
	return x.Profile == "" || slices.ContainsFunc(trials, func(t trial) bool {
		return t.profile.Name == x.Profile && t.reason == ReasonNone
	})
}

// settleRefusal makes a refusal the answer if it comes from the evidence, so that a bolder one has
// to hold for as long as any other. One by an operator or by what else the pod holds ends when its
// reason ends.
func (w *workload) settleRefusal(reason Reason) {
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

// sizeOf orders profiles by what they have; one that is offered no longer has nothing.
func sizeOf(name string, profiles []gpu.Profile) int {
	at := slices.IndexFunc(profiles, func(p gpu.Profile) bool { return p.Name == name })
	if at < 0 {
		return -1
	}

	return profiles[at].SMs*64 + profiles[at].MemorySlices
}

// predict fills in what is expected of a workload in a profile.
func (r *Recommendation) predict(t *trial, o Options) {
	e := r.Evidence
	stretch := max(1, t.p95.Expected) // which is 0 if it is unknown
	busy, most10 := e.busyIn(t.profile, stretch, false, o)

	r.Predicted = &Predicted{
		StretchMedian: t.median, StretchP95: t.p95, Latency: t.latency,
		BusyP99: round3(min(1, busy)), Busy10Minutes: round3(min(1, most10)),
		SMActivity: round3(min(1, e.BusyMean*e.Median.Width/t.share)),
		MemoryFree: float64(t.profile.MemoryBytes) - e.HeldBytes(),
		Decided:    t.decided,
	}
	if !e.stretchUnknown() {
		r.Predicted.ThroughputRatio = round3(min(1, 1/max(busy, 1e-9)))
	}

	r.Predicted.MediaEngines = e.predictedEngines(t.profile)
	r.Predicted.Server = e.predictServer(t.profile, t.served)
	r.Reclaimable = round3(1 - t.share)
	r.NotChecked = t.notChecked
}

// explain returns a sentence on a recommendation. Its width is the one that the stretch follows
// from.
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
			"at most %s of memory, busy %.0f %% of the time, kernels on %.0f %% of the SMs%s: %s does the "+
				"work%s, %s",
			gib(e.HeldBytes()),
			100*e.BusyMean,
			100*e.decisive.Width,
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
