package advise

import (
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A queue shows in the order of busy and idle moments, which histograms lose. So each poll's work enters a virtual
// queue for each profile that is smaller than the device: the backlog grows by the time that the work takes in the
// slice, and shrinks by the time that passes. What the work finds waiting there is kept by the hour, and of each
// profile the busiest hour of the last days.

const (
	hourLength = time.Hour
	// spanDays is how many days share the busiest hour that is kept; the last keptSpans of them count, eight to twelve
	// days.
	spanDays, keptSpans = 4, 3
	// enoughOfHour is how much of an hour shows what requests wait in it, in seconds. The first minutes of a pod, in which
	// it warms up, do not.
	enoughOfHour = 1200
)

// queueHour is an hour of a workload, as it would have been in a profile.
type queueHour struct {
	Load float32 // mean busy time in the slice, above 1 if it falls behind
	Busy float32 // mean busy time on the device, 0-1
	// Met is the busy time over ten seconds in which nine tenths of the work comes at most: more than Busy if it comes in
	// bursts. What single requests make it vary by is left out.
	Met float32
	// Run is for how long the device has been busy all the time when the work is done, 95 % of it at most, in seconds: it
	// may have waited then.
	Run float32
	// Wait is the backlog that 95 % of the work find at most when it comes, in seconds.
	Wait float32
	// The variance of the work that comes in a time, per second of that time, in seconds: from poll to poll, and from
	// minute to minute. If requests come at random, it is their rate times the mean square of their service time.
	PollVariance, MinuteVariance float32
}

// queueUse has the busiest hours of a workload in profiles of one size.
type queueUse struct {
	SMs, MemorySlices uint16
	Spans             [keptSpans]struct {
		Number int32 // spans of spanDays since 1970
		Hour   queueHour
	}
}

// spellLoad returns the load of the slice in the busiest spells, in which a tenth of the work comes.
func (h *queueHour) spellLoad() float32 {
	if h.Busy == 0 {
		return 0
	}

	return h.Load / h.Busy * h.Met
}

// busiest returns the hour with the busiest spells of those that are kept.
func (u *queueUse) busiest(now time.Time) queueHour {
	var worst queueHour
	for _, s := range u.Spans {
		if s.Number > spanOf(now)-keptSpans && s.Hour.spellLoad() > worst.spellLoad() {
			worst = s.Hour
		}
	}

	return worst
}

// add keeps an hour if its spells are the busiest of its span.
func (u *queueUse) add(h queueHour, at time.Time) { u.addIn(h, spanOf(at)) }

func (u *queueUse) addIn(h queueHour, number int32) {
	s := &u.Spans[(number%keptSpans+keptSpans)%keptSpans]
	if s.Number != number {
		s.Number = number
		s.Hour = queueHour{}
	}

	if h.spellLoad() > s.Hour.spellLoad() {
		s.Hour = h
	}
}

func spanOf(at time.Time) int32 { return spanOfDay(dayOf(at)) }

func spanOfDay(day int32) int32 { return int32(math.Floor(float64(day) / spanDays)) }

// shift adds a number of days to all times. An hour may have been on the last day of its span.
func (u *queueUse) shift(days int32) {
	spans := u.Spans
	u.Spans = queueUse{}.Spans

	for _, s := range spans {
		if s.Hour.Load > 0 {
			u.addIn(s.Hour, spanOfDay(s.Number*spanDays+spanDays-1+days))
		}
	}
}

// queueOf returns the busiest hours in profiles of a size, nil if there are none.
func (w *workload) queueOf(sms, memorySlices int) *queueUse {
	for i := range w.Queues {
		if u := &w.Queues[i]; int(u.SMs) == sms && int(u.MemorySlices) == memorySlices {
			return u
		}
	}

	return nil
}

// hour is what the open hour of a device has seen.
type hour struct {
	number         int64   // hours since 1970
	seconds, work  float64 // observed, and busy
	poll, minute   successive
	spell          spells
	run            float64 // seconds for which it has been busy all the time
	runs           waitHistogram
	inMinute       float64 // busy seconds of the open minute
	minuteObserved float64
	before         queueHour // the hour before
	queues         []queue
}

// queue is the virtual queue of a device for profiles of a size.
type queue struct {
	sms, memorySlices int
	slice             Slice
	backlog           float64 // seconds
	load              float64 // busy seconds in the slice
	waits             waitHistogram
}

// waitHistogram counts work by seconds of waiting.
type waitHistogram [waitBuckets]float32

// Bucket 0 of waits holds the work that waits for up to shortestWait seconds, each further one that up to waitGrowth
// times the bound of the one before, the last one all above: more than an hour.
const (
	waitBuckets  = 32
	shortestWait = 0.01
	waitGrowth   = 1.55
)

// successive sums up the squares of differences between neighbouring values. Slow changes of the load, which make no
// queue, are not in them.
type successive struct {
	last    float64 // busy share
	known   bool
	squares float64
	seconds float64
}

// add adds the busy share of a time, in seconds.
func (s *successive) add(share, seconds float64) {
	if s.known {
		difference := (share - s.last) * seconds
		s.squares += difference * difference / 2
		s.seconds += seconds
	}

	s.last = share
	s.known = true
}

// variance returns the variance of the work per second.
func (s *successive) variance() float32 {
	if s.seconds == 0 {
		return 0
	}

	return float32(s.squares / s.seconds)
}

// observeQueues adds the work of a poll to the virtual queues of a whole GPU, or of a GPU instance. Of a poll without
// SM or DRAM activity it is not known how far a slice would stretch it.
func (d *device) observeQueues(
	g *gpu.GPU,
	i *gpu.GPUInstance,
	activity *gpu.Activity,
	elapsed float64,
) {
	busy, read := activity.GraphicsEngine.Get()
	sm, smRead := activity.SM.Get()
	dram, dramRead := activity.DRAM.Get()

	if d.workload == nil || d.workload.Key.endsByItself() {
		return
	}

	if !read || !smRead || !dramRead || elapsed == 0 {
		d.hour.interrupt()
		return
	}

	if d.hour.queues == nil {
		of := wholeOf(g)
		if i != nil {
			of = instanceCapacity(g, i)
		}

		d.hour = hour{number: hourOf(d.seen), queues: newQueues(g, of)}
	}

	busy = min(max(busy, 0), 1)
	work := busy * elapsed
	kernels := Kernels{}

	if busy > 0 {
		kernels = Kernels{Width: min(sm/busy, 1), Bandwidth: min(dram/busy, 1)}
	}

	d.hour.add(busy, elapsed)

	for i := range d.hour.queues {
		q := &d.hour.queues[i]
		q.add(work, work*StretchOf(kernels, q.slice).likely(), elapsed)
	}
}

func hourOf(at time.Time) int64 { return at.Unix() / int64(hourLength.Seconds()) }

// newQueues returns empty queues for the profiles that are smaller than a device, one for each size.
func newQueues(g *gpu.GPU, of capacity) []queue {
	queues := []queue{}
	if of.sms == 0 || of.memorySlices == 0 {
		return queues
	}

	for _, p := range smallerProfiles(g, of) {
		if n := len(queues); n > 0 && queues[n-1].sms == p.SMs &&
			queues[n-1].memorySlices == p.MemorySlices {
			continue // they are ordered by size
		}

		queues = append(
			queues,
			queue{sms: p.SMs, memorySlices: p.MemorySlices, slice: sliceOf(p, of)},
		)
	}

	return queues
}

// interrupt notes that what happens is not known: queues empty meanwhile, or do not.
func (h *hour) interrupt() {
	h.poll.known = false
	h.minute.known = false

	h.inMinute = 0
	h.minuteObserved = 0
	h.spell.busy = 0
	h.spell.observed = 0
	h.run = 0

	for i := range h.queues {
		h.queues[i].backlog = 0
	}
}

// add counts the busy share of a poll.
func (h *hour) add(busy, elapsed float64) {
	h.seconds += elapsed
	h.work += busy * elapsed
	h.poll.add(busy, elapsed)
	h.spell.add(busy, elapsed)

	h.run += elapsed
	if busy < alwaysBusy {
		h.run = 0
	}

	h.runs.add(h.run, busy*elapsed)

	h.inMinute += busy * elapsed

	h.minuteObserved += elapsed
	if h.minuteObserved >= windowLength.Seconds() {
		h.minute.add(h.inMinute/h.minuteObserved, h.minuteObserved)
		h.inMinute = 0
		h.minuteObserved = 0
	}
}

// add adds work, in busy seconds of the device, that takes so many seconds in the slice, and lets time pass. It comes
// spread over that time.
func (q *queue) add(work, stretched, elapsed float64) {
	before := q.backlog
	q.backlog = max(0, before+stretched-elapsed)
	q.load += stretched
	q.waits.add((before+q.backlog)/2, work)
}

// alwaysBusy is the busy share from which on a poll leaves no moment without work.
const alwaysBusy = 0.98

// add counts work that waits.
func (h *waitHistogram) add(seconds, work float64) {
	if work > 0 {
		h[waitBucketOf(seconds)] += float32(work)
	}
}

func waitBucketOf(seconds float64) int {
	if seconds <= shortestWait {
		return 0
	}

	return min(int(math.Ceil(math.Log(seconds/shortestWait)/math.Log(waitGrowth))), waitBuckets-1)
}

// longest returns the wait that 95 % of the work have at most, in seconds; 0 if it is less than a poll can show.
func (h *waitHistogram) longest() float64 {
	var all, sum float64
	for _, work := range h {
		all += float64(work)
	}

	for bucket, work := range h {
		sum += float64(work)
		if sum >= 0.95*all*(1-1e-6) {
			if bucket == 0 {
				return 0
			}

			return shortestWait * math.Pow(waitGrowth, float64(bucket)-0.5)
		}
	}

	return 0
}

// closeHour gives the open hour of a device to its workload, and begins the next one. Backlogs go on.
func (d *device) closeHour(at time.Time) {
	h := &d.hour
	h.before = h.summary()

	if d.workload != nil && h.seconds >= enoughOfHour && h.work > 0 {
		d.workload.Queues = slices.Grow(
			d.workload.Queues,
			max(0, len(h.queues)-len(d.workload.Queues)),
		)
		for i := range h.queues {
			d.workload.addHour(&h.queues[i], h, at)
		}
	}

	h.number = hourOf(at)
	h.seconds = 0
	h.work = 0
	h.poll.squares = 0
	h.poll.seconds = 0
	h.minute.squares = 0
	h.minute.seconds = 0
	h.spell = spells{busy: h.spell.busy, observed: h.spell.observed}
	h.runs = waitHistogram{}

	for i := range h.queues {
		q := &h.queues[i]
		q.load = 0
		q.waits = waitHistogram{}
	}
}

// addHour keeps an hour of a queue.
func (w *workload) addHour(q *queue, h *hour, at time.Time) {
	use := w.queueOf(q.sms, q.memorySlices)
	if use == nil {
		w.Queues = append(
			w.Queues,
			queueUse{SMs: uint16(q.sms), MemorySlices: uint16(q.memorySlices)},
		)
		use = &w.Queues[len(w.Queues)-1]
	}

	summary := h.before
	summary.Load = float32(q.load / h.seconds)
	summary.Wait = float32(q.waits.longest())
	use.add(summary, at)
}

// summary returns what the hour so far says of the device itself.
func (h *hour) summary() queueHour {
	if h.seconds == 0 || h.work == 0 {
		return queueHour{}
	}

	return queueHour{
		Busy: float32(h.work / h.seconds), Met: h.met(), Run: float32(h.runs.longest()),
		PollVariance: h.poll.variance(), MinuteVariance: h.minute.variance(),
	}
}

// latest returns what the open hour says, or the one before while that is short.
func (h *hour) latest() queueHour {
	if h.seconds < enoughOfHour {
		return h.before
	}

	return h.summary()
}
