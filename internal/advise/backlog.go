package advise

import (
	"math"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Whether requests wait depends on the order of busy and idle moments, which histograms lose. So each
// poll's work enters a virtual queue for each profile that is smaller than the device: the backlog
// grows by the time that the work takes in the slice, and shrinks by the time that passes. We keep by
// the hour what the work finds waiting there, and for each profile the busiest hour of the last days.
//
// For example, a device that is busy for 3 s of a 5-second poll adds 6 s to the queue of a slice that
// stretches kernels twice; 5 s pass, and the backlog is 1 s longer after it.

const (
	hourLength = time.Hour
	// We keep the busiest hour of each span of spanDays, and count the last keptSpans spans: the
	// current one and two whole ones, so eight to twelve days.
	spanDays, keptSpans = 4, 3
	// enoughOfHour is how many seconds of an hour must be observed to show how long requests wait in
	// it. It leaves out the first minutes of a pod, in which it warms up.
	enoughOfHour = 1200
)

// queueHour is an hour of a workload, as it would have been in a profile.
type queueHour struct {
	Load float32 // mean busy time in the slice, above 1 if it falls behind
	Busy float32 // mean busy time on the device, 0-1
	// Share is the part of the hour for which its container held the device. Older versions have written
	// 0.
	Share float32
	// Met is the busy time, over spells of ten seconds, below which nine tenths of the work comes. It
	// is more than Busy if the work comes in bursts. Chance, by which single requests make spells
	// differ, is left out.
	Met float32
	// Sort the work by the busy time of its spell and divide it into fifths: Met is the busy time of
	// the upper fifth, at its middle, and Fifths are the other four, in parts of fifthUnit of Met.
	// Older versions have written zeros.
	Fifths [4]uint8
	// Rough is how many times the variance of the work in the slice, from poll to poll, is what it
	// would be if all work were stretched alike. It is above 1 if long requests have wide kernels.
	// Older versions have written 0.
	Rough float32
	// Run is the p95, over the work, of the seconds for which the device had been busy without a
	// pause when the work was done: requests may have waited all that time.
	Run float32
	// Wait is the p95, over the work, of the backlog in seconds that it finds when it comes.
	Wait float32
	// Slow is the p95, over the busy time, of the stretch of polls. Older versions have written 0.
	Slow float32
	// The variance of the work that comes in a time, divided by that time, in seconds: from poll to
	// poll, and from minute to minute. For requests that come at random it is their rate times the
	// mean square of their service time.
	PollVariance, MinuteVariance float32
}

// queueUse has the busiest hours of a workload in profiles of one size.
type queueUse struct {
	SMs, MemorySlices uint16
	Spans             [keptSpans]queueSpan
	// Passed counts the seconds of minutes in which the slice would have been busier than
	// Options.TargetBusy, with the weights of the histograms. See addLoads.
	Passed float32
}

// queueSpan is what some days have seen of a workload, as it would have been in a profile.
type queueSpan struct {
	Number int16 // spans of spanDays since 1970
	Most10 uint8 // busiest ten minutes in the slice, in hundredths: above 100 if it falls behind
	// Work are the busy seconds of the device, Lost those of them that the slice would have had no
	// time for. Older versions have written zeros.
	Work, Lost float32
	Hour       queueHour
}

// spellLoad returns the load of the slice in its busiest spells, those of the upper tenth of the work.
func (h *queueHour) spellLoad() float32 {
	if h.Busy == 0 {
		return 0
	}

	return h.Load / h.Busy * h.Met
}

// work returns the work of the hour in the slice, in busy hours. If a container came or went, it held the
// device for a part of the hour: ten busy minutes of twenty are no busier an hour than ten of sixty. What
// was not observed of the part was as busy as the rest.
func (h *queueHour) work() float32 {
	if h.Share == 0 {
		return h.Load
	}

	return h.Load * h.Share
}

// busiest returns the hour with the most work that is kept. We do not take the hour with the busiest
// spells: of hours that differ by chance alone, that would be the least usual one.
func (u *queueUse) busiest(now time.Time) queueHour {
	var busiest queueHour

	for i := range u.Spans {
		if s := &u.Spans[i]; s.isKept(now) && s.Hour.work() > busiest.work() {
			busiest = s.Hour
		}
	}

	return busiest
}

// isKept reports whether a span still counts.
func (s *queueSpan) isKept(now time.Time) bool { return int32(s.Number) > spanOf(now)-keptSpans }

// add keeps an hour if it is the busiest of its span.
func (u *queueUse) add(h queueHour, at time.Time) { u.addIn(h, spanOf(at)) }

func (u *queueUse) addIn(h queueHour, number int32) {
	if s := u.spanAt(number); h.work() > s.Hour.work() {
		s.Hour = h
	}
}

// spanAt returns the span of a number. A new span takes the place of the oldest one.
func (u *queueUse) spanAt(number int32) *queueSpan {
	s := &u.Spans[(number%keptSpans+keptSpans)%keptSpans]
	if int32(s.Number) != number {
		*s = queueSpan{Number: int16(number)}
	}

	return s
}

// spanOf returns the number of the span that a time is in.
func spanOf(at time.Time) int32 { return spanOfDay(dayOf(at)) }

func spanOfDay(day int32) int32 { return int32(math.Floor(float64(day) / spanDays)) }

// shift adds a number of days to all times. We do not know on which day of its span an hour was, and
// take the last one, so that nothing is forgotten too early.
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

// queueOf returns the busiest hours in profiles of a size; nil if there are none.
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
	observed, work float64 // seconds, and busy seconds
	sm, dram       float64 // integrals of activity
	poll, minute   successive
	spells         spells

	run  float64 // seconds for which it has been busy without a pause, up to now
	runs waitHistogram

	minuteObserved, minuteWork float64 // of the open minute

	// Of the hour before.
	previous        queueHour
	previousKernels Kernels

	queues []queue
}

