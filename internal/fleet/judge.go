package fleet

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Reasons that only this package has, besides those of package advise.
const (
	ReasonMIGMode      advise.Reason = "mig-mode"
	ReasonModelUnknown advise.Reason = "model-unknown"
	ReasonModelChanged advise.Reason = "model-changed"
	ReasonNoHistory    advise.Reason = "no-history"
	ReasonGone         advise.Reason = "gone"
)

// ReasonText returns a sentence that explains a reason.
func ReasonText(r advise.Reason, o advise.Options) string {
	switch r {
	case ReasonFree:
		return "nothing held it"
	case ReasonMIGMode:
		return "it was in MIG mode for some of the time; migctl recommend judges its slices"
	case ReasonModelUnknown:
		return "the profiles of this model, or of this size of it, are not in the table that comes " +
			"with migctl; migctl recommend asks the driver"
	case ReasonModelChanged:
		return "the history names several models under its UUID"
	case ReasonNoHistory:
		return "the history has neither its busy time nor its utilization"
	case ReasonGone:
		return "it has no sample in the last hour"
	case advise.ReasonNVLinkUnread:
		return nvlinkUnreadText
	case ReasonReplicasDiffer:
		return "a slice would do, but no one profile is known to do for all replicas of its " +
			"owner, which have one template"
	}

	return cmp.Or(r.Summary(o), "the right-sizing advisor of its node keeps it whole")
}

// IsUnknown reports whether a reason says that it is not known whether a slice would do for the GPU. A
// GPU that was in MIG mode is no such case: its work has slices, or had some.
func IsUnknown(r advise.Reason) bool {
	switch r {
	case ReasonModelUnknown, ReasonModelChanged, ReasonNoHistory, ReasonGone, ReasonReplicasDiffer:
		return true
	}

	return r.IsUnknown()
}

// judgeAll fills in the recommendations for GPUs. All of a node that one exporter serves are among
// them.
func (a *analysis) judgeAll(gpus []*fleetGPU) {
	for _, g := range gpus {
		a.assumeHeld(g)
	}

	a.findNeighbors(gpus)

	for _, g := range gpus {
		g.answer = a.judge(g)
	}
}

// judge returns the recommendation for a GPU by its history, or by the advice of its node's advisor. An
// advisor's answer is about what held the GPU last, and is compared with what the history has of that.
func (a *analysis) judge(g *fleetGPU) GPU {
	h := g.history
	g.first = h.firstSeen()
	g.last = h.lastSeen()
	h.lapseAdvice()
	g.lapsed = h.advice.lapsed

	answer := a.newAnswer(g)

	a.mu.Lock()
	known, total, ok := a.models.find(g.name, h.total)
	a.mu.Unlock()

	if ok {
		answer.model = known
	}

	held := countTrue(h.countAsHeld(h.held))
	answer.HeldHoursPerWeek = (time.Duration(held) * step).Hours() * advisorWeek.Hours() / a.lengthOf(g).Hours()

	steps := h.held
	if h.advice.isKnown() || a.isGone(g) {
		steps, answer.hadOthers = h.heldForLast()
	}

	record := h.record(steps)
	facts := record.Facts(a.end, total)
	answer.ObservedHours = facts.Evidence.ObservedHours

	if reason := a.reasonNotJudged(g, ok); reason != advise.ReasonNone {
		answer.refuse(reason, a.options.Advise)

		if h.isAdviceNew() {
			answer.followAdvice(h.advice, &a.options)
		}

		return answer
	}

	if held == 0 && !a.isGone(g) {
		answer.Action = advise.ActionFree
		answer.Namespace = ""

		return answer
	}

	a.decide(&answer, g, record, facts, total)

	if a.isGone(g) {
		answer.lose(a.options.Advise)
		return answer
	}

	answer.followAdvice(h.advice, &a.options)

	if !answer.Advised && !h.advice.knowsSlice() && g.hasNeighbor && h.isNVLinkUnread() {
		answer.doubtNVLink(linksOf(g.name), a.options.Advise)
	}

	return answer
}

