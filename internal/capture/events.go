package capture

import (
	"context"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// eventQueue is the state of delivering the events of a replay. The timeline's mu guards it.
type eventQueue struct {
	next   int  // index of the first event that was not delivered
	failed bool // the last delivery was a failure, and no set has been waited on since
	sets   map[*eventSet]bool
}

// dueEvent returns the event that a replay has to deliver now, or nil. The caller holds the
// timeline's mu.
func (l *library) dueEvent() *eventRecord {
	if events := l.rec.Recorded.Events; l.events.next < len(events) &&
		events[l.events.next].Before <= l.time.poll {
		return &events[l.events.next]
	}

	return nil
}

// eventSet is an event set of the driver, or of a replay. The timeline's mu guards it.
type eventSet struct {
	// Only a replay uses these.
	waiting bool // a call of Wait has found no event and blocks
	freed   bool
}

func (l *library) newEventSet() *eventSet {
	l.time.mu.Lock()
	defer l.time.mu.Unlock()

	s := &eventSet{}
	l.events.sets[s] = true

	return s
}

// wait records the event or the failure that a wait returns, but no timeout, or replays it.
func (l *library) wait(c nvmlsource.Call) nvmlsource.Verdict {
	if l.time.replays {
		timeout := time.Duration(c.Args[0]) * time.Millisecond
		e, ret := l.replayEvent(c.Object.(*eventSet), timeout)

		return nvmlsource.Verdict{Answered: true, Answer: e, Return: ret}
	}

	return nvmlsource.Verdict{After: func(answer any, ret nvml.Return) {
		if ret != nvml.ERROR_TIMEOUT {
			l.recordEvent(answer.(nvmlsource.Event), ret)
		}
	}}
}

// recordEvent records an event or a failure, with the poll that can see it first: the next one.
func (l *library) recordEvent(e nvmlsource.Event, ret nvml.Return) {
	r := eventRecord{Error: code(ret)}
	if ret == nvml.SUCCESS {
		r.Event = &event{Type: eventType(e.Type), Data: e.Data, GPUInstanceID: e.GPUInstanceID,
			ComputeInstanceID: e.ComputeInstanceID}
		if known := l.find(func(d *physicalGPU) bool { return d.Device == e.Device }); known != nil {
			r.Event.GPU = known.name
		}
	}

	t := l.time
	t.mu.Lock()
	defer t.mu.Unlock()

	r.Before = t.poll
	if !t.between { // that poll is under way
		r.Before++
	}

	l.rec.Recorded.Events = append(l.rec.Recorded.Events, r)
}

// replayEvent delivers the events before the current poll. The first wait after a failure of the
// queue returns at once, which shows its caller that the queue works again.
func (l *library) replayEvent(s *eventSet, timeout time.Duration) (nvmlsource.Event, nvml.Return) {
	t := l.time
	q := l.events
	var found *eventRecord
	arrived := func() bool { // with the timeline's mu held
		if s.freed {
			return true
		}

		if q.failed {
			q.failed = false
			return true
		}

		if found = l.dueEvent(); found == nil {
			if !s.waiting {
				s.waiting = true
				t.wake()
			}

			return false
		}

		q.next++
		q.failed = found.Error != 0
		s.waiting = false
		t.wake()

		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	t.waitUntil(ctx, arrived)
	t.mu.Lock()
	ended := s.freed || t.closed
	t.mu.Unlock()

	switch {
	case ended:
		return nvmlsource.Event{}, nvml.ERROR_UNINITIALIZED
	case found == nil:
		return nvmlsource.Event{}, nvml.ERROR_TIMEOUT
	case found.Event == nil:
		return nvmlsource.Event{}, nvml.Return(found.Error)
	}

	e := nvmlsource.Event{
		Type: uint64(found.Event.Type), Data: found.Event.Data,
		GPUInstanceID: found.Event.GPUInstanceID, ComputeInstanceID: found.Event.ComputeInstanceID,
	}
	if d := l.find(func(d *physicalGPU) bool { return d.name == found.Event.GPU }); d != nil {
		e.Device = d
	}

	return e, nvml.SUCCESS
}

// free frees a set, and ends the calls that wait on it.
func (l *library) free(c nvmlsource.Call) nvmlsource.Verdict {
	s := c.Object.(*eventSet)

	l.time.mu.Lock()
	defer l.time.mu.Unlock()

	s.freed = true
	delete(l.events.sets, s)
	l.time.wake()

	return nvmlsource.Verdict{Answered: l.time.replays}
}

// isHandled reports whether everything due has been delivered and every set is waited on again. The
// caller holds the timeline's mu.
func (l *library) isHandled() bool {
	if l.events.failed {
		return false
	}

	for s := range l.events.sets {
		if !s.waiting || l.dueEvent() != nil {
			return false
		}
	}

	return true
}