// queue is the virtual queue of a device for profiles of a size.
type queue struct {
	sms, memorySlices int
	slice             Slice
	backlog           float64    // seconds
	work              float64    // busy seconds in the slice
	poll              successive // of the work in the slice
	waits             waitHistogram
	slow              stretchHistogram
}

// waitHistogram counts work, in busy seconds, by the seconds for which it waits.
type waitHistogram [waitBuckets]float32

// Bucket 0 of a waitHistogram holds the work that waits for up to shortestWait seconds. Each further
// bucket goes up to waitGrowth times the bound of the one before. The last one also holds all above:
// more than an hour.
const (
	waitBuckets  = 32
	shortestWait = 0.01
	waitGrowth   = 1.55
)

// successive estimates the variance of the work from the differences between neighbouring values.
// Unlike a variance around the mean, it leaves out slow changes of the load, which make no queue.
type successive struct {
	last    float64 // busy share
	known   bool
	squares float64
	seconds float64
}

// add adds the busy share of some seconds.
func (s *successive) add(share, seconds float64) {
	if s.known {
		difference := (share - s.last) * seconds
		s.squares += difference * difference / 2 // the variance of a difference is twice that of a value
		s.seconds += seconds
	}

	s.last = share
	s.known = true
}

// restart drops the sums, and keeps the last value to compare the next one with.
func (s *successive) restart() {
	s.squares = 0
	s.seconds = 0
}

// interrupt drops the last value: the next one is no neighbour of it.
func (s *successive) interrupt() { s.known = false }

// variance returns the variance of the work per second.
func (s *successive) variance() float32 {
	if s.seconds == 0 {
		return 0
	}

	return float32(s.squares / s.seconds)
}