// refuse fills in that a GPU stays as it is.
func (g *GPU) refuse(reason advise.Reason, o advise.Options) {
	g.Reason = reason
	g.Explanation = ReasonText(reason, o)
}

// decide fills in the answer by the history. total is the memory of the GPU, in bytes.
func (a *analysis) decide(
	answer *GPU, g *fleetGPU, record *advise.Record, facts *advise.Facts, total float64,
) {
	h := g.history

	h.addUses(facts, answer.model.Profiles)
	isMixed := a.addServerOf(g, facts)
	h.last.limitEvidence(facts.Evidence, a.options.Advise)
	facts.EndsByItself = h.last != nil && h.last.isJob

	if h.sawStart() || h.advice.knowsStart() {
		facts.Evidence.Starts = 1
	}

	chosen := advise.Choose(gpuOf(&answer.model, total), facts, a.options.Advise)
	answer.addEvidence(facts, h.isNVLinkUnread(), chosen)
	isNew := h.last.isNew(h, a.options.Advise)
	answer.Provisional = answer.Action == advise.ActionSlice &&
		(record.IsProvisional(a.end) || isNew || h.advice.lapsed || a.mayHideServer(h, facts))
	answer.isYoung = isNew || a.end.Sub(facts.Evidence.Since) < advisorWeek

	a.explainUnknown(answer, h, facts, isMixed)
}

// isGone reports whether a GPU has no sample in the last hour.
func (a *analysis) isGone(g *fleetGPU) bool { return !g.last.After(a.end.Add(-hour)) }

// lose says that a GPU is gone, and keeps what its work needed there for the other replicas of its owner.
func (g *GPU) lose(o advise.Options) {
	switch {
	case g.Action == advise.ActionSlice:
		g.fits = g.Profile
		g.fitsIsDoubtful = true
		g.fitsNotChecked = g.NotChecked
	case g.hadOthers && isOfAllHolders(g.Reason):
	case slices.Contains(refusalsByWork(), g.Reason):
		g.refusedThere = g.Reason
		g.whyThere = g.Explanation
	}

	g.Action = advise.ActionKeep
	g.clearPrediction()
	g.refuse(ReasonGone, o)
}

// newAnswer returns an answer that says what a GPU is, and who held it last: nothing else is known yet.
func (a *analysis) newAnswer(g *fleetGPU) GPU {
	h := g.history
	answer := GPU{
		UUID:       g.uuid,
		Cluster:    g.cluster,
		Node:       g.node,
		Model:      shortName(g.name),
		Exporter:   g.dialect.name,
		Namespace:  h.mainNamespace(),
		Namespaces: len(h.namespaces),
		Action:     advise.ActionKeep,
		byLabel:    h.job != "" && !h.multi,
	}

	if h.last != nil {
		answer.Owner = h.last.named.owner
		answer.pod = h.last.named.pod

		// The pods of a GPU that was lost may run on, for a day.
		isLost := len(h.held)-max(h.lastSampled(), h.lastNamed()) > 24*stepsPerHour
		answer.hasLeft = isLost || h.hasLeft()
	}

	return answer
}

// lengthOf returns for how long a GPU has a history, a week at least if the window is as long.
func (a *analysis) lengthOf(g *fleetGPU) time.Duration {
	return min(a.options.Window, max(advisorWeek, a.end.Sub(g.first)))
}

// explainUnknown says what is missing for an answer, if the history knows that better than the reason. See
// addServerOf for isMixed.
func (a *analysis) explainUnknown(answer *GPU, h *history, f *advise.Facts, isMixed bool) {
	switch answer.Reason {
	case advise.ReasonLittleEvidence:
		if h.last != nil && h.last.owner != "" && f.Evidence.ObservedHours < answer.ObservedHours {
			answer.Explanation = h.last.explain(a.options.Advise)
		}
	case advise.ReasonPreallocated:
		if isMixed {
			answer.Explanation = a.explainMixed()
		}

		answer.Explanation = a.explainRefusal(f.Evidence.Server, answer.Explanation)
	}
}

