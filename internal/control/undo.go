package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// maxRounds bounds a roll-back that finds more to do each time it looks.
const maxRounds = 16

// undo leads from the layout that is there to the one before the operation. cause is why; nil where it is tried again. What
// it finds is what counts, not what the journal says was done: so it can be begun anywhere and as often as one likes.
func (e *Engine) undo(ctx context.Context, op *operation, cause error) {
	if cause != nil {
		op.cause = failure(cause)
		e.update(op, "note", failureText(cause), func(d *api.Operation) { d.Error = op.cause })
	}
	if e.leave(ctx, op) {
		return
	}
	if unfinished(cause) {
		e.park(op, cause)
		return
	}
	if err := e.append(op, entry{Kind: entryPhase, Phase: api.RollingBack}); err != nil {
		e.park(op, err)
		return
	}
	op.phase = api.RollingBack
	e.update(op, "state", "rolling back", func(d *api.Operation) { d.State = api.RollingBack })
	var err error
	changed, failed := false, 0
	for round := 0; failed < tries && round < maxRounds; round++ {
		var did int
		did, err = e.undoRound(ctx, op)
		changed = changed || did > 0
		if unfinished(err) || err == nil && did == 0 {
			break
		}
		if err != nil {
			failed++
			e.update(op, "note", "roll-back: "+failureText(err), nil)
			wait(ctx, pause<<(failed-1))
		}
	}
	switch {
	case err != nil && e.leave(ctx, op):
	case err != nil:
		e.park(op, err)
	default:
		e.undone(ctx, op, changed || op.retraced)
	}
}

// unfinished tells whether an error leaves no way on for now: a driver call that hangs, a journal that cannot be written.
func unfinished(err error) bool {
	var j errJournal
	return hung(err) || errors.As(err, &j)
}

// undoRound does what is to be done for the layout before, and counts the steps.
func (e *Engine) undoRound(ctx context.Context, op *operation) (int, error) {
	gpus, unreadable, err := e.read(ctx, gpusOf(op.begun.Before)...)
	if err != nil {
		return 0, err
	}
	did := 0
	var failed error
	for _, l := range op.begun.Before {
		g, err := findGPU(gpus, unreadable, l.GPU)
		if err != nil {
			failed = cmp.Or(failed, err)
			continue
		}
		n, err := e.undoGPU(ctx, op, cut{live: g, want: l})
		did += n
		if unfinished(err) {
			return did, err
		}
		failed = cmp.Or(failed, err)
	}
	return did, failed
}

func (e *Engine) undoGPU(ctx context.Context, op *operation, c cut) (did int, err error) {
	for _, s := range c.steps() {
		if !op.owns(s) {
			continue
		}
		if err := e.append(op, entry{Kind: entryIntent, Step: &s, Number: undoing}); err != nil {
			return did, err
		}
		done, err := e.persist(ctx, s, nil, true)
		outcome := entry{Kind: entryOutcome, Number: undoing, Done: &done}
		if err != nil {
			outcome.Done, outcome.Error = nil, err.Error()
		}
		if written := e.append(op, outcome); written != nil && !hung(err) {
			return did, written
		}
		if err != nil {
			return did, &stepError{step: s, err: err}
		}
		did++
		e.update(op, "note", "rolled back: "+stepText(s), nil)
	}
	return did, nil
}

// owns tells whether a step of a roll-back is about what the operation has done: it destroys nothing that somebody else
// made, and restores nothing that somebody else destroyed.
func (op *operation) owns(s mig.Step) bool {
	if creates(s) {
		return op.gone[placeOf(s)]
	}
	return op.made[placeOf(s)]
}

// park leaves an operation to be taken up again: by an operator, or by the next start.
func (e *Engine) park(op *operation, err error) {
	state := api.Degraded
	if hung(err) {
		state = api.Stuck
	}
	p := *failure(err)
	if first := op.cause; first != nil && first.Detail != p.Detail {
		p.Detail = fmt.Sprintf("%s (the roll-back: %s)", first.Detail, p.Detail)
		p.Blocking = append(p.Blocking, first.Blocking...)
	}
	p.Operation = op.doc.ID
	level.Error(e.o.Logger).Log("msg", "An operation could neither be finished nor rolled back", "operation", op.doc.ID, "state", state, "err", err)
	if written := e.append(op, entry{Kind: entryPhase, Phase: state, Error: p.Detail}); written != nil {
		level.Error(e.o.Logger).Log("msg", "The state of the operation is not in the journal", "operation", op.doc.ID, "err", written)
	}
	op.phase = state
	e.update(op, "state", string(state), func(d *api.Operation) { d.State, d.Error = state, &p })
	e.count(op, state)
}

// undone ends an operation whose layout before stands again.
func (e *Engine) undone(ctx context.Context, op *operation, changed bool) {
	state := api.Failed
	e.mu.Lock()
	for n := range op.doc.Steps {
		if op.doc.Steps[n].State == "done" {
			op.doc.Steps[n].State = "undone"
		}
		changed = changed || op.doc.Steps[n].State == "undone"
	}
	e.mu.Unlock()
	if changed {
		state = api.RolledBack
	}
	if gpus, _, err := e.read(ctx, gpusOf(op.begun.Before)...); err == nil {
		e.strangers(op, gpus)
		names := renamed(op.begun.Before, gpus)
		e.mu.Lock()
		op.doc.Renamed = names
		e.mu.Unlock()
	}
	if changed {
		e.poll(ctx, op)
		e.hooks(ctx, op, state)
		if e.leave(ctx, op) {
			return
		}
	}
	e.open(ctx, op)
	e.end(op, state, nil)
}

// strangers warns of what somebody else has changed meanwhile.
func (e *Engine) strangers(op *operation, gpus []mig.NodeGPU) {
	for _, l := range op.begun.Before {
		g, err := findGPU(gpus, nil, l.GPU)
		if err != nil {
			continue
		}
		for _, s := range (cut{live: g, want: l}).steps() {
			if creates(s) {
				e.warn(op, "somebody else has destroyed %s: it was not restored", stepPlace(s))
			} else {
				e.warn(op, "somebody else has made %s: it was left alone", stepPlace(s))
			}
		}
	}
}

// end closes an operation. That its end is not in the journal is no failure of it: the next start finds that all is done.
func (e *Engine) end(op *operation, state api.OperationState, p *api.Problem) {
	e.mu.Lock()
	op.doc.State, op.doc.Ended = state, e.o.Now()
	if p != nil {
		op.doc.Error = p
	}
	if state == api.Succeeded {
		op.doc.Error = nil
		e.remember(op.begun.After)
	}
	doc := op.document()
	e.mu.Unlock()
	if err := e.append(op, entry{Kind: entryEnd, End: doc}); err != nil {
		level.Error(e.o.Logger).Log("msg", "The end of an operation is not in the journal", "operation", op.doc.ID, "err", err)
	}
	e.mu.Lock()
	e.tell(op, "state", gpu.None[int](), string(state))
	e.mu.Unlock()
	e.count(op, state)
}

func (e *Engine) count(op *operation, state api.OperationState) {
	if e.o.Observer != nil {
		e.o.Observer.Operation(op.doc.Verb, string(state), e.o.Now().Sub(op.doc.Started))
	}
}
