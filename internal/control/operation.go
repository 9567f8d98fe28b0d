package control

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

// task says what executeOperation does with an operation.
type task int

const (
	doSteps    task = iota
	doRollback      // roll back, maybe not for the first time
	doResume        // finish an operation of the last process
	doMode
)

// operation is an operation that this process knows. Its fields never change, except entry, which
// the lock of state guards.
type operation struct {
	id    string
	verb  api.Verb
	gpus  []gpu.UUID
	ended chan struct{} // closed when the operator ends the wait for the kubelet
	state *state
	entry entry
}

// entry is the part of an operation that changes: its record, its events, and the state of its
// execution that no restart needs.
type entry struct {
	record
	now    func() time.Time
	events []api.Event   // the latest, see maxEvents
	seq    int           // the Seq of the last event
	news   chan struct{} // closed at the next event
	live   bool          // more events will come

	// inSlots is set while the store's slots (see package store) have the latest record of the
	// operation: the history leaves it out.
	inSlots bool
	task    task
	// layoutOffered is set once the kubelet has offered the new layout, or the node has none: the
	// cordon is not needed any more.
	layoutOffered bool
	watched       bool // the operation is unsettled, and a goroutine watches whether it can still succeed
	// retryable is set if the engine itself retries an operation that could not be finished, see
	// retryDegraded. retry says when.
	retryable bool
	retry     retry.Backoff
	// resumes is set while an operation of the last process waits for the driver, see
	// deferToDriver. absence says why we must not finish such an operation, see longAbsence.
	resumes bool
	absence string
	counted bool // the observer has counted it as degraded or stuck
}

func (e *Engine) newOperation(r record) *operation {
	op := &operation{
		id:    r.Operation.ID,
		verb:  r.Operation.Verb,
		ended: make(chan struct{}),
		state: e.state,
		entry: entry{record: r, now: e.o.Now, news: make(chan struct{})},
	}
	for n := range r.Operation.GPUs {
		op.gpus = append(op.gpus, r.Operation.GPUs[n].GPU)
	}

	return op
}

// pendingSteps returns steps as an operation shows them before it tries them.
func pendingSteps(steps []mig.Step) []api.OperationStep {
	list := make([]api.OperationStep, 0, len(steps))
	for _, s := range steps {
		list = append(list, api.OperationStep{Step: s, State: api.StepPending})
	}

	return list
}

// Operation returns an operation that we remember, or a problem.
func (e *Engine) Operation(id string) (*api.Operation, error) {
	op, p := e.findOperation(id)
	if p != nil {
		return nil, p
	}

	o := op.copy()

	return o.document(), nil
}

func (e *Engine) findOperation(id string) (*operation, *api.Problem) {
	op := read(e.state, func(b *book) *operation { return b.find(id) })
	if op == nil {
		return nil, problemf(api.NotFound, "no operation %q is known", id)
	}

	return op, nil
}

// Operations lists the operations that we remember, the latest first.
func (e *Engine) Operations() *api.Operations {
	return read(e.state, func(b *book) *api.Operations {
		list := &api.Operations{
			APIVersion: api.Version,
			State:      b.status(),
			Recovering: b.recovering,
			Reason:     b.readOnlyReason,
			Blocked:    b.blocked(),
			Unrestored: b.listUnrestored(),
			Operations: []api.Operation{},
		}
		for _, op := range slices.Backward(b.operations) {
			r := op.in(b).record.clone()
			list.Operations = append(list.Operations, *r.document())
		}

		return list
	})
}