// reasonNotJudged returns why we cannot judge a GPU by its history, or ReasonNone.
func (a *analysis) reasonNotJudged(g *fleetGPU, modelKnown bool) advise.Reason {
	switch {
	case g.history.mig:
		return ReasonMIGMode
	case g.modelCount > 1:
		return ReasonModelChanged
	case lacksMIG(g.name):
		return advise.ReasonNoMIG
	case !modelKnown:
		return ReasonModelUnknown
	case !g.history.isSeen():
		return ReasonNoHistory
	}

	return advise.ReasonNone
}

// assumeHeld takes a GPU for held in the steps of which the history doesn't show whether anything held
// it. Only if the exporter can see pods, jobs or processes does it mean something that none has a
// series.
func (a *analysis) assumeHeld(g *fleetGPU) {
	h := g.history

	if !a.holdersKnown[g.cluster] {
		h.holdAlways()
		return
	}

	seen := 0
	unknown := 0

	for at, busy := range h.busy {
		if isNaN(busy) {
			continue
		}

		seen++

		if h.nameless[at] == namelessUnknown {
			unknown++
			h.held[at] = true
		}
	}

	g.holderUnknown = unknown > 0 && unknown == seen
	g.holderUnread = unknown < seen && float64(unknown) > (1-advise.MinRead)*float64(seen)
}

// countAsHeld returns the steps that count as held of those in which a GPU was held: a gap in the samples
// does, too, unless the GPU is known to have been free before it and after it.
func (h *history) countAsHeld(heldIn []bool) []bool {
	counts := slices.Clone(heldIn)
	first := max(slices.Index(heldIn, true), 0)
	last := lastTrue(heldIn)

	for at := first; at <= last; at++ {
		if !isNaN(h.busy[at]) {
			continue
		}

		end := at
		for end < last && isNaN(h.busy[end]) {
			end++
		}

		isFree := at > first && !heldIn[at-1] && !heldIn[end]
		for ; at < end; at++ {
			counts[at] = heldIn[at] || !isFree
		}
	}

	return counts
}

func countTrue(steps []bool) int {
	n := 0
	for _, is := range steps {
		n += boolToInt(is)
	}

	return n
}

// memoryOf returns the largest use of memory by hour while a GPU was held in some steps. Of an hour in which
// others had it as well, it takes that of the last hour before it in which only those steps had it, or the
// first one after it, if there is any.
func (h *history) memoryOf(heldIn []bool) []float64 {
	memory := slices.Clone(h.memory)
	isShared := make([]bool, len(memory))
	isOwn := make([]bool, len(memory))

	for at, is := range h.held {
		hour := h.hourOf(at)
		isShared[hour] = isShared[hour] || is && !heldIn[at]
		isOwn[hour] = isOwn[hour] || heldIn[at]
	}

	for hour := range isOwn {
		isOwn[hour] = isOwn[hour] && !isShared[hour]
	}

	for hour := range memory {
		from := lastTrue(isOwn[:hour])
		if from < 0 {
			from = slices.Index(isOwn, true)
		}

		if isShared[hour] && from >= 0 {
			memory[hour] = h.memory[from]
		}
	}

	return memory
}

// record returns the evidence on the GPU of the steps in which it was held.
func (h *history) record(heldIn []bool) *advise.Record {
	first := max(slices.Index(heldIn, true), 0)
	counts := h.countAsHeld(heldIn)
	memory := h.memoryOf(heldIn)

	// Seven days of history count as a week even if the first scrapes of the first hour are missing.
	since := h.start.Add(time.Duration(first) * step)
	if since.Before(h.start.Add(hour)) {
		since = h.start
	}

	record := advise.NewRecord(since, step, time.Duration(len(h.held))*step)

	for at, is := range counts {
		if !is {
			continue // it was certainly not held
		}

		window := advise.Window{
			End: h.start.Add(time.Duration(at+1) * step),
		}
		if h.memoryRead.has(at) {
			window.Memory = optOf(memory[h.hourOf(at)])
		}

		if heldIn[at] && !isNaN(h.busy[at]) {
			window.Busy = optOf(float64(h.busy[at]))
			window.SM = optOf(float64(h.sms[at]))
			window.DRAM = optOf(float64(h.bandwidth[at]))
		}

		if h.isHeldInHourOf(at) {
			window.LeastMemory = optOf(h.leastMemory[h.hourOf(at)])
		}

		window.Engines = h.enginesAt(at)
		record.Add(window)
	}

	return record
}

