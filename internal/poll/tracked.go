package poll

import (
	"errors"
	"slices"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// trackedGPU is one GPU over time: its last good reading, and the totals since we first saw it.
type trackedGPU struct {
	logger log.Logger
	maxGap time.Duration // for how long we assume that what a reading shows still holds

	firstSeen time.Time
	read      asyncCall[reading]
	// last is the last good reading with the values derived from it; its LastRead is zero before
	// the first. Its UUID is empty for a GPU without a handle.
	last             gpu.GPU
	receivedAt       time.Time // when we received the last good reading, which may have begun long before
	up               bool
	failure          []gpu.ReadError // why it is not up
	hangCounted      bool            // we have counted the present hang: see markHung
	progressReported time.Time       // the last result of Options.Progress
	progressedAt     time.Time       // the same, or when we first saw it if that was earlier: see isReadingHung
	released         gpu.Opt[gpu.Release]
	// displacedSince is when we first saw another GPU with the index of this lost one; zero if no
	// other GPU has it.
	displacedSince time.Time
	incidents      incidents // XIDs that we have counted lately
	// How many events EventUnavailable and EventRecoveryAction there were. A Snapshot has these
	// only if the driver reports such events.
	unavailable, recoveryActions gpu.Counter
	lastEventLog                 map[eventKey]time.Time // when we last logged an event with this key

	hasMIG       bool // the GPU has MIG, by the last reading that could read the mode
	layout       layoutTracker
	exclusive    exclusiveUses
	capacity     capacityCache
	totals       gpu.Totals
	powerMissing bool              // the last reading had neither power nor energy in MIG mode
	pcie         [2]growingCounter // receive, transmit
	nvlink       [2]growingCounter // receive, transmit

	profiling       profilerReading
	lastReported    time.Time // when we last made a request that the profiler answered for the GPU
	lastReportedAll time.Time // the same for a complete answer: see reportsAll
	// completeSince is since when every answer has been complete; zero if the last one was not.
	completeSince time.Time

	cues               cueTracker
	activityFromDriver bool // the profiler fails: we ask the driver for the activity
	idle               idlePower
	energyCounter      gpu.Opt[float64] // the GPU's energy counter when we last shared its energy
	energyReadAt       time.Time        // the reading that energyCounter is from
	derived            derivedPower
}

// reading is the result of one reading of a GPU.
type reading struct {
	gpu.GPU
	extent extent
}

func newTrackedGPU(id gpu.UUID, now time.Time, opts *Options) *trackedGPU {
	t := &trackedGPU{
		logger:    opts.Logger,
		maxGap:    opts.StaleAfter,
		firstSeen: now,
		last:      gpu.GPU{Facts: gpu.Facts{UUID: id}},
	}
	t.totals.XIDs.Since = now
	t.unavailable.Since = now
	t.recoveryActions.Since = now
	t.totals.LayoutChanges.Since = now
	t.totals.ReadErrors = initialErrors(now)

	return t
}

// initialErrors returns the errors whose counters begin at 0 when we first see the GPU, so that
// PromQL's increase() sees their first increment: errors of a whole GPU and of its events.
// docs/metrics.md names them. We do not begin all combinations of a reading and a reason: that
// would be a hundred series for each GPU.
func initialErrors(now time.Time) []gpu.ErrorCount {
	begun := gpu.Counter{Since: now}

	return []gpu.ErrorCount{
		{Reading: gpu.ReadingDevice, Reason: gpu.ReasonLost, Counter: begun},
		{Reading: gpu.ReadingDevice, Reason: gpu.ReasonResetRequired, Counter: begun},
		{Reading: gpu.ReadingDevice, Reason: gpu.ReasonTimeout, Counter: begun},
		{Reading: gpu.ReadingDevice, Reason: gpu.ReasonOther, Counter: begun},
		{Reading: gpu.ReadingEvents, Reason: gpu.ReasonOther, Counter: begun},
	}
}

// recordReading stores a good reading that began at at, and derives totals, activity and power from
// it and the one before.
func (t *trackedGPU) recordReading(read gpu.GPU, at time.Time) {
	before := t.last
	t.last = read
	g := &t.last
	t.up = true
	t.failure = nil
	t.hangCounted = false
	t.countErrors(g, at)

	if g.MIG.Enabled.Present() || !readingFailed(g, gpu.ReadingMIG) {
		t.hasMIG = g.MIG.Enabled.Present()
	}

	if isLayoutUnknown(g, &before) {
		g.Instances = copyWithoutReadings(before.Instances)
		g.MIG.LayoutGeneration = t.layout.generation
	} else if t.layout.update(g, at) {
		t.totals.LayoutChanges.Value++
	}

	g.Capacity = t.capacity.get(g)

	elapsed := at.Sub(before.LastRead)
	if before.LastRead.IsZero() || elapsed < 0 { // the clock was set back
		elapsed = 0
	}

	t.addClockEvents(g, min(elapsed, t.maxGap), at)
	t.addTraffic(g, at)
	t.addActivity(g, at)
	t.estimatePower(g, at)

	g.LastRead = at
	for i := range g.Instances {
		g.Instances[i].LastRead = at
	}
}

// isLayoutUnknown reports whether a reading could not list the instances or read the MIG mode: then
// we keep the layout before. If we lack the permission to list GPU instances and have never seen
// one, the layout counts as empty instead, because later readings will see no more.
func isLayoutUnknown(g, before *gpu.GPU) bool {
	return len(g.Instances) == 0 && g.MIG.Enabled.Or(true) && readingFailed(g, gpu.ReadingMIG) &&
		(len(before.Instances) > 0 || !mayLackInstances(g))
}

// copyWithoutReadings copies instances, and marks the copies as down and without readings.
func copyWithoutReadings(instances []gpu.GPUInstance) []gpu.GPUInstance {
	list := cloneInstances(instances)
	for i := range list {
		gi := &list[i]
		dropInstanceReadings(gi)

		gi.Up = false
		for c := range gi.ComputeInstances {
			gi.ComputeInstances[c].Up = false
		}
	}

	return list
}

// readingFailed reports whether a reading of the whole GPU failed; an absent value without a
// failure is not supported.
func readingFailed(g *gpu.GPU, reading gpu.Reading) bool {
	return slices.ContainsFunc(g.Errors, func(e gpu.ReadError) bool { return e.Reading == reading })
}

// markDown records that a GPU could not be read as a whole.
func (t *trackedGPU) markDown(err error, at time.Time) {
	e := gpu.ReadError{Reading: gpu.ReadingDevice, Err: err}
	t.up = false
	t.failure = []gpu.ReadError{e}
	t.hangCounted = false
	t.derived = derivedPower{} // its energy counter may begin anew
	t.idle.interrupt()
	t.countError(e, at)
}

// markUnread marks a GPU that we cannot read at present as down, because of err, once its last
// reading is stale.
func (t *trackedGPU) markUnread(err error, now time.Time, staleAfter time.Duration) {
	if t.up && now.Sub(t.receivedAt) >= staleAfter {
		t.markDown(err, now)
	}
}

// markHung marks a GPU as down because a call that began at since has not returned. While the hang
// lasts, later calls of markHung do not count it again.
func (t *trackedGPU) markHung(since time.Time) {
	if t.hangCounted {
		return
	}

	t.markDown(gpu.ErrTimeout, since)
	t.hangCounted = true
}

// countErrors counts the errors of all devices of a GPU.
func (t *trackedGPU) countErrors(g *gpu.GPU, at time.Time) {
	for d := range g.Devices() {
		for _, e := range d.Errors {
			t.countError(e, at)
		}
	}
}

// countError counts a failure, and logs the first of its kind.
func (t *trackedGPU) countError(e gpu.ReadError, at time.Time) {
	if e.Remembered { // we have counted it already
		return
	}

	reason := e.Reason()
	for i := range t.totals.ReadErrors {
		if c := &t.totals.ReadErrors[i]; c.Reading == e.Reading && c.Reason == reason {
			if c.Value == 0 {
				t.logFailure(e)
			}

			c.Value++

			return
		}
	}

	t.logFailure(e)
	t.totals.ReadErrors = append(
		t.totals.ReadErrors,
		gpu.ErrorCount{
			Reading: e.Reading,
			Reason:  reason,
			Counter: gpu.Counter{Value: 1, Since: at},
		},
	)
}

// logFailure logs a failure, except that another PID namespace hides the processes: the source has
// logged that for all GPUs.
func (t *trackedGPU) logFailure(e gpu.ReadError) {
	if errors.Is(e.Err, gpu.ErrPIDNamespace) {
		return
	}

	level.Warn(t.logger).Log(
		"msg", "reading failed; further failures of this kind are only counted",
		"gpu", t.last.UUID,
		"index", t.last.Index,
		"reading", e.Reading,
		"err", e.Err,
	)
}

// addClockEvents adds elapsed, the time since the last reading, to the clock event reasons that are
// active in this reading. at is when the reading began.
func (t *trackedGPU) addClockEvents(g *gpu.GPU, elapsed time.Duration, at time.Time) {
	bits, ok := g.Readings.ClockEvents.Get()
	if !ok {
		if !readingFailed(g, gpu.ReadingClockEvents) {
			t.totals.ClockEvents = nil
		}

		return // after a failed reading the totals stay
	}

	if t.totals.ClockEvents == nil {
		for _, r := range gpu.ClockEventReasons() {
			t.totals.ClockEvents = append(t.totals.ClockEvents,
				gpu.ReasonSeconds{Reason: r.Name, Seconds: gpu.Counter{Since: at}})
		}
	}

	for i, r := range gpu.ClockEventReasons() {
		c := &t.totals.ClockEvents[i]

		c.Active = bits&r.Bit != 0
		if c.Active {
			c.Seconds.Value += elapsed.Seconds()
		}
	}
}
