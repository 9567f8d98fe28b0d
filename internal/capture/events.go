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
	failed bool // a failure was delivered, and no set was waited on after it
	sets   map[*eventSet]bool
}

// dueEvent returns the event that a replay has to deliver now, or nil. The caller holds the timeline's mu.
func (l *library) dueEvent() *eventRecord {
	if events := l.rec.Recorded.Events; l.events.next < len(events) &&
		events[l.events.next].Before <= l.time.poll {
		return &events[l.events.next]
	}

	return nil
}

// eventSet is a queue of the driver, or of a replay.
type eventSet struct {
	lib    *library
	driver nvmlsource.EventSet // nil in a replay
	// Both are of a replay, and guarded by the timeline's mu.
	waiting bool // a call of Wait has found no event and blocks
	freed   bool
}

func (l *library) EventSetCreate() (nvmlsource.EventSet, nvml.Return) {
	s := &eventSet{lib: l}

	ret := queryCode(l.entity, "nvmlEventSetCreate", func() (ret nvml.Return) {
		s.driver, ret = l.driver.EventSetCreate()
		return ret
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}

	l.time.mu.Lock()
	defer l.time.mu.Unlock()

	l.events.sets[s] = true

	return s, ret
}

func (d *device) RegisterEvents(types uint64, set nvmlsource.EventSet) nvml.Return {
	s, ok := set.(*eventSet)
	if !ok || s.lib != d.lib {
		return nvml.ERROR_INVALID_ARGUMENT
	}

	return queryCode(
		d.entity,
		callOf("nvmlDeviceRegisterEvents", eventNames.name(types)),
		func() nvml.Return {
			return d.driver.RegisterEvents(types, s.driver)
		},
	)
}

// Wait records an event or a failure, but no timeout. The first poll that can have seen it is the next one.
func (s *eventSet) Wait(timeoutMillis uint32) (nvmlsource.Event, nvml.Return) {
	if s.lib.time.replays {
		return s.replay(time.Duration(timeoutMillis) * time.Millisecond)
	}

	e, ret := s.driver.Wait(timeoutMillis)
	if ret == nvml.ERROR_TIMEOUT {
		return e, ret
	}

	r := eventRecord{Error: code(ret)}
	if ret == nvml.SUCCESS {
		r.Event = &event{Type: eventType(e.Type), Data: e.Data, GPUInstanceID: e.GPUInstanceID,
			ComputeInstanceID: e.ComputeInstanceID}
		known := s.lib.find(func(d *device) bool { return d.driver == e.Device })
		e.Device = nil

		if known != nil {
			e.Device = known
			r.Event.GPU = known.name
		}
	}

	t := s.lib.time
	t.mu.Lock()
	defer t.mu.Unlock()

	if r.Before = t.poll; !t.between {
		r.Before++
	}

	s.lib.rec.Recorded.Events = append(s.lib.rec.Recorded.Events, r)

	return e, ret
}

// replay delivers the events before the current poll. The first wait after a failure of the queue returns at once,
// which shows its caller that the queue works again.
func (s *eventSet) replay(timeout time.Duration) (nvmlsource.Event, nvml.Return) {
	t := s.lib.time
	q := s.lib.events
	var found *eventRecord
	arrived := func() bool {
		if s.freed || q.failed {
			q.failed = q.failed && s.freed
			return true
		}

		if found = s.lib.dueEvent(); found == nil {
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
	if d := s.lib.find(func(d *device) bool { return d.name == found.Event.GPU }); d != nil {
		e.Device = d
	}

	return e, nvml.SUCCESS
}

// Free ends the calls that wait.
func (s *eventSet) Free() nvml.Return {
	t := s.lib.time
	t.mu.Lock()
	s.freed = true
	delete(s.lib.events.sets, s)
	t.wake()
	t.mu.Unlock()

	if s.driver == nil {
		return nvml.SUCCESS
	}

	return s.driver.Free()
}

// settled reports whether everything due has been delivered and every set is waited on again. The caller holds the
// timeline's mu.
func (l *library) settled() bool {
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