// isHeldInHourOf reports whether the GPU was held in all steps of the hour of a step.
func (h *history) isHeldInHourOf(at int) bool {
	from := h.hourOf(at)*stepsPerHour - h.stepsBefore()
	return !slices.Contains(h.held[max(0, from):min(from+stepsPerHour, len(h.held))], false)
}

// enginesAt returns the media engines that were used in a step.
func (h *history) enginesAt(at int) []advise.WindowEngines {
	var list []advise.WindowEngines

	for _, name := range engineNames() {
		if e := h.engines[name]; e != nil && e.most[at] > 0 {
			list = append(list, advise.WindowEngines{
				Engine: name,
				Mean:   float64(e.mean[at]),
				Most:   float64(e.most[at]),
			})
		}
	}

	return list
}

func engineNames() []string { return []string{"encoder", "decoder", "jpeg", "ofa"} }

// stepsPerHour is how many steps share one maximum of memory.
const stepsPerHour = int(hour / step)

// optOf returns v, or nothing if v is NaN.
func optOf(v float64) gpu.Opt[float64] {
	if math.IsNaN(v) {
		return gpu.None[float64]()
	}

	return gpu.Some(v)
}

// isRead reports whether the history has a reading in nearly all steps in which the GPU was held. A gap
// in all of its samples does not count.
func (h *history) isRead(r *readings) bool {
	held := 0
	read := 0

	for at, is := range h.held {
		if is && !isNaN(h.busy[at]) {
			held++
			read += boolToInt(r.has(at))
		}
	}

	return float64(read) >= advise.MinRead*float64(held)
}

// addUses adds to f how the GPU was used besides its busy time: by several holders, together with
// other GPUs, over NVLink, and its media engines. If an engine was used only while nothing held the
// GPU, f has no amount of that use, so addUses adds an unknown one. A use that is not in the history
// counts as unread only if the model has the engine.
func (h *history) addUses(f *advise.Facts, profiles []gpu.Profile) {
	f.Shared = h.shared
	f.MultiGPU = h.multi || h.job != ""
	f.NVLink = h.nvlink > advise.LinkFloor // what was not read, doubtNVLink judges

	if h.job != "" && !h.multi {
		f.Job = jobText(h.job)
	}

	for _, engine := range engineNames() {
		m := h.media[engine]

		isRead := m != nil && h.isRead(&m.read)
		f.Evidence.MediaUnread = f.Evidence.MediaUnread || !isRead && advise.HasEngine(profiles, engine)

		if m != nil && m.most > 0 {
			f.Evidence.AddUnknownUse(engine)
		}
	}
}

// holdAlways takes a GPU for held in each step that has a sample.
func (h *history) holdAlways() {
	for at, v := range h.busy {
		h.held[at] = !isNaN(v)
	}
}

// firstSeen returns the start of the first step with a sample, or zero.
func (h *history) firstSeen() time.Time {
	at := slices.IndexFunc(h.busy, func(v float32) bool { return !isNaN(v) })
	if at < 0 {
		return time.Time{}
	}

	return h.start.Add(time.Duration(at) * step)
}

// lastSeen returns the end of the last step with a sample, or zero.
func (h *history) lastSeen() time.Time {
	for at := len(h.busy) - 1; at >= 0; at-- {
		if !isNaN(h.busy[at]) {
			return h.start.Add(time.Duration(at+1) * step)
		}
	}

	return time.Time{}
}

// mainNamespace returns the namespace that held the GPU longest, or the first by name of several.
func (h *history) mainNamespace() string {
	best := ""
	most := 0

	for name, count := range h.namespaces {
		if count > most || count == most && name < best {
			best = name
			most = count
		}
	}

	return best
}
