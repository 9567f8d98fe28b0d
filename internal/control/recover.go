package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// errInterrupted is why an operation that a crash has left is rolled back.
var errInterrupted = errors.New("the exporter stopped in the middle of the operation")

// Recover reads the journal and finishes what a crash has left, by commit or roll-back; after a reboot it restores the
// layouts that were committed, where that is asked for. It is called once, before anything else. That a roll-back fails, or
// that the journal cannot be read, is a state of the engine and no error. What only has to settle is left to Run.
func (e *Engine) Recover(ctx context.Context) error {
	records, err := e.o.Journal.Records()
	folded := e.load(records)
	if err = errors.Join(err, folded); err != nil {
		e.fail(err, true)
		return nil
	}
	e.mu.Lock()
	open := slices.DeleteFunc(slices.Clone(e.operations), func(op *operation) bool { return over(op.doc.State) })
	e.mu.Unlock()
	safe, cancel := lasting(ctx)
	defer cancel()
	for _, op := range open {
		e.resume(safe, op)
	}
	e.reopen(safe)
	e.restoreOnce(safe)
	if e.free() {
		if err := e.compact(); err != nil {
			e.fail(err, false)
		}
	}
	e.announce()
	return ctx.Err()
}

// load takes in the entries of the journal. One that makes no sense is as bad as one that cannot be read.
func (e *Engine) load(records [][]byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.appended = len(records)
	byID := map[string]*operation{}
	for n, record := range records {
		var at entry
		err := json.Unmarshal(record, &at)
		if err == nil {
			err = e.fold(byID, at, record)
		}
		if err != nil {
			return fmt.Errorf("journal is corrupt at record %d: %w", n+1, err)
		}
	}
	open := 0
	for _, op := range e.operations {
		e.tell(op, "state", gpu.None[int](), string(op.doc.State))
		if !over(op.doc.State) {
			open++
		}
	}
	if open > 1 {
		return fmt.Errorf("journal has %d operations that are not over, and there is never more than one", open)
	}
	return nil
}

func (e *Engine) fold(byID map[string]*operation, at entry, record []byte) error {
	switch at.Kind {
	case entryBoot:
		e.boot = at.Boot
		return nil
	case entryLayouts:
		e.remember(at.Layouts)
		return nil
	case entryBegin:
		if at.Begin == nil || byID[at.Op] != nil {
			return errors.New("an operation that begins without its plan, or twice")
		}
		op := newOperation(*at.Begin)
		byID[at.Op] = op
		e.operations = append(e.operations, op)
	}
	op := byID[at.Op]
	if op == nil {
		return fmt.Errorf("%q of an operation that has not begun", at.Kind)
	}
	op.keep(at, record)
	switch at.Kind {
	case entryCordon:
		e.cordoned = op.doc.ID
	case entryOpen:
		e.cordoned = ""
	case entryEnd:
		if at.End == nil {
			return errors.New("an end without the operation")
		}
		op.doc = *at.End
		if op.doc.State == api.Succeeded {
			e.remember(op.begun.After)
		}
	case entryBegin, entryIntent, entryOutcome, entryPhase:
		return op.fold(at)
	default:
		return fmt.Errorf("unknown kind %q, perhaps of a later version", at.Kind)
	}
	return nil
}

func (op *operation) fold(at entry) error {
	own := at.Number != undoing && (at.Kind == entryIntent || at.Kind == entryOutcome)
	if own && (at.Number < 0 || at.Number >= len(op.doc.Steps)) {
		return fmt.Errorf("step %d of an operation that has %d", at.Number, len(op.doc.Steps))
	}
	switch {
	case at.Kind == entryPhase:
		op.phase, op.doc.State = at.Phase, at.Phase
		op.verified = at.Phase == api.Settling
	case at.Kind == entryIntent && at.Step == nil:
		return errors.New("a step that is not told")
	case own && at.Kind == entryIntent:
		op.intend(*at.Step)
		op.doc.State = api.Running
		op.doc.Steps[at.Number].State = "running"
	case own && at.Error != "":
		op.doc.Steps[at.Number].State, op.doc.Steps[at.Number].Error = "failed", "it failed"
		if at.Taken {
			delete(op.made, placeOf(op.doc.Steps[at.Number].Step))
		}
	case own:
		op.doc.Steps[at.Number].State, op.doc.Steps[at.Number].Done = "done", at.Done
	}
	return nil
}

// resume finishes an operation that was open when the process ended.
func (e *Engine) resume(ctx context.Context, op *operation) {
	e.mu.Lock()
	e.current, op.live = op, true
	e.mu.Unlock()
	untouched := len(op.made)+len(op.gone) == 0
	switch {
	case op.begun.Operation.Verb == api.VerbMode && op.phase == api.Pending:
		e.end(op, api.Failed, problemf(api.DriverFailed, "%s, before anything was changed", errInterrupted))
	case op.begun.Operation.Verb == api.VerbMode:
		e.modeRead(ctx, op)
	case op.begun.Boot != e.o.BootID:
		e.open(ctx, op)
		e.end(op, api.Failed, problemf(api.DriverFailed, "the node was rebooted in the middle of the operation; instances do not survive that"))
	case op.phase == api.Settling:
	case op.phase == api.Pending && untouched:
		e.open(ctx, op)
		e.end(op, api.Failed, problemf(api.DriverFailed, "%s, before anything was changed", errInterrupted))
	case op.phase == api.Pending && e.verify(ctx, op.begun.After) == nil && e.commit(op) == nil:
	case !e.o.Apply:
		e.park(op, problemf(api.PlanOnly, "%s, and this program only plans: it is rolled back by a start with --control.mode=apply", errInterrupted))
	case op.phase == api.Pending:
		e.undo(ctx, op, errInterrupted)
	default:
		e.undo(ctx, op, nil)
	}
	e.hand(op)
}

// hand leaves an operation that only has to settle to Run.
func (e *Engine) hand(op *operation) {
	if !op.verified || over(op.doc.State) {
		e.rest(op)
		return
	}
	op.task = doSettle
	e.update(op, "state", "settling", func(d *api.Operation) { d.State = api.Settling })
	e.queue <- op
}

// free tells whether no operation is current.
func (e *Engine) free() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.current == nil && e.unusable == ""
}

// reopen undoes a cordon that an operation has left which is over: at the start, and later as often as it takes.
func (e *Engine) reopen(ctx context.Context) {
	e.mu.Lock()
	at := slices.IndexFunc(e.operations, func(op *operation) bool { return op.doc.ID == e.cordoned && over(op.doc.State) })
	var op *operation
	if at >= 0 && e.current == nil && e.unusable == "" {
		op = e.operations[at]
	}
	e.mu.Unlock()
	if op != nil && e.o.Cluster != nil {
		if err := e.uncordon(ctx, op); err != nil {
			level.Warn(e.o.Logger).Log("msg", "The node is still cordoned by an operation that is over", "operation", op.doc.ID, "err", err)
		}
	}
}
