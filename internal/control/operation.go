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
	doSteps    task = iota
	doRollback      // roll back, or try it again
	doResume        // finish what the last process has left
	doMode
)

// operation is an operation and what executing it needs. Its record and its events are guarded by the engine's mu,
// but for the record's parts; those and what is below them are changed by the goroutine that executes the operation
// alone.
type operation struct {
	record
	events []api.Event   // the latest
	seq    int           // of the last event
	news   chan struct{} // closed at the next event
	live   bool          // more events will come

	// inSlots is set while the store's slots (see package store) have the latest record of the operation: the history
	// leaves it out.
	inSlots bool
	task    task
	settled chan struct{} // closed when the operator ends the wait for the kubelet
	// offered is set once the kubelet has offered the new layout, or the node has none: the cordon is not needed any more.
	offered bool
	watched bool // a goroutine watches whether the operation, which is unsettled, is cured
	// retryable is set if the engine itself retries an operation that could not be finished: at the time again, then
	// after backoff.
	retryable bool
	// resumes is set while an operation of the last process waits for the driver, see deferToDriver. absence is why it
	// was left alone for too long to be finished; empty if it was not.
	resumes bool
	absence string
	counted bool // as degraded or stuck, for the observer
	again   time.Time
	backoff time.Duration
}

func newOperation(r record) *operation {
	return &operation{record: r, news: make(chan struct{}), settled: make(chan struct{})}
}

// pendingSteps are steps that were not tried yet.
func pendingSteps(steps []mig.Step) []api.OperationStep {
	list := make([]api.OperationStep, 0, len(steps))
	for _, s := range steps {
		list = append(list, api.OperationStep{Step: s, State: api.StepPending})
	}

	return list
}

// part finds what the operation does to a GPU.
func (op *operation) part(id gpu.UUID) *part {
	at := slices.IndexFunc(op.Parts, func(p *part) bool { return p.GPU == id })
	return op.Parts[at]
}

// gpus needs no lock: it reads the UUIDs alone, which never change, and leaves the states beside them.
func (op *operation) gpus() []gpu.UUID {
	ids := make([]gpu.UUID, 0, len(op.Operation.GPUs))
	for n := range op.Operation.GPUs {
		ids = append(ids, op.Operation.GPUs[n].GPU)
	}

	return ids
}

// changed reports whether the operation has changed anything, or may have.
func (op *operation) changed() bool {
	return slices.ContainsFunc(op.Parts, func(p *part) bool { return p.Changed })
}

// document copies an operation for a caller.
func (op *operation) document() *api.Operation {
	d := op.Operation
	d.Steps = slices.Clone(d.Steps)
	d.Rollback = slices.Clone(d.Rollback)
	d.GPUs = slices.Clone(d.GPUs)
	d.Hooks = slices.Clone(d.Hooks)
	d.Warnings = slices.Clone(d.Warnings)
	d.WaitsFor = slices.Clone(d.WaitsFor)
	d.Cordoned = op.Cordoned
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

	op, p := e.findOperation(id)
	if p != nil {
		return nil, p
	}

	return op.document(), nil
}

// findOperation is called with mu held.
func (e *Engine) findOperation(id string) (*operation, *api.Problem) {
	for _, op := range e.operations {
		if op.Operation.ID == id {
			return op, nil
		}
	}

	return nil, problemf(api.NotFound, "no operation %q is known", id)
}

// Operations lists those that are kept, the latest first.
func (e *Engine) Operations() *api.Operations {
	e.mu.Lock()
	defer e.mu.Unlock()

	list := &api.Operations{
		APIVersion: api.Version,
		State:      e.state(),
		Recovering: e.recovering,
		Reason:     e.unusable,
		Blocked:    e.blockedGPUs(),
		Unrestored: e.listUnrestored(),
		Operations: []api.Operation{},
	}
	for _, op := range slices.Backward(e.operations) {
		list.Operations = append(list.Operations, *op.document())
	}

	return list
}

