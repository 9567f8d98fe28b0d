package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Event is an event of the driver.
type Event struct {
	Kind     gpu.EventKind
	GPU      int
	Instance gpu.Opt[gpu.InstanceID]
	Compute  gpu.Opt[gpu.ComputeID]
	XID      uint64
	Time     time.Time
}

// Subscription is one client's queue of events. It has no events from before Watch.
type Subscription struct {
	node   *Node
	closed chan struct{}

	// The node's mu guards the rest.
	watched map[watched]bool
	queue   []Event
	waiting bool          // a caller is in Next and has found the queue empty
	broken  bool          // the queue has failed, and Next has not returned the error yet
	mending bool          // a queue of its owner failed, and the owner has not seen yet that this one works
	asked   int           // calls of Next while mending
	arrived chan struct{} // closed and replaced by every event
}

type watched struct {
	gpu  int
	kind gpu.EventKind
}

// maxQueue bounds a queue that its owner does not read: when it is full, new events are dropped.
const maxQueue = 4096

// Subscribe returns a new queue. The caller closes it.
func (n *Node) Subscribe() *Subscription {
	s := &Subscription{
		node: n, closed: make(chan struct{}), arrived: make(chan struct{}),
		watched: make(map[watched]bool),
	}
	n.lockAndCatchUp()
	defer n.mu.Unlock()

	s.mending = n.failedQueues > 0
	n.watches = append(n.watches, s)

	return s
}

// Watch begins to deliver a GPU's events of a kind.
func (s *Subscription) Watch(index int, kind gpu.EventKind) error {
	if _, err := s.node.beginCall(index, gpu.ReadingEvents); err != nil {
		return err
	}

	defer s.node.mu.Unlock()

	s.watched[watched{index, kind}] = true

	return nil
}

// Next waits for the next event, at most for timeout in real time. It returns gpu.ErrTimeout,
// ErrClosed if the subscription or the node is closed, or, once, gpu.ErrDriver if the queue has
// failed.
func (s *Subscription) Next(timeout time.Duration) (Event, error) {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	s.countQuery()

	for {
		if s.takeFailure() {
			return Event{}, fmt.Errorf("queue of events: %w", gpu.ErrDriver)
		}

		event, arrived, wake, ok := s.next()
		if ok {
			return event, nil
		}

		if err := s.pause(deadline.C, arrived, wake); err != nil {
			return Event{}, err
		}
	}
}

// pause waits until there may be an event: until arrived is closed, or for the real time wake (0:
// without limit).
func (s *Subscription) pause(
	deadline <-chan time.Time,
	arrived <-chan struct{},
	wake time.Duration,
) error {
	var due <-chan time.Time

	if wake > 0 {
		timer := time.NewTimer(wake)
		defer timer.Stop()
		due = timer.C
	}

	select {
	case <-s.node.closed:
		return ErrClosed
	case <-s.closed:
		return ErrClosed
	case <-deadline:
		return gpu.ErrTimeout
	case <-arrived:
	case <-due:
	}

	return nil
}

// next takes an event off the queue. If there is none, it returns what to wait for: arrived is
// closed when a call of the node causes an event, and wake is the real time until the scenario does
// something by itself (0: it never does).
func (s *Subscription) next() (e Event, arrived <-chan struct{}, wake time.Duration, ok bool) {
	n := s.node
	n.lockAndCatchUp()
	defer n.mu.Unlock()

	s.waiting = len(s.queue) == 0
	if !s.waiting {
		e = s.queue[0]
		s.queue = s.queue[1:]

		return e, nil, 0, true
	}

	n.wakeWaiters()

	if at, planned := n.nextChange(); planned {
		wake, _ = n.clock.realTimeTo(at) // 0 for a stepped clock
	}

	return Event{}, s.arrived, wake, false
}

// Close ends the subscription and a call of Next. It must be called once.
func (s *Subscription) Close() {
	close(s.closed)
	s.node.mu.Lock()
	defer s.node.mu.Unlock()

	s.node.watches = slices.DeleteFunc(s.node.watches, func(o *Subscription) bool { return o == s })
	s.node.wakeWaiters()
}

// AwaitHandled waits until ctx ends, or until clients have handled everything: every client has taken
// all its events and waits in Next for another, and every reader of the kernel's log in Read. After
// a queue has failed, AwaitHandled also waits until its owner has a queue that works. It does not
// wait for clients that have closed their queue.
func (n *Node) AwaitHandled(ctx context.Context) {
	for {
		n.lockAndCatchUp()
		busy := n.failedQueues > 0 || n.kernel.isBusy() ||
			slices.ContainsFunc(n.watches, func(s *Subscription) bool {
				return len(s.watched) > 0 && (len(s.queue) > 0 || !s.waiting)
			})
		idle := n.idle
		n.mu.Unlock()

		if !busy {
			return
		}

		select {
		case <-idle:
		case <-n.closed:
			return
		case <-ctx.Done():
			return
		}
	}
}

// wakeWaiters makes calls of AwaitHandled look again. The caller holds n.mu.
func (n *Node) wakeWaiters() {
	close(n.idle)
	n.idle = make(chan struct{})
}

// emit adds an event to the GPU's history and, if the driver delivers it, to the queues that watch
// for it. The caller holds n.mu.
func (n *Node) emit(e Event) {
	n.gpus[e.GPU].history.add(e)

	if !n.delivers(e.GPU) {
		return
	}

	for _, s := range n.watches {
		if !s.watched[watched{e.GPU, e.Kind}] || len(s.queue) == maxQueue {
			continue
		}

		s.queue = append(s.queue, e)
		s.wake()
	}
}

// delivers reports whether the driver delivers events of a GPU. Every client may register for them.
// But while the GPU has instances, the driver silently sends none to clients that lack root's rights
// and the MIG monitor capability (open-gpu-kernel-modules 595.45.04,
// src/nvidia/src/kernel/gpu/gpu_rmapi.c, _gpuFilterSubDeviceEventInfo). The caller holds n.mu.
func (n *Node) delivers(index int) bool {
	return len(n.gpus[index].instances) == 0 || n.privileged(index, n.stateTime)
}

// ReportsHealth reports whether the driver has the events EventUnavailable and EventRecoveryAction:
// from 565 on.
func (n *Node) ReportsHealth() bool { return n.scenario.Node.DriverBranch() >= 565 }

// wake makes calls of Next look again. The caller holds n.mu.
func (s *Subscription) wake() {
	s.waiting = false
	close(s.arrived)
	s.arrived = make(chan struct{})
}
