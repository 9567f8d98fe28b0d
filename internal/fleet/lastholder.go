package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// lastHolder is what we know of the holder that had a GPU last, if it has a name. Pods of one owner add
// up, as in an advisor. What other owners did on the GPU counts, too, but is not enough.
type lastHolder struct {
	owner string // empty if we don't know it
	// The last one with a name, also if something without a name came after it: see heldGPU.
	named *heldGPU
	isJob bool
	// own are the steps in which pods of the owner had the GPU or, without a known owner, the holder; others
	// those in which holders had it that are known to be of other owners; mayBe those in which holders had it
	// that may be of the same one. All are nil if something without a name came after it.
	own, others, mayBe []bool
	// busy is the mean busy time while pods of the owner had the GPU or, without a known owner, the holder.
	busy float64
	// since is the first step in which pods of the owner had the GPU, seen in how many steps with a sample
	// they did, and days on how many days. Without a known owner, all are of the holder alone.
	since, seen, days int
	// mayBeSeen is seen with the steps of all that may have been of the same owner: holders without a known
	// owner, and what has no name. begin is the first of the successive steps of all these up to the last.
	mayBeSeen, begin int
}

// findLast returns what we know of the last of the holders of a GPU. If one has followed another within
// the last step, that is the one that came later.
func (h *history) findLast(list []*heldGPU) *lastHolder {
	latest := slices.MaxFunc(list, func(a, b *heldGPU) int {
		end := lastTrue(a.steps)
		if c := cmp.Compare(end, lastTrue(b.steps)); c != 0 {
			return c
		}

		return cmp.Or(
			cmp.Compare(beginOf(a.steps, h, end), beginOf(b.steps, h, end)),
			cmp.Compare(a.owner, b.owner),
		)
	})

	// What has no name and came after it may be another workload.
	if n := h.countNameless(lastTrue(latest.steps) + 1); n > 0 {
		return &lastHolder{named: latest, seen: n, mayBeSeen: len(h.held)}
	}

	known := make([]bool, len(h.held))
	mayBe := make([]bool, len(h.held))
	others := make([]bool, len(h.held))

	for _, held := range list {
		if held.isOfAnother(latest.owner, latest.isJob) {
			for at, is := range held.steps {
				others[at] = others[at] || is
			}

			continue
		}

		isKnown := held == latest || held.owner != "" && held.owner == latest.owner
		for at, is := range held.steps {
			known[at] = known[at] || is && isKnown
			mayBe[at] = mayBe[at] || is
		}
	}

	return &lastHolder{
		owner:     latest.owner,
		named:     latest,
		isJob:     latest.isJob,
		own:       known,
		others:    others,
		mayBe:     mayBe,
		busy:      h.meanBusy(known),
		since:     slices.Index(known, true),
		seen:      h.countSeen(known),
		days:      h.countDays(known),
		mayBeSeen: h.countSeen(mayBe) + h.countNameless(0),
		begin:     beginOf(mayBe, h, lastTrue(mayBe)),
	}
}

// heldForLast returns the steps in which the GPU was held without those in which only holders had it that are
// known to be of other owners than the last one, and whether there are such steps.
func (h *history) heldForLast() (steps []bool, hadOthers bool) {
	if h.last == nil || h.last.others == nil {
		return h.held, false
	}

	steps = slices.Clone(h.held)

	for at, is := range h.last.others {
		if is && !h.last.mayBe[at] {
			steps[at] = false
			hadOthers = true
		}
	}

	return steps, hadOthers
}

// isOfAnother reports whether a holder is known to be of another owner. Two jobs may be two runs of the same
// work, each with a name of its own.
func (held *heldGPU) isOfAnother(owner string, isJob bool) bool {
	return owner != "" && held.owner != "" && held.owner != owner && !(isJob && held.isJob)
}

// meanBusy returns the mean busy time in some steps; 0 if none has a sample.
func (h *history) meanBusy(steps []bool) float64 {
	sum := 0.

	for at, is := range steps {
		if is && !isNaN(h.busy[at]) {
			sum += float64(h.busy[at])
		}
	}

	return sum / float64(max(1, h.countSeen(steps)))
}

// countSeen counts the steps that have a sample of the GPU.
func (h *history) countSeen(steps []bool) int {
	n := 0
	for at, is := range steps {
		n += boolToInt(is && !isNaN(h.busy[at]))
	}

	return n
}

// countDays counts the days in which one of some steps lies, of as many days as an advisor remembers, up to
// the end of the window.
func (h *history) countDays(steps []bool) int {
	const perDay = 24 * stepsPerHour

	steps = steps[max(0, len(steps)-int(advisorWindow/step)):]
	n := 0

	for end := len(steps); end > 0; end -= perDay {
		begin := max(0, end-perDay)
		n += boolToInt(slices.Contains(steps[begin:end], true))
	}

	return n
}

// hasLeft reports whether the last holder with a name had the GPU no more in its last hour with samples, or
// in the last hour if it has none.
func (h *history) hasLeft() bool {
	last := h.lastSampled()
	if last < 0 {
		last = len(h.busy) - 1
	}

	return h.lastNamed() <= last-stepsPerHour
}

// lastSampled returns the last step with a sample of the GPU, -1 if there is none.
func (h *history) lastSampled() int {
	last := len(h.busy) - 1
	for last >= 0 && isNaN(h.busy[last]) {
		last--
	}

	return last
}

// countNameless counts the steps, from one on, that have a sample of the GPU, and in which something
// without a name held it, or may have.
func (h *history) countNameless(from int) int {
	n := 0
	for at, is := range h.nameless[from:] {
		n += boolToInt(is != namelessNone && !isNaN(h.busy[from+at]))
	}

	return n
}

// firstStep returns the first of the successive steps in which the last holder had the GPU, or what may
// have been the same workload.
func (l *lastHolder) firstStep() int {
	if l == nil {
		return 0
	}

	return l.begin
}

// limitEvidence limits the time for which the evidence was observed to that of the last holder's owner if
// this is too short. A job's throughput depends on how busy it keeps the GPU itself.
func (l *lastHolder) limitEvidence(e *advise.Evidence, o advise.Options) {
	if l != nil && l.isJob {
		e.BusyMean = max(e.BusyMean, l.busy)
	}

	if l != nil && hoursOf(l.mayBeSeen) < o.MinEvidence.Hours() {
		e.ObservedHours = min(e.ObservedHours, hoursOf(l.mayBeSeen))
	}
}

// explain says whose evidence is too little, on a GPU that was observed for longer.
func (l *lastHolder) explain(o advise.Options) string {
	return fmt.Sprintf(
		"%s, which had it last, was observed on it for %.1f h; expected %.1f h or more",
		l.owner,
		hoursOf(l.mayBeSeen),
		o.MinEvidence.Hours(),
	)
}

// isNew reports whether the last holder's owner is known to be on the GPU for less than a week, or was on
// too few of its days, on which others may have been; or, if we don't know the owner, whether the holder was
// seen for less than the minimum of evidence. Then an answer is not final yet.
func (l *lastHolder) isNew(h *history, o advise.Options) bool {
	if l == nil {
		return false
	}

	since := l.since
	if since < stepsPerHour {
		since = 0 // as in record
	}

	known := time.Duration(len(h.held)-since) * step

	return hoursOf(l.seen) < o.MinEvidence.Hours() ||
		l.owner != "" && (known < advisorWeek || l.days < advise.MinObservedDays)
}

// hoursOf returns how many hours a number of steps is.
func hoursOf(steps int) float64 { return (time.Duration(steps) * step).Hours() }