// observeQueues adds the work of a poll to the virtual queues of a whole GPU, or of a GPU instance.
// Without SM or DRAM activity we do not know how far a slice would stretch the work of the poll.
func (d *device) observeQueues(
	g *gpu.GPU,
	i *gpu.GPUInstance,
	activity *gpu.Activity,
	elapsed float64,
) {
	if d.workload == nil || d.workload.Key.endsByItself() {
		return
	}

	busy, read := activity.GraphicsEngine.Get()
	sm, smRead := activity.SM.Get()
	dram, dramRead := activity.DRAM.Get()

	if !read || !smRead || !dramRead || elapsed == 0 {
		d.hour.interrupt()
		return
	}

	if d.hour.queues == nil {
		current := wholeCapacity(g)
		if i != nil {
			current = instanceCapacity(g, i)
		}

		d.hour = hour{number: hourOf(d.seen), queues: newQueues(g, current)}
	}

	busy = min(max(busy, 0), 1)
	work := busy * elapsed
	kernels := Kernels{}

	if busy > 0 {
		kernels = kernelsOf(busy, sm, dram)
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

// hourOf returns the number of the hour that a time is in, since 1970.
func hourOf(at time.Time) int64 { return at.Unix() / int64(hourLength.Seconds()) }

// newQueues returns empty queues for the profiles that are smaller than a device, one for each
// size.
func newQueues(g *gpu.GPU, current capacity) []queue {
	queues := []queue{}
	if current.sms == 0 || current.memorySlices == 0 {
		return queues
	}

	for _, p := range smallerProfiles(g, current) {
		// They are ordered by size, so profiles of one size follow each other.
		n := len(queues)
		if n > 0 && queues[n-1].sms == p.SMs && queues[n-1].memorySlices == p.MemorySlices {
			continue
		}

		queues = append(queues, queue{
			sms:          p.SMs,
			memorySlices: p.MemorySlices,
			slice:        sliceOf(p, current),
		})
	}

	return queues
}

// interrupt drops what is under way: we do not know whether the queues empty during a gap, and take
// them to be empty.
func (h *hour) interrupt() {
	h.poll.interrupt()
	h.minute.interrupt()

	h.minuteWork = 0
	h.minuteObserved = 0
	h.spells.busy = 0
	h.spells.observed = 0
	h.spells.wasPartly = false
	h.run = 0

	for i := range h.queues {
		h.queues[i].backlog = 0
		h.queues[i].poll.interrupt()
	}
}

// add counts the busy share of a poll.
func (h *hour) add(busy, elapsed float64) {
	h.observed += elapsed
	h.work += busy * elapsed
	h.poll.add(busy, elapsed)
	h.spells.add(busy, elapsed)

	h.run += elapsed
	if busy < alwaysBusy {
		h.run = 0
	}

	h.runs.add(h.run, busy*elapsed)

	h.minuteWork += busy * elapsed
	h.minuteObserved += elapsed

	if h.minuteObserved >= windowLength.Seconds() {
		h.minute.add(h.minuteWork/h.minuteObserved, h.minuteObserved)
		h.minuteWork = 0
		h.minuteObserved = 0
	}
}

// add adds the work of a poll: its busy seconds on the device, and the seconds that it takes in the
// slice. The work comes spread over the poll, so on average it finds half of how the backlog changes.
func (q *queue) add(work, stretched, elapsed float64) {
	before := q.backlog
	q.backlog = max(0, before+stretched-elapsed)
	q.work += stretched
	q.poll.add(stretched/elapsed, elapsed)
	q.waits.add((before+q.backlog)/2, work)
}

// restart begins another hour. The backlog goes on.
func (q *queue) restart() {
	q.work = 0
	q.poll.restart()
	q.waits = waitHistogram{}
	q.slow = stretchHistogram{}
}

// alwaysBusy is the busy share from which on we take a poll to have no idle moment.
const alwaysBusy = 0.98

// add counts work that waits for some seconds.
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

// p95 returns the wait in seconds that 95 % of the work do not exceed: the middle of its bucket, by
// the logarithm. It is 0 if it is shorter than a poll can show.
func (h *waitHistogram) p95() float64 {
	bucket := bucketOfQuantile(h[:], 0.95)
	if bucket == 0 {
		return 0
	}

	return shortestWait * math.Pow(waitGrowth, float64(bucket)-0.5)
}

// closeHour gives the open hour of a device to its workload, and begins the next one. What is under
// way goes on: backlogs, the open minute, the open spell and the run.
func (d *device) closeHour(at time.Time) {
	h := &d.hour
	h.previous = h.summary()
	h.previousKernels = h.kernels()

	if d.workload != nil && h.observed >= enoughOfHour && h.work > 0 {
		for i := range h.queues {
			d.workload.addHour(&h.queues[i], h, d.heldShare(at), at)
		}
	}

	h.number = hourOf(at)
	h.observed = 0
	h.work = 0
	h.sm = 0
	h.dram = 0
	h.poll.restart()
	h.minute.restart()
	h.spells.restart()
	h.runs = waitHistogram{}

	for i := range h.queues {
		h.queues[i].restart()
	}
}

// heldShare returns the part of the open hour, which ends at a time, for which the container held the
// device. If it was not seen to come, it held the device before.
func (d *device) heldShare(at time.Time) float32 {
	began := time.Unix(d.hour.number*int64(hourLength.Seconds()), 0)
	ended := began.Add(hourLength)

	if d.came.After(began) {
		began = d.came
	}

	if at.Before(ended) { // the container has gone
		ended = at
	}

	return float32(min(max(ended.Sub(began).Hours(), 0), 1))
}

// addHour keeps the hour that has just ended, as it would have been in the slice of a queue. share is
// queueHour.Share.
func (w *workload) addHour(q *queue, h *hour, share float32, at time.Time) {
	summary := h.previous
	summary.Load = float32(q.work / h.observed)
	summary.Share = share
	summary.Wait = float32(q.waits.p95())
	summary.Rough = q.rough(h)
	summary.Slow = float32(q.slow.quantile(0.95))
	w.queueFor(q, len(h.queues)).add(summary, at)
}

// queueFor returns the busiest hours of the profiles that a queue is for. If it is the first of a
// number of queues, it makes room for all of them.
func (w *workload) queueFor(q *queue, queues int) *queueUse {
	if use := w.queueOf(q.sms, q.memorySlices); use != nil {
		return use
	}

	w.Queues = append(
		slices.Grow(w.Queues, max(1, queues-len(w.Queues))),
		queueUse{SMs: uint16(q.sms), MemorySlices: uint16(q.memorySlices)},
	)

	return &w.Queues[len(w.Queues)-1]
}

// hasHour reports whether the busiest hour of any profile is known.
func (w *workload) hasHour() bool {
	return slices.ContainsFunc(w.Queues, func(u queueUse) bool {
		return slices.ContainsFunc(u.Spans[:], func(s queueSpan) bool { return s.Hour.Busy > 0 })
	})
}

// rough returns queueHour.Rough.
func (q *queue) rough(h *hour) float32 {
	stretch := q.work / h.work

	alike := float64(h.poll.variance()) * stretch * stretch // if all work were stretched by the mean
	if alike == 0 {
		return 1
	}

	return float32(max(1, float64(q.poll.variance())/alike))
}

// summary returns the part of the hour so far that is the same for all profiles.
func (h *hour) summary() queueHour {
	if h.observed == 0 || h.work == 0 {
		return queueHour{}
	}

	met, fifths := h.met()

	return queueHour{
		Busy:           float32(h.work / h.observed),
		Met:            met,
		Fifths:         fifths,
		Run:            float32(h.runs.p95()),
		PollVariance:   h.poll.variance(),
		MinuteVariance: h.minute.variance(),
	}
}

// latest returns the summary of the open hour, or of the one before while too little of the open one
// is observed.
func (h *hour) latest() queueHour {
	if h.observed < enoughOfHour {
		return h.previous
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

// latestKernels returns the kernels of the hour that latest returns.
func (h *hour) latestKernels() Kernels {
	if h.observed < enoughOfHour {
		return h.previousKernels
	}

	return h.kernels()
}
