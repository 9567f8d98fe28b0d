package capture

import (
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsrc"
)

// eventQueue holds the events of a recording, or those that a replay still has to deliver. The tape's mu guards it.
type eventQueue struct {
	records []eventRecord
	next    int // of a replay: the first that is not delivered
	sets    map[*eventSet]bool
	failed  bool // of a replay: a failure was delivered and no set has been waited on since
}

// due tells whether a replay has something to deliver now.
func (q *eventQueue) due(moment int) bool {
	return q.next < len(q.records) && q.records[q.next].before <= moment
}

// eventSet is a queue of the driver's, or of a replay.
type eventSet struct {
	lib  *library
	real nvmlsrc.EventSet // nil in a replay
	// Both of a replay, guarded by the tape's mu.
	waiting bool // somebody is in Wait and found nothing
	freed   bool
	once    sync.Once
}

func (l *library) EventSetCreate() (nvmlsrc.EventSet, nvml.Return) {
	s := &eventSet{lib: l}
	_, ret := ask(l.node, "nvmlEventSetCreate", func() (none, nvml.Return) {
		var ret nvml.Return
		s.real, ret = l.real.EventSetCreate()
		return none{}, ret
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	l.tape.mu.Lock()
	defer l.tape.mu.Unlock()
	l.events.sets[s] = true
	return s, ret
}

func (d *device) RegisterEvents(types uint64, set nvmlsrc.EventSet) nvml.Return {
	s, ok := set.(*eventSet)
	if !ok || s.lib != d.lib {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	_, ret := of(d, "nvmlDeviceRegisterEvents("+eventArg().name(types)+")", func(h nvmlsrc.Device) (none, nvml.Return) {
		return none{}, h.RegisterEvents(types, s.real)
	})
	return ret
}

// Wait records what comes, a timeout excepted: the next poll is the first that can know of it.
func (s *eventSet) Wait(timeoutMillis uint32) (nvmlsrc.Event, nvml.Return) {
	if s.lib.tape.replays {
		return s.replay(time.Duration(timeoutMillis) * time.Millisecond)
	}
	e, ret := s.real.Wait(timeoutMillis)
	if ret == nvml.ERROR_TIMEOUT {
		return e, ret
	}
	r := eventRecord{ret: ret}
	if ret == nvml.SUCCESS {
		r.event = event{e.Type, e.Data, e.GPUInstanceID, e.ComputeInstanceID}
		known := s.lib.find(func(d *device) bool { return d.real == e.Device })
		e.Device = nil
		if known != nil {
			e.Device, r.gpu = known, string(known.name)
		}
	}
	t := s.lib.tape
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.before = t.moment; !t.between {
		r.before++
	}
	s.lib.events.records = append(s.lib.events.records, r)
	return e, ret
}

// replay delivers what came before the poll of the present moment. The first wait after a failure of the queue ends at
// once: whoever waits knows then that the queue works again.
func (s *eventSet) replay(timeout time.Duration) (nvmlsrc.Event, nvml.Return) {
	t, q := s.lib.tape, s.lib.events
	var r eventRecord
	works := false
	take := func() bool {
		switch {
		case s.freed:
			return true
		case q.failed:
			q.failed, works = false, true
			return true
		case q.due(t.moment):
			r = q.records[q.next]
			q.next++
			q.failed = r.ret != nvml.SUCCESS
			s.waiting = false
			t.wake()
			return true
		}
		if !s.waiting {
			s.waiting = true
			t.wake()
		}
		return false
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	came := t.waitUntil(timer.C, take)
	t.mu.Lock()
	freed := s.freed || t.closed
	t.mu.Unlock()
	switch {
	case freed:
		return nvmlsrc.Event{}, nvml.ERROR_UNINITIALIZED
	case !came || works:
		return nvmlsrc.Event{}, nvml.ERROR_TIMEOUT
	case r.ret != nvml.SUCCESS:
		return nvmlsrc.Event{}, r.ret
	}
	return s.lib.eventOf(r), nvml.SUCCESS
}

func (l *library) eventOf(r eventRecord) nvmlsrc.Event {
	e := nvmlsrc.Event{
		Type: r.event.Type, Data: r.event.Data, GPUInstanceID: r.event.GPUInstanceID, ComputeInstanceID: r.event.ComputeInstanceID,
	}
	if d := l.find(func(d *device) bool { return string(d.name) == r.gpu }); d != nil {
		e.Device = d
	}
	return e
}

// Free ends whoever waits.
func (s *eventSet) Free() nvml.Return {
	t := s.lib.tape
	s.once.Do(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		s.freed = true
		delete(s.lib.events.sets, s)
		t.wake()
	})
	if s.real == nil {
		return nvml.SUCCESS
	}
	return s.real.Free()
}

// settled tells whether everything due has been taken and whoever takes it is back for more. The caller holds the
// tape's mu.
func (q *eventQueue) settled(moment int) bool {
	if q.failed {
		return false
	}
	for s := range q.sets {
		if q.due(moment) || !s.waiting {
			return false
		}
	}
	return true
}
