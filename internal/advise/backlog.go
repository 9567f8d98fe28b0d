package advise

import (
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A queue shows in the order of busy and idle moments, which histograms lose. So each poll's work
// enters a virtual queue for each profile that is smaller than the device: the backlog grows by the
// time that the work takes in the slice, and shrinks by the time that passes. What the work finds
// waiting there is kept by the hour, and of each profile the busiest hour of the last days.

const (
	hourLength = time.Hour
	// spanDays is how many days share the busiest hour that is kept; the last keptSpans of them
	// count, eight to twelve days.
	spanDays, keptSpans = 4, 3
	// enoughOfHour is how much of an hour shows what requests wait in it, in seconds. The first
	// minutes of a pod, in which it warms up, do not.
	enoughOfHour = 1200
)

// queueHour is an hour of a workload, as it would have been in a profile.
type queueHour struct {
	Load float32 // mean busy time in the slice, above 1 if it falls behind
	Busy float32 // mean busy time on the device, 0-1
	// Met is the busy time over ten seconds in which nine tenths of the work comes at most: more
	// than Busy if it comes in bursts. What single requests make it vary by is left out.
	Met float32
	// Fifths are the same for the lower four of five equal parts of the work, in the middle of
	// each, in parts of fifthUnit of Met, which is that of the busiest part. An older version has
	// written zeros.
	Fifths [4]uint8
	// Rough is by how much the variance of the work in the slice, from poll to poll, is larger than
	// if all work were stretched alike: long requests with wide kernels are stretched most. An
	// older version has written 0.
	Rough float32
	// Run is for how long the device has been busy all the time when the work is done, 95 % of it
	// at most, in seconds: it may have waited then.
	Run float32
	// Wait is the backlog that 95 % of the work find at most when it comes, in seconds.
	Wait float32
	// Slow is how far 95 % of the busy time is stretched at most, poll by poll. An older version has
	// written 0.
	Slow float32
	// The variance of the work that comes in a time, per second of that time, in seconds: from poll
	// to poll, and from minute to minute. If requests come at random, it is their rate times the
	// mean square of their service time.
	PollVariance, MinuteVariance float32
}

// queueUse has the busiest hours of a workload in profiles of one size.
type queueUse struct {
	SMs, MemorySlices uint16
	Spans             [keptSpans]queueSpan
	// Passed are the seconds of the minutes in which the slice would have been busier than
	// Options.TargetBusy, with the weights of the histograms, see addLoads.
	Passed float32
}

// queueSpan is what some days have seen of a workload, as it would have been in a profile.
type queueSpan struct {
	Number int16 // spans of spanDays since 1970
	Most10 uint8 // busiest ten minutes in the slice, in hundredths: above 100 if it falls behind
	// Work are the busy seconds of the device, Lost those of them for which the slice would have had
	// no time. An older version has counted none.
	Work, Lost float32
	Hour       queueHour
}

// spellLoad returns the load of the slice in the busiest spells, in which a tenth of the work
// comes.
func (h *queueHour) spellLoad() float32 {
	if h.Busy == 0 {
		return 0
	}

	return h.Load / h.Busy * h.Met
}

// busiest returns the busiest hour of those that are kept. It is not the one with the busiest
// spells: of hours that differ by chance alone, that would be the least usual one.
func (u *queueUse) busiest(now time.Time) queueHour {
	var worst queueHour
	for _, s := range u.Spans {
		if int32(s.Number) > spanOf(now)-keptSpans && s.Hour.Load > worst.Load {
			worst = s.Hour
		}
	}

	return worst
}

// add keeps an hour if it is the busiest of its span.
func (u *queueUse) add(h queueHour, at time.Time) { u.addIn(h, spanOf(at)) }

func (u *queueUse) addIn(h queueHour, number int32) {
	if s := u.spanAt(number); h.Load > s.Hour.Load {
		s.Hour = h
	}
}

// spanAt returns the span of a number. One that comes takes the place of the oldest.
func (u *queueUse) spanAt(number int32) *queueSpan {
	s := &u.Spans[(number%keptSpans+keptSpans)%keptSpans]
	if int32(s.Number) != number {
		*s = queueSpan{Number: int16(number)}
	}

	return s
}

func spanOf(at time.Time) int32 { return spanOfDay(dayOf(at)) }

func spanOfDay(day int32) int32 { return int32(math.Floor(float64(day) / spanDays)) }

// shift adds a number of days to all times. An hour may have been on the last day of its span.
func (u *queueUse) shift(days int32) {
	spans := u.Spans
	u.Spans = queueUse{}.Spans

	for _, s := range spans {
		if s.Hour.Load > 0 || s.Most10 > 0 || s.Work > 0 {
			number := spanOfDay(int32(s.Number)*spanDays + spanDays - 1 + days)
			u.addIn(s.Hour, number)

			to := u.spanAt(number)
			to.Most10 = max(to.Most10, s.Most10)
			to.Work += s.Work
			to.Lost += s.Lost
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
	sm, dram       float64 // integrals of activity
	poll, minute   successive
	spell          spells
	run            float64 // seconds for which it has been busy all the time
	runs           waitHistogram
	inMinute       float64 // busy seconds of the open minute
	minuteObserved float64
	before         queueHour // the hour before
	kernelsBefore  Kernels   // those of the hour before
	queues         []queue
}

// queue is the virtual queue of a device for profiles of a size.
type queue struct {
	sms, memorySlices int
	slice             Slice
	backlog           float64 // seconds
	load              float64 // busy seconds in the slice
	poll              successive
	waits             waitHistogram
	slow              stretchHistogram
}

// waitHistogram counts work by seconds of waiting.
type waitHistogram [waitBuckets]float32

// Bucket 0 of waits holds the work that waits for up to shortestWait seconds, each further one that
// up to waitGrowth times the bound of the one before, the last one all above: more than an hour.
const (
	waitBuckets  = 32
	shortestWait = 0.01
	waitGrowth   = 1.55
)

// successive sums up the squares of differences between neighbouring values. Slow changes of the
// load, which make no queue, are not in them.
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

// observeQueues adds the work of a poll to the virtual queues of a whole GPU, or of a GPU instance.
// Of a poll without SM or DRAM activity it is not known how far a slice would stretch it.
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
	d.hour.sm += kernels.Width * work
	d.hour.dram += kernels.Bandwidth * work

	for i := range d.hour.queues {
		q := &d.hour.queues[i]
		stretch := StretchOf(kernels, q.slice).likely()
		q.add(work, work*stretch, elapsed)
		q.slow.add(stretch, work)
	}
}

func hourOf(at time.Time) int64 { return at.Unix() / int64(hourLength.Seconds()) }

// newQueues returns empty queues for the profiles that are smaller than a device, one for each
// size.
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
		h.queues[i].poll.known = false
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

// add adds work, in busy seconds of the device, that takes so many seconds in the slice, and lets
// time pass. It comes spread over that time.
func (q *queue) add(work, stretched, elapsed float64) {
	before := q.backlog
	q.backlog = max(0, before+stretched-elapsed)
	q.load += stretched
	q.poll.add(stretched/elapsed, elapsed)
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

// longest returns the wait that 95 % of the work have at most, in seconds; 0 if it is less than a
// poll can show.
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

// closeHour gives the open hour of a device to its workload, and begins the next one. Backlogs go
// on.
func (d *device) closeHour(at time.Time) {
	h := &d.hour
	h.before = h.summary()
	h.kernelsBefore = h.kernels()

	if d.workload != nil && h.seconds >= enoughOfHour && h.work > 0 {
		for i := range h.queues {
			d.workload.addHour(&h.queues[i], h, at)
		}
	}

	h.number = hourOf(at)
	h.seconds = 0
	h.work = 0
	h.sm = 0
	h.dram = 0
	h.poll.squares = 0
	h.poll.seconds = 0
	h.minute.squares = 0
	h.minute.seconds = 0
	h.spell = spells{busy: h.spell.busy, observed: h.spell.observed}
	h.runs = waitHistogram{}

	for i := range h.queues {
		q := &h.queues[i]
		q.load = 0
		q.poll.squares = 0
		q.poll.seconds = 0
		q.waits = waitHistogram{}
		q.slow = stretchHistogram{}
	}
}

// addHour keeps an hour of a queue.
func (w *workload) addHour(q *queue, h *hour, at time.Time) {
	summary := h.before
	summary.Load = float32(q.load / h.seconds)
	summary.Wait = float32(q.waits.longest())
	summary.Rough = q.rough(h)
	summary.Slow = float32(q.slow.quantile(0.95))
	w.queueFor(q, len(h.queues)).add(summary, at)
}

// queueFor returns what is kept of a queue of an open hour, which has so many.
func (w *workload) queueFor(q *queue, of int) *queueUse {
	if use := w.queueOf(q.sms, q.memorySlices); use != nil {
		return use
	}

	w.Queues = append(
		slices.Grow(w.Queues, max(1, of-len(w.Queues))),
		queueUse{SMs: uint16(q.sms), MemorySlices: uint16(q.memorySlices)},
	)

	return &w.Queues[len(w.Queues)-1]
}

// hasHour reports whether an hour was observed.
func (w *workload) hasHour() bool {
	return slices.ContainsFunc(w.Queues, func(u queueUse) bool {
		return slices.ContainsFunc(u.Spans[:], func(s queueSpan) bool { return s.Hour.Busy > 0 })
	})
}

// rough returns queueHour.Rough.
func (q *queue) rough(h *hour) float32 {
	alike := float64(h.poll.variance()) * (q.load / h.work) * (q.load / h.work)
	if alike == 0 {
		return 1
	}

	return float32(max(1, float64(q.poll.variance())/alike))
}

// summary returns what the hour so far says of the device itself.
func (h *hour) summary() queueHour {
	if h.seconds == 0 || h.work == 0 {
		return queueHour{}
	}

	met, fifths := h.met()

	return queueHour{
		Busy: float32(h.work / h.seconds), Met: met, Fifths: fifths, Run: float32(h.runs.longest()),
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

// kernels returns what kernels used of the device on average in the hour so far.
func (h *hour) kernels() Kernels {
	if h.work == 0 {
		return Kernels{}
	}

	return Kernels{Width: h.sm / h.work, Bandwidth: h.dram / h.work}
}

// latestKernels returns the kernels of latest.
func (h *hour) latestKernels() Kernels {
	if h.seconds < enoughOfHour {
		return h.kernelsBefore
	}

	return h.kernels()
}
