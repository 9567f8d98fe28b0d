package sim

import (
	"slices"
	"time"
)

// stepLength is the longest time for which readings hold.
const stepLength = time.Second

// scheduledEvent is something that happens at a time. Of those at the same time the lower rank
// comes first: what ends makes room for what begins.
type scheduledEvent struct {
	at   time.Time
	rank int
	do   func()
}

const (
	rankEnd = iota
	rankFault
	rankStart
	rankChange // an operation finds done what was due
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

// catchUp brings the state to the step that holds a moment.
func (n *Node) catchUp(now time.Time) {
	for {
		next := n.start.Add(time.Duration(n.step+1) * stepLength)
		if len(n.schedule) > 0 && n.schedule[0].at.Before(next) {
			next = n.schedule[0].at
		}

		if next.After(now) {
			return
		}

		passed := next.Sub(n.at)
		n.endStep(next)
		n.step = int64(next.Sub(n.start) / stepLength)
		n.runDue()
		n.resample = false
		n.sampleAll(passed)
	}
}

// runDue does what is due.
func (n *Node) runDue() {
	for len(n.schedule) > 0 && !n.schedule[0].at.After(n.at) {
		due := n.schedule[0]
		n.schedule = n.schedule[1:]
		due.do()
	}
}

// endStep ends the running step at a moment within it: counters grow up to there.
func (n *Node) endStep(at time.Time) {
	n.forgetDescriptions()

	passed := at.Sub(n.at).Seconds()
	for _, g := range n.gpus {
		g.totals = g.totals.after(g.sample, passed)
		g.count(passed)
	}

	n.at = at
}

// sampleIfChanged begins a new step if something changed; passed is how long the one before has
// held.
func (n *Node) sampleIfChanged(passed time.Duration) {
	if n.resample {
		n.resample = false
		n.sampleAll(passed)
	}
}

// nextChange is when something next happens by itself; ok is false if nothing is due any more.
func (n *Node) nextChange() (at time.Time, ok bool) {
	if len(n.schedule) == 0 {
		return time.Time{}, false
	}

	return n.schedule[0].at, true
}
