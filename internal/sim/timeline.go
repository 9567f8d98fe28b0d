package sim

import (
	"slices"
	"time"
)

// stepLength is how long a step lasts at most. Readings stay the same within a step.
const stepLength = time.Second

// scheduledEvent is something that happens at a time. Of two events at the same time, we run the one
// with the lower rank first: a pod that ends frees its device for a pod that starts.
type scheduledEvent struct {
	at   time.Time
	rank int
	do   func()
}

const (
	rankEnd = iota
	rankFault
	rankStart
	rankChange // a client's change comes last: it sees everything else of that time done
)

// scheduleScenario puts everything that the scenario fixes in time on the schedule.
func (n *Node) scheduleScenario() {
	for i := range n.scenario.Faults {
		n.scheduleFault(&n.scenario.Faults[i])
	}

	for i := range n.scenario.Processes {
		spec := &n.scenario.Processes[i]
		n.schedule = append(
			n.schedule,
			scheduledEvent{n.start.Add(spec.At), rankStart, func() { n.startProcess(i, spec) }},
		)
	}

	n.schedulePods()
	n.sortSchedule()
}

// scheduleEnd puts the end of something on the schedule of a running node.
func (n *Node) scheduleEnd(at time.Time, end func()) {
	n.schedule = append(n.schedule, scheduledEvent{at, rankEnd, end})
	n.sortSchedule()
}

// scheduleStart puts the beginning of something on the schedule of a running node.
func (n *Node) scheduleStart(at time.Time, begin func()) {
	n.schedule = append(n.schedule, scheduledEvent{at, rankStart, begin})
	n.sortSchedule()
}

func (n *Node) sortSchedule() {
	slices.SortStableFunc(n.schedule, func(a, b scheduledEvent) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}

		return a.rank - b.rank
	})
}

// catchUp runs all steps that begin up to now, so that the state is that of the step in which now
// lies. The caller holds n.mu.
func (n *Node) catchUp(now time.Time) {
	for {
		next := n.start.Add(time.Duration(n.step+1) * stepLength)
		if len(n.schedule) > 0 && n.schedule[0].at.Before(next) {
			next = n.schedule[0].at
		}

		if next.After(now) {
			return
		}

		elapsed := next.Sub(n.stateTime)
		n.endStep(next)
		n.step = int64(next.Sub(n.start) / stepLength)
		n.runDue()
		n.resample = false
		n.sampleAll(elapsed)
	}
}

// runDue runs the scheduled events up to the time of the state.
func (n *Node) runDue() {
	for len(n.schedule) > 0 && !n.schedule[0].at.After(n.stateTime) {
		due := n.schedule[0]
		n.schedule = n.schedule[1:]
		due.do()
	}
}

// endStep ends the running step at a moment, and adds to all counters what they grew in it.
func (n *Node) endStep(at time.Time) {
	n.forgetDescriptions()

	elapsed := at.Sub(n.stateTime).Seconds()
	for _, g := range n.gpus {
		g.totals = g.totals.after(g.sample, elapsed)
		g.countInstances(elapsed)
	}

	n.stateTime = at
}

// sampleIfChanged begins a new step if something changed; elapsed is how long the step before
// lasted.
func (n *Node) sampleIfChanged(elapsed time.Duration) {
	if n.resample {
		n.resample = false
		n.sampleAll(elapsed)
	}
}

// sinceStart returns the time of the state as scenarios count it: since the start of the node.
func (n *Node) sinceStart() time.Duration { return n.stateTime.Sub(n.start) }

// nextChange returns the time of the next scheduled event; ok is false if there is none.
func (n *Node) nextChange() (at time.Time, ok bool) {
	if len(n.schedule) == 0 {
		return time.Time{}, false
	}

	return n.schedule[0].at, true
}
