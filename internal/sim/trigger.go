package sim

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// triggerFaults begins the faults that wait for a call for this reading (FaultSpec.During). The
// caller holds n.mu.
func (n *Node) triggerFaults(index int, reading gpu.Reading, now time.Time) {
	sinceStart := now.Sub(n.start)
	for i := range n.scenario.Faults {
		f := &n.scenario.Faults[i]
		if f.During == "" || f.During != reading || index == noSingleGPU || n.triggered[f] ||
			!f.active(index, sinceStart) {
			continue
		}

		op, err := n.begin(n.gpus[index])
		if err != nil {
			return // the next call tries again
		}

		// begin may have replayed that another process has triggered the fault.
		if !n.triggered[f] && op.commit(Change{Op: opTrigger, Fault: i}) == nil {
			n.triggerFault(f, index)
		}

		op.commitOrUndo()
	}
}

func (n *Node) triggerFault(f *FaultSpec, index int) {
	n.triggered[f] = true
	switch f.Kind {
	case FaultReconfigure:
		n.repartition(n.gpus[index], f.Layout)
	case FaultXID:
		n.reportXID(f)
	}
}

// fakesDestruction reports whether a fault makes the driver report success without destroying the
// instance.
func (n *Node) fakesDestruction(g *simGPU, now time.Time, op *operation) bool {
	lies := op.isFaulted(FaultDestroyLies)
	n.eachActiveFault(
		g.index,
		now,
		func(f *FaultSpec) { lies = lies || f.Kind == FaultDestroyLies },
	)

	return lies
}

// loseEvents makes every queue that watches something fail.
func (n *Node) loseEvents() {
	for _, s := range n.watches {
		if len(s.watched) == 0 {
			continue
		}

		if !s.mending { // otherwise n.failedQueues counts it already
			n.failedQueues++
		}

		s.broken = true
		s.mending = true
		s.asked = 0
		s.queue = nil
		s.wake()
	}
}

// countQuery records that the subscription's owner asks for an event. When it asks for the second
// time, it has had an answer, so it knows that the queue works.
func (s *Subscription) countQuery() {
	n := s.node
	n.mu.Lock()
	defer n.mu.Unlock()

	if !s.mending {
		return
	}

	s.asked++
	if s.asked == 2 {
		s.mending = false
		n.failedQueues = max(n.failedQueues-1, 0)
		n.wakeWaiters()
	}
}

// takeFailure reports whether the queue has failed. It reports each failure once.
func (s *Subscription) takeFailure() bool {
	s.node.lockAndCatchUp()
	defer s.node.mu.Unlock()

	if !s.broken {
		return false
	}

	s.broken = false
	s.asked = 0

	return true
}

// AwaitHostEngine blocks while the node's DCGM host engine is stopped.
func (n *Node) AwaitHostEngine() {
	for {
		now := n.lockAndCatchUp()
		n.mu.Unlock()
		var stopped bool
		var until time.Time
		n.eachActiveFault(noSingleGPU, now, func(f *FaultSpec) {
			if f.Kind != FaultDCGMHang {
				return
			}

			stopped = true

			if f.For > 0 {
				until = n.start.Add(f.At + f.For)
			}
		})

		if !stopped || !n.clock.waitUntil(until, n.closed) {
			return
		}
	}
}

// HostEngineState is the state of the node's DCGM host engine.
type HostEngineState struct {
	Down     bool
	Restarts int  // so far
	Paused   bool // profiling is paused
	NonRoot  bool // it runs without root's rights
	Mismatch bool // its version differs from its clients'
	NoModule bool // it can only profile GPUs with GPM
	Taken    bool // another client has taken all groups
	Stopped  Stop // the last stop that has ended; zero if there was none
}

// Stop is a period in which the engine was stopped and did nothing.
type Stop struct{ From, Until time.Time }

// HostEngine returns the state of the node's DCGM host engine.
func (n *Node) HostEngine() HostEngineState {
	state := HostEngineState{NonRoot: !n.scenario.Node.Privileged}
	now := n.lockAndCatchUp() // another process may have moved a shared clock
	n.mu.Unlock()
	n.eachActiveFault(noSingleGPU, now, func(f *FaultSpec) {
		switch f.Kind {
		case FaultDCGMDown:
			state.Down = true
		case FaultDCGMPaused:
			state.Paused = true
		case FaultDCGMNonRoot:
			state.NonRoot = true
		case FaultDCGMVersion:
			state.Mismatch = true
		case FaultDCGMNoModule:
			state.NoModule = true
		case FaultDCGMGroups:
			state.Taken = true
		}
	})

	sinceStart := now.Sub(n.start)
	for i := range n.scenario.Faults {
		if f := &n.scenario.Faults[i]; f.Kind == FaultDCGMRestart && f.At <= sinceStart {
			state.Restarts++
		}
	}

	state.Stopped = n.lastStop(sinceStart)

	return state
}

// lastStop returns the latest stop of the host engine that has ended. It takes stops that follow each
// other without a gap as one.
func (n *Node) lastStop(sinceStart time.Duration) Stop {
	stops := n.scenario.outages(FaultDCGMHang)

	count, end := stops.ended(sinceStart)
	if count == 0 {
		return Stop{}
	}

	return Stop{From: n.start.Add(stops.downSince(end - 1)), Until: n.start.Add(end)}
}
