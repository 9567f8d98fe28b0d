package sim

import (
	"slices"
	"time"
)

// cellLength is the longest time for which readings hold.
const cellLength = time.Second

// appointment is something that happens at a time. Of those at the same time the lower rank comes first: what ends makes
// room for what begins.
type appointment struct {
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

// plan puts everything that the scenario fixes in time on the agenda.
func (n *Node) plan() {
	for i := range n.scenario.Faults {
		n.planFault(&n.scenario.Faults[i])
	}
	for i := range n.scenario.Processes {
		spec := &n.scenario.Processes[i]
		n.agenda = append(n.agenda, appointment{n.start.Add(spec.At), rankStart, func() { n.startProcess(i, spec) }})
	}
	n.planPods()
	n.sortAgenda()
}

// later puts the end of something on the agenda of a running node.
func (n *Node) later(at time.Time, end func()) {
	n.agenda = append(n.agenda, appointment{at, rankEnd, end})
	n.sortAgenda()
}

func (n *Node) sortAgenda() {
	slices.SortStableFunc(n.agenda, func(a, b appointment) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return a.rank - b.rank
	})
}

// catchUp brings the state to the cell that holds a moment.
func (n *Node) catchUp(now time.Time) {
	for {
		next := n.start.Add(time.Duration(n.cell+1) * cellLength)
		if len(n.agenda) > 0 && n.agenda[0].at.Before(next) {
			next = n.agenda[0].at
		}
		if next.After(now) {
			return
		}
		passed := next.Sub(n.at)
		n.cutCell(next)
		n.cell = int64(next.Sub(n.start) / cellLength)
		n.happen()
		n.resample = false
		n.sampleAll(passed)
	}
}

// happen does what is due.
func (n *Node) happen() {
	for len(n.agenda) > 0 && !n.agenda[0].at.After(n.at) {
		due := n.agenda[0]
		n.agenda = n.agenda[1:]
		due.do()
	}
}

// cutCell ends the running cell at a moment within it: counters grow up to there.
func (n *Node) cutCell(at time.Time) {
	passed := at.Sub(n.at).Seconds()
	for _, b := range n.boards {
		b.totals = b.totals.after(b.sample, passed)
		b.count(passed)
	}
	n.at = at
}

// sampleIfChanged begins a new cell where something changed; passed is how long the one before has held.
func (n *Node) sampleIfChanged(passed time.Duration) {
	if n.resample {
		n.resample = false
		n.sampleAll(passed)
	}
}

// nextChange is when something next happens by itself; ok is false where nothing is due any more.
func (n *Node) nextChange() (at time.Time, ok bool) {
	if len(n.agenda) == 0 {
		return time.Time{}, false
	}
	return n.agenda[0].at, true
}
