package sim

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Faults that begin in the middle of what a client does: not at a time but with a call.

// triggerFaults begins the faults that have waited for this call. The caller holds the lock.
func (n *Node) triggerFaults(index int, reading gpu.Reading, now time.Time) {
	passed := now.Sub(n.start)
	for i := range n.scenario.Faults {
		f := &n.scenario.Faults[i]
		if f.During == "" || f.During != reading || index == driverAsWhole || n.triggered[f] ||
			!f.active(index, passed) {
			continue
		}

		op, err := n.begin(n.gpus[index])
		if err != nil {
			return // it waits for the next call
		}

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

// fakesDestruction reports whether a GPU's driver says that it has destroyed what it leaves there.
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

		if !s.mending { // else its owner is waited for already
			n.failed++
		}

		s.broken = true
		s.mending = true
		s.asked = 0
		s.queue = nil
		s.wake()
	}
}

// query notes that the subscription's owner wants an event. An owner that asks for a second time has got an answer to
// the first, and knows that the queue works.
func (s *Subscription) query() {
	n := s.node
	n.mu.Lock()
	defer n.mu.Unlock()

	if !s.mending {
		return
	}

	if s.asked++; s.asked == 2 {
		s.mending = false
		n.failed = max(n.failed-1, 0)
		n.wakeSettle()
	}
}

// failed reports, once, that the queue has failed.
func (s *Subscription) failed() bool {
	s.node.lock()
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
		now := n.lock()
		n.mu.Unlock()
		var stopped bool
		var until time.Time
		n.eachActiveFault(driverAsWhole, now, func(f *FaultSpec) {
			if f.Kind != FaultDCGMHang {
				return
			}

			if stopped = true; f.For > 0 {
				until = n.start.Add(f.At + f.For)
			}
		})

		if !stopped || !n.clock.waitUntil(until, n.closed) {
			return
		}
	}
}

// HostEngineState is how the node's DCGM host engine is.
type HostEngineState struct {
	Down     bool
	Restarts int // so far
	Paused   bool
	NonRoot  bool
	Mismatch bool // of its version and that of its clients
	NoModule bool // only GPUs with GPM can be profiled
	Taken    bool // all groups are another client's
	// Stopped is the last stop of the engine that has ended; zero: there was none.
	Stopped Stop
}

// Stop is a time in which the engine did nothing.
type Stop struct{ From, Until time.Time }

// HostEngine returns the condition of the node's DCGM host engine.
func (n *Node) HostEngine() HostEngineState {
	state := HostEngineState{NonRoot: !n.scenario.Node.Privileged}
	now := n.lock() // another process may have moved a shared clock
	n.mu.Unlock()
	n.eachActiveFault(driverAsWhole, now, func(f *FaultSpec) {
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

	passed := now.Sub(n.start)
	for i := range n.scenario.Faults {
		if f := &n.scenario.Faults[i]; f.Kind == FaultDCGMRestart && f.At <= passed {
			state.Restarts++
		}
	}

	state.Stopped = n.lastStop(passed)

	return state
}

// lastStop returns the stop of the host engine that ended last, with those that went before it without a gap.
func (n *Node) lastStop(passed time.Duration) Stop {
	stops := n.scenario.outages(FaultDCGMHang)

	count, end := stops.ended(passed)
	if count == 0 {
		return Stop{}
	}

	return Stop{From: n.start.Add(stops.downSince(end - 1)), Until: n.start.Add(end)}
}
