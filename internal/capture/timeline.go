package capture

import (
	"context"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// timeline is the time of a recorder or a replay, in polls. Its mu guards the whole recording.
type timeline struct {
	mu      sync.Mutex
	replays bool
	poll    pollNumber
	between bool // a recorder has counted a poll that has not begun yet
	closed  bool
	changed chan struct{} // closed and replaced when any of this changes, and by the queue of events
}

// wake makes all calls of waitUntil check their conditions again. The caller holds mu.
func (t *timeline) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// waitUntil blocks until holds returns true; it calls holds with mu held. It returns false if ctx
// ends or the timeline is closed first.
func (t *timeline) waitUntil(ctx context.Context, holds func() bool) bool {
	for {
		t.mu.Lock()
		ok := holds() // before we read changed: holds may call wake, which replaces it
		closed := t.closed
		changed := t.changed
		t.mu.Unlock()

		if ok || closed {
			return ok
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// entity is what calls are about: the node, a GPU, a MIG device or a GPU instance.
type entity struct {
	time    *timeline
	answers answers    // guarded by the timeline's mu
	calls   []callType // of its kind
}

// entityIn returns the entity at a key, a new one if there is none yet.
func entityIn[K comparable, A ~map[string]*series](
	t *timeline,
	all map[K]A,
	key K,
	calls []callType,
) *entity {
	t.mu.Lock()
	defer t.mu.Unlock()

	if all[key] == nil {
		all[key] = A{}
	}

	return &entity{t, answers(all[key]), calls}
}

// recordOrReplayPart records a part of an answer, such as one of the metrics that a call has filled
// in. In a replay it returns the recorded part instead of value and ret.
func recordOrReplayPart[T any](e *entity, call string, value T, ret nvml.Return) (T, nvml.Return) {
	if e.time.replays {
		a := e.replay(call)
		value, _ = a.value.(T) // the reader has checked its type; an error has none

		return value, a.ret
	}

	e.begin(call).end(value, ret)

	return value, ret
}

// pendingCall is a recorded call that has no answer yet.
type pendingCall struct {
	*entity
	series *series
	index  int // in the entries of series
}

// begin records a call.
func (e *entity) begin(call string) pendingCall {
	e.time.mu.Lock()
	defer e.time.mu.Unlock()

	s := e.answers[call]
	if s == nil {
		s = &series{}
		e.answers[call] = s
	}

	poll := e.time.poll
	s.entries = append(s.entries, entry{poll, s.countCall(poll), answer{until: never}})

	return pendingCall{e, s, len(s.entries) - 1}
}

// end records the call's answer.
func (p pendingCall) end(value any, ret nvml.Return) {
	p.time.mu.Lock()
	defer p.time.mu.Unlock()

	a := &p.series.entries[p.index].answer
	a.ret = ret
	a.until = p.time.poll

	if ret == nvml.SUCCESS {
		a.value = value
	}
}

// replay returns the recorded answer, and blocks for as long as the call hung. If the call was not
// recorded, it answers like a library without the function.
func (e *entity) replay(call string) answer {
	e.time.mu.Lock()

	s := e.answers[call]
	if s == nil {
		e.time.mu.Unlock()
		return answer{ret: nvml.ERROR_FUNCTION_NOT_FOUND}
	}

	poll := e.time.poll
	a := s.answerTo(poll, s.countCall(poll))
	e.time.mu.Unlock()

	hasReturned := func() bool { return a.until != never && e.time.poll >= a.until }
	if !e.time.waitUntil(context.Background(), hasReturned) {
		return answer{ret: nvml.ERROR_UNINITIALIZED}
	}

	return a
}
