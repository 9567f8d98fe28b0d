package capture

import (
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// never is the moment of an answer that did not come while the node was captured.
const never = -1

// answer is what the driver said to one question.
type answer struct {
	ret   nvml.Return
	value any // of the question's type where ret is SUCCESS
	// until is the moment in which the driver answered, never for one that hung to the end. It is later than the moment of
	// the question only where the call outlasted its poll.
	until int
}

// entry is an answer with its place in time: the nth of its question (from 1) in a moment.
type entry struct {
	moment, nth int
	answer
}

// track is everything said to one question, in the order of asking.
type track struct {
	entries       []entry
	moment, asked int // how often it has been asked in the last moment in which it was
}

// next counts one more asking and returns which it is of its moment.
func (t *track) next(moment int) int {
	if t.moment != moment {
		t.moment, t.asked = moment, 0
	}
	t.asked++
	return t.asked
}

// at is the last answer given up to the nth asking in a moment; before the first it is the first.
func (t *track) at(moment, nth int) answer {
	found := t.entries[0].answer
	for _, e := range t.entries {
		if e.moment > moment || e.moment == moment && e.nth > nth {
			break
		}
		found = e.answer
	}
	return found
}

// tape is the time of a recording or a replay: moments, one for each poll. It guards all that is recorded.
type tape struct {
	mu      sync.Mutex
	replays bool
	moment  int
	between bool // of a recording: the moment's poll has not begun
	closed  bool
	changed chan struct{} // closed and replaced when any of this changes, and by the queue of events
}

func newTape(replays bool) *tape { return &tape{replays: replays, changed: make(chan struct{})} }

// wake makes whoever waits look again. The caller holds mu.
func (t *tape) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// waitUntil blocks until a condition holds, which is looked at with mu held; it is false where the time is over or the
// tape was closed before. A nil timeout is none.
func (t *tape) waitUntil(timeout <-chan time.Time, holds func() bool) bool {
	for {
		t.mu.Lock()
		ok := holds() // it may wake others, and with them itself: what to wait for is looked at after it
		closed, changed := t.closed, t.changed
		t.mu.Unlock()
		if ok || closed {
			return ok
		}
		select {
		case <-changed:
		case <-timeout:
			return false
		}
	}
}

// entity is something that questions are put to: the node, a GPU, a MIG device, a GPU instance.
type entity struct {
	tape   *tape
	tracks map[string]*track // by question
}

func newEntity(t *tape, known answers) *entity {
	e := &entity{tape: t, tracks: map[string]*track{}}
	for question, entries := range known {
		e.tracks[question] = &track{entries: entries}
	}
	return e
}

// answers are the entries of every question put to one entity.
type answers map[string][]entry

// said copies what has been said up to now. The caller holds the tape's mu.
func (e *entity) said() answers {
	list := make(answers, len(e.tracks))
	for question, t := range e.tracks {
		list[question] = append([]entry(nil), t.entries...)
	}
	return list
}

// ask puts a question to the driver and writes down what it says, or answers it as recorded: then f is not called.
func ask[T any](e *entity, question string, f func() (T, nvml.Return)) (T, nvml.Return) {
	if e.tape.replays {
		a := e.replay(question)
		value, _ := a.value.(T) // the parser has checked its type; an error has none
		return value, a.ret
	}
	track, at := e.begin(question)
	value, ret := f()
	e.tape.mu.Lock()
	defer e.tape.mu.Unlock()
	a := &track.entries[at].answer
	a.ret, a.until = ret, e.tape.moment
	if ret == nvml.SUCCESS {
		a.value = value
	}
	return value, ret
}

// begin notes a question that has no answer yet.
func (e *entity) begin(question string) (t *track, at int) {
	e.tape.mu.Lock()
	defer e.tape.mu.Unlock()
	t = e.tracks[question]
	if t == nil {
		t = &track{}
		e.tracks[question] = t
	}
	moment := e.tape.moment
	t.entries = append(t.entries, entry{moment, t.next(moment), answer{until: never}})
	return t, len(t.entries) - 1
}

// replay answers as the driver did, hanging for as long as it did. What it was never asked is answered as by a library
// without the function.
func (e *entity) replay(question string) answer {
	e.tape.mu.Lock()
	t := e.tracks[question]
	if t == nil {
		e.tape.mu.Unlock()
		return answer{ret: nvml.ERROR_FUNCTION_NOT_FOUND}
	}
	moment := e.tape.moment
	a := t.at(moment, t.next(moment))
	e.tape.mu.Unlock()
	if !e.tape.waitUntil(nil, func() bool { return a.until != never && e.tape.moment >= a.until }) {
		return answer{ret: nvml.ERROR_UNINITIALIZED}
	}
	return a
}