// Events delivers the events of an operation with a Seq above after: first those that there were, then those that
// come. The channel is closed when no more will come: at the operation's end, when it waits for an operator, or with
// ctx. A slow reader delays nothing. Seq starts anew with the process: a reader that asks for events after a Seq
// that has not been reached gets all.
func (e *Engine) Events(ctx context.Context, id string, after int) (<-chan api.Event, error) {
	e.mu.Lock()
	op, p := e.findOperation(id)
	e.mu.Unlock()

	if p != nil {
		return nil, p
	}

	out := make(chan api.Event)
	go func() {
		defer close(out)

		for next := after; ; {
			e.mu.Lock()
			list := op.eventsAfter(next)
			news := op.news
			live := op.live
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

// eventsAfter are the events with a Seq above after that are kept. It is called with the engine's mu held.
func (op *operation) eventsAfter(after int) []api.Event {
	if after > op.seq {
		after = 0
	}

	first := op.seq - len(op.events)

	return op.events[max(after-first, 0):]
}

// maxEvents is how many events of an operation are kept: more than one without trouble has.
const maxEvents = 4096

// addEvent is called with mu held.
func (e *Engine) addEvent(op *operation, ev api.Event) {
	if len(op.events) >= maxEvents {
		op.events = slices.Clone(op.events[maxEvents/4:])
	}

	op.seq++
	ev.Seq = op.seq
	ev.Time = e.o.Now()
	ev.State = op.Operation.State
	op.events = append(op.events, ev)
	close(op.news)
	op.news = make(chan struct{})
}

// setState changes the state of an operation and adds an event.
func (e *Engine) setState(op *operation, state api.OperationState, text string) {
	e.mu.Lock()
	defer e.mu.Unlock()

	op.Operation.State = state
	e.addEvent(op, api.Event{Kind: api.EventState, Text: text})
}

// setGPU changes the state of one GPU of an operation. err is why it is not as planned, or nil; current are the
// instances to be shown for it.
func (e *Engine) setGPU(
	op *operation,
	id gpu.UUID,
	state api.OperationState,
	err error,
	current []mig.Instance,
) {
	e.mu.Lock()
	defer e.mu.Unlock()

	at := slices.IndexFunc(op.Operation.GPUs, func(g api.OperationGPU) bool { return g.GPU == id })
	g := &op.Operation.GPUs[at]
	g.State = state
	g.Error = ""
	g.Current = describeLayout(current)

	if err != nil {
		g.Error = failureText(err)
	}
}

// gpuState returns the state of one GPU of an operation.
func (e *Engine) gpuState(op *operation, id gpu.UUID) api.OperationState {
	e.mu.Lock()
	defer e.mu.Unlock()

	at := slices.IndexFunc(op.Operation.GPUs, func(g api.OperationGPU) bool { return g.GPU == id })

	return op.Operation.GPUs[at].State
}

// stepRef names a step of an operation, or of its rollback.
type stepRef struct {
	index    int
	rollback bool
}

// setStep changes the state of a step and adds an event. err is why it failed, or nil.
func (e *Engine) setStep(
	op *operation,
	at stepRef,
	state api.StepState,
	done *mig.Done,
	err error,
) {
	e.mu.Lock()
	defer e.mu.Unlock()

	list := op.Operation.Steps
	if at.rollback {
		list = op.Operation.Rollback
	}

	s := &list[at.index]

	s.State = state
	s.Done = done
	s.Error = ""

	if err != nil {
		s.Error = failureText(err)
	}

	copied := *s
	e.addEvent(
		op,
		api.Event{
			Kind:     api.EventStep,
			Step:     &copied,
			Index:    gpu.Some(at.index),
			Rollback: at.rollback,
		},
	)
}

// addNote adds an event with a sentence for people.
func (e *Engine) addNote(op *operation, format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()

	e.addEvent(op, api.Event{Kind: api.EventNote, Text: fmt.Sprintf(format, args...)})
}

// addWarning is addNote for what the operation's document keeps.
func (e *Engine) addWarning(op *operation, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	e.mu.Lock()
	defer e.mu.Unlock()

	if !slices.Contains(op.Operation.Warnings, text) {
		op.Operation.Warnings = append(op.Operation.Warnings, text)
	}

	e.addEvent(op, api.Event{Kind: api.EventNote, Text: text})
}
