package control

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// task is what is to be done of an operation.
type task int

const (
	doSteps  task = iota
	doUndo        // roll back, or try it again
	doSettle      // all steps are done and verified
	doMode
)

// operation is an operation and what executing it needs. Everything that changes is guarded by the engine's mu; begun and
// what is below it by the one that executes it.
type operation struct {
	doc    api.Operation
	events []api.Event   // the latest
	seq    int           // of the last event
	news   chan struct{} // closed at the next event
	live   bool          // more events will come

	begun begun
	task  task
	// made and gone are the places where a creation or a destruction was begun, whatever became of it.
	made, gone map[place]bool
	phase      api.OperationState // as the journal has it
	verified   bool
	cause      *api.Problem  // why it is rolled back
	backoff    time.Duration // until again, when it may be taken up by itself after having been stuck
	again      time.Time
	retraced   bool // a step of a roll-back was begun, in whichever process

	entries             [][]byte // in the journal, without those of lastPhase and lastUndo
	lastPhase, lastUndo []byte
}

func newOperation(b begun) *operation {
	return &operation{doc: b.Operation, news: make(chan struct{}), begun: b, made: map[place]bool{}, gone: map[place]bool{}, phase: api.Pending}
}

// steps that were not tried yet.
func pendingSteps(steps []mig.Step) []api.OperationStep {
	list := make([]api.OperationStep, 0, len(steps))
	for _, s := range steps {
		list = append(list, api.OperationStep{Step: s, State: "pending"})
	}
	return list
}

// document copies an operation for whoever asked.
func (op *operation) document() *api.Operation {
	d := op.doc
	d.Steps = slices.Clone(d.Steps)
	d.Hooks = slices.Clone(d.Hooks)
	d.Warnings = slices.Clone(d.Warnings)
	d.Renamed = maps.Clone(d.Renamed)
	if d.Mode != nil {
		mode := *d.Mode
		d.Mode = &mode
	}
	return &d
}

// Operation finds an operation that is kept.
func (e *Engine) Operation(id string) (*api.Operation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	op, p := e.find(id)
	if p != nil {
		return nil, p
	}
	return op.document(), nil
}

func (e *Engine) find(id string) (*operation, *api.Problem) {
	for _, op := range e.operations {
		if op.doc.ID == id {
			return op, nil
		}
	}
	return nil, problemf(api.NotFound, "no operation %q is known", id)
}

// Operations lists those that are kept, the latest first.
func (e *Engine) Operations() *api.Operations {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := &api.Operations{APIVersion: api.Version, State: e.state(), Reason: e.unusable, Operations: []api.Operation{}}
	for _, op := range slices.Backward(e.operations) {
		list.Operations = append(list.Operations, *op.document())
	}
	return list
}

// Events delivers the news of an operation with a Seq above after: first those that there were, then those that come. The
// channel is closed once no more will come: at the operation's end, when it waits for an operator, or with ctx. A reader
// that is slow delays nobody. Numbers begin anew with the process: who asks for what comes after an event that there has not
// been gets all.
func (e *Engine) Events(ctx context.Context, id string, after int) (<-chan api.Event, error) {
	e.mu.Lock()
	op, p := e.find(id)
	e.mu.Unlock()
	if p != nil {
		return nil, p
	}
	out := make(chan api.Event)
	go func() {
		defer close(out)
		for next := after; ; {
			e.mu.Lock()
			list, news, live := op.since(next), op.news, op.live
			e.mu.Unlock()
			for _, ev := range list {
				select {
				case out <- ev:
					next = ev.Seq
				case <-ctx.Done():
					return
				}
			}
			if len(list) > 0 {
				continue
			}
			if !live {
				return
			}
			select {
			case <-news:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// since are the events with a Seq above after that are kept. It is called with the engine's mu held.
func (op *operation) since(after int) []api.Event {
	if after > op.seq {
		after = 0
	}
	first := op.seq - len(op.events)
	return op.events[max(after-first, 0):]
}

// maxEvents is how many events of an operation are kept: more than one without trouble has.
const maxEvents = 4096

// tell adds an event. It is called with mu held.
func (e *Engine) tell(op *operation, kind api.EventKind, step gpu.Opt[int], text string) {
	if len(op.events) >= maxEvents {
		op.events = slices.Clone(op.events[maxEvents/4:])
	}
	op.seq++
	op.events = append(op.events, api.Event{Seq: op.seq, Time: e.o.Now(), Kind: kind, State: op.doc.State, Index: step, Text: text})
	close(op.news)
	op.news = make(chan struct{})
}

// update changes an operation's document and tells of it.
func (e *Engine) update(op *operation, kind api.EventKind, text string, change func(*api.Operation)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if change != nil {
		change(&op.doc)
	}
	e.tell(op, kind, gpu.None[int](), text)
}

func (e *Engine) updateStep(op *operation, n int, state api.StepState, text string, change func(*api.OperationStep)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &op.doc.Steps[n]
	s.State = state
	if change != nil {
		change(s)
	}
	e.tell(op, "step", gpu.Some(n), fmt.Sprintf("%s: %s", stepText(s.Step), text))
}

func (e *Engine) warn(op *operation, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	e.update(op, "note", text, func(d *api.Operation) {
		if !slices.Contains(d.Warnings, text) {
			d.Warnings = append(d.Warnings, text)
		}
	})
}