// Events delivers the events of an operation with a Seq above after: first the past ones, then new
// ones as they come. It closes the channel at the operation's end, when the operation waits for an
// operator, or when ctx ends. A slow reader delays nothing. Each process counts Seq from 1 again: if
// we have not reached after, the reader has it from another process, and gets all events.
func (e *Engine) Events(ctx context.Context, id string, after int) (<-chan api.Event, error) {
	op, p := e.findOperation(id)
	if p != nil {
		return nil, p
	}

	out := make(chan api.Event)
	go func() {
		defer close(out)

		for next := after; ; {
			var list []api.Event
			var news chan struct{}
			var live bool

			op.change(func(o *entry) {
				list = o.eventsAfter(next)
				news = o.news
				live = o.live
			})

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

// eventsAfter returns the remembered events with a Seq above after.
func (o *entry) eventsAfter(after int) []api.Event {
	if after > o.seq {
		after = 0
	}

	first := o.seq - len(o.events)

	return o.events[max(after-first, 0):]
}

// maxEvents is how many events of an operation we remember: more than an operation without trouble
// has.
const maxEvents = 4096

func (o *entry) addEvent(ev api.Event) {
	if len(o.events) >= maxEvents { // a quarter at a time, so that we copy seldom
		o.events = slices.Clone(o.events[maxEvents/4:])
	}

	o.seq++
	ev.Seq = o.seq
	ev.Time = o.now()
	ev.State = o.Operation.State
	o.events = append(o.events, ev)
	o.wakeReaders()
}

// endEvents closes the streams of the operation's events.
func (o *entry) endEvents() {
	o.live = false
	o.wakeReaders()
}

func (o *entry) wakeReaders() {
	close(o.news)
	o.news = make(chan struct{})
}

// setState changes the state of an operation and adds an event.
func (op *operation) setState(state api.OperationState, text string) {
	op.change(func(o *entry) {
		o.Operation.State = state
		o.addEvent(api.Event{Kind: api.EventState, Text: text})
	})
}

// status returns the state of an operation.
func (op *operation) status() (now api.OperationState) {
	op.change(func(o *entry) { now = o.Operation.State })
	return now
}

// setGPU changes the state of one GPU of an operation. err says why the GPU is not as planned, or
// is nil. The operation shows current as the GPU's instances; nil means that they are unknown.
func (op *operation) setGPU(id gpu.UUID, state api.OperationState, err error, current []mig.Instance) {
	op.change(func(o *entry) {
		g := &o.Operation.GPUs[slices.Index(op.gpus, id)]
		g.State = state
		g.Error = ""
		g.Current = describeLayout(current)

		if err != nil {
			g.Error = failureText(err)
		}
	})
}

// gpuState returns the state of one GPU of an operation.
func (op *operation) gpuState(id gpu.UUID) (state api.OperationState) {
	op.change(func(o *entry) { state = o.gpuState(id) })
	return state
}

// gpuChange returns what the operation does to a GPU.
func (op *operation) gpuChange(id gpu.UUID) (c gpuChange) {
	op.change(func(o *entry) { c = *o.gpuChange(id) })
	return c
}

// setChange replaces what the operation does to a GPU. Call it only in the goroutine that executes
// the operation or has the reservation for it.
func (op *operation) setChange(c gpuChange) {
	op.change(func(o *entry) { *o.gpuChange(c.GPU) = c })
}

// setPending sets the step that is under way on a GPU, or nil.
func (op *operation) setPending(id gpu.UUID, step *mig.Step) {
	op.change(func(o *entry) { o.gpuChange(id).Pending = step })
}

// stepRef names a step of an operation, or of its rollback.
type stepRef struct {
	index    int
	rollback bool
}

// setStep changes the state of a step and adds an event. err is why it failed, or nil.
func (op *operation) setStep(at stepRef, state api.StepState, done *mig.Done, err error) {
	op.change(func(o *entry) {
		list := o.Operation.Steps
		if at.rollback {
			list = o.Operation.Rollback
		}

		s := &list[at.index]

		s.State = state
		s.Done = done
		s.Error = ""

		if err != nil {
			s.Error = failureText(err)
		}

		copied := *s
		o.addEvent(api.Event{
			Kind:     api.EventStep,
			Step:     &copied,
			Index:    gpu.Some(at.index),
			Rollback: at.rollback,
		})
	})
}

// addNote adds an event with a sentence for people.
func (op *operation) addNote(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	op.change(func(o *entry) { o.addEvent(api.Event{Kind: api.EventNote, Text: text}) })
}

// addWarning is addNote, and adds the sentence to the warnings in the operation's document.
func (op *operation) addWarning(format string, args ...any) {
	text := fmt.Sprintf(format, args...)

	op.change(func(o *entry) {
		if !slices.Contains(o.Operation.Warnings, text) {
			o.Operation.Warnings = append(o.Operation.Warnings, text)
		}

		o.addEvent(api.Event{Kind: api.EventNote, Text: text})
	})
}
