package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// startRollback rolls an operation back because of cause.
func (e *Engine) startRollback(ctx context.Context, op *operation, cause error) {
	problem := failureProblem(cause)
	e.mu.Lock()
	op.Cause = problem
	op.Operation.Error = problem
	e.mu.Unlock()
	e.addNote(op, "%s", problem.Detail)
	e.markForeign(ctx, op, cause)
	e.rollBack(ctx, op)
}

// markForeign marks a GPU as interrupted if err says that another client has changed it, or as failed if the operation
// has not changed it. It does nothing for any other error.
func (e *Engine) markForeign(ctx context.Context, op *operation, err error) {
	var foreign *foreignError
	if !errors.As(err, &foreign) {
		return
	}

	state := api.Interrupted
	if !op.part(foreign.gpu).Changed {
		state = api.Failed
	}

	level.Warn(e.o.Logger).Log(
		"msg", "another client changed a GPU during an operation; the GPU is left as it is",
		"operation", op.Operation.ID,
		"gpu", foreign.gpu,
	)

	if foreign.current == nil { // it was changing all the time
		if gpus, _, err := e.readLayouts(ctx, foreign.gpu); err == nil && len(gpus) == 1 {
			foreign.current = knownInstances(gpus[0].Instances)
		}
	}

	// While the operation ran, we counted every reported change as its own.
	e.views.addForeign(foreign.gpu)
	e.setGPU(op, foreign.gpu, state, foreign, foreign.current)
}

// rollBack restores the previous layout of every GPU of the operation, from what the operation has left there, and
// leaves alone those that another client has changed. A GPU on which it fails is degraded or stuck; the others go on.
func (e *Engine) rollBack(ctx context.Context, op *operation) {
	if e.deferToRestart(ctx, op) {
		return
	}

	e.setState(op, api.RollingBack, "rolling back")
	var failed error

	for _, p := range op.Parts {
		if e.gpuState(op, p.GPU).Final() {
			continue
		}

		err := e.rollBackGPU(ctx, op, p)
		if err != nil && e.deferToRestart(ctx, op) {
			return
		}

		if err != nil && !isForeign(err) {
			failed = cmp.Or(failed, err)
		}

		e.recordRollback(ctx, op, p, err)
	}

	if failed != nil {
		e.markDegraded(op, failed)
		return
	}

	e.finishRollback(ctx, op)
}

// recordRollback sets the state of a GPU after its rollback.
func (e *Engine) recordRollback(ctx context.Context, op *operation, p *part, err error) {
	switch {
	case isForeign(err):
		e.markForeign(ctx, op, err)
	case isTimeout(err):
		e.setGPU(op, p.GPU, api.Stuck, err, knownInstances(p.Expected))
	case err != nil:
		e.setGPU(op, p.GPU, api.Degraded, err, knownInstances(p.Expected))
	case p.Changed:
		e.setGPU(op, p.GPU, api.RolledBack, nil, nil)
	default:
		e.setGPU(op, p.GPU, api.Failed, nil, nil)
	}
}

func (e *Engine) rollBackGPU(ctx context.Context, op *operation, p *part) error {
	if !p.Changed && p.Pending == nil {
		return nil
	}

	e.setGPU(op, p.GPU, api.RollingBack, nil, nil)

	if err := e.reconcilePart(ctx, op, p); err != nil {
		return err
	}

	for _, s := range stepsBetween(p.GPU, p.Expected, p.Before) {
		e.mu.Lock()
		op.Operation.Rollback = append(
			op.Operation.Rollback,
			api.OperationStep{Step: s, State: api.StepPending},
		)
		at := stepRef{index: len(op.Operation.Rollback) - 1, rollback: true}
		e.mu.Unlock()

		if err := e.doStep(ctx, op, s, at, nil); err != nil {
			return err
		}
	}

	e.markUndone(op, p.GPU)

	return nil
}

// reconcilePart reads a GPU. It returns an error unless the GPU is as the operation has left it, before or after the
// step that is pending.
func (e *Engine) reconcilePart(ctx context.Context, op *operation, p *part) error {
	if e.hasHungCall(p.GPU) {
		return &unreadError{
			fmt.Errorf("%w: an earlier call still hangs in the driver", gpu.ErrTimeout),
		}
	}

	gpus, unreadable, err := e.readLayouts(ctx, p.GPU)
	if err != nil {
		return &unreadError{err}
	}

	g, err := findGPU(gpus, unreadable, p.GPU)
	if err != nil {
		return &unreadError{err}
	}

	changed := !p.changing && e.isChangedByOthers(p)
	e.mu.Lock()
	defer e.mu.Unlock()

	p.facts = g
	if changed { // it can have the same instances again: they are not the operation's
		return op.interruptPart(p, g.Instances)
	}

	if mig.SameInstances(g.Instances, p.Expected) {
		op.endPendingStep(p, api.StepFailed)
		return nil
	}

	if p.Pending != nil {
		if after, err := verifyOutcome(p.Expected, *p.Pending, g.Instances); err == nil {
			op.endPendingStep(p, api.StepDone)
			p.Expected = after
			p.Changed = true

			return nil
		}
	}

	return op.interruptPart(p, g.Instances)
}

// interruptPart returns the error of a GPU that another client has changed. It is called with the engine's mu held.
func (op *operation) interruptPart(p *part, current []mig.Instance) error {
	p.Changed = p.Changed || p.Pending != nil
	op.endPendingStep(p, api.StepFailed)

	return &foreignError{gpu: p.GPU, current: knownInstances(current)}
}

// endPendingStep records what became of the step that is pending on a GPU, which may be of a former process. It is
// called with the engine's mu held.
func (op *operation) endPendingStep(p *part, state api.StepState) {
	p.Pending = nil

	for _, list := range [][]api.OperationStep{op.Operation.Steps, op.Operation.Rollback} {
		for n := range list {
			if list[n].GPU == p.GPU && list[n].State == api.StepRunning {
				list[n].State = state
			}
		}
	}
}

// markUndone marks the steps on a GPU that were done as undone.
func (e *Engine) markUndone(op *operation, id gpu.UUID) {
	e.mu.Lock()
	defer e.mu.Unlock()

	for n := range op.Operation.Steps {
		if s := &op.Operation.Steps[n]; s.GPU == id && s.State == api.StepDone {
			s.State = api.StepUndone
		}
	}
}

// markDegraded leaves an operation unfinished until it is retried: by the engine once the cause is gone, by an
// operator, or by the next start.
func (e *Engine) markDegraded(op *operation, err error) {
	state := api.Degraded
	if e.anyGPU(op, api.Stuck) {
		state = api.Stuck
	}

	p := *failureProblem(err)
	if op.Cause != nil && op.Cause.Detail != p.Detail {
		p.Detail = fmt.Sprintf("%s (the rollback: %s)", op.Cause.Detail, p.Detail)
		p.Blocking = append(p.Blocking, op.Cause.Blocking...)
	}

	p.Operation = op.Operation.ID
	e.mu.Lock()
	repeated := op.Operation.Error != nil && op.Operation.Error.Detail == p.Detail
	op.Operation.Error = &p
	var saving storeError
	var unread *unreadError
	op.retryable = state == api.Stuck || errors.As(err, &saving) || errors.As(err, &unread)
	e.mu.Unlock()

	if !repeated {
		level.Error(e.o.Logger).Log(
			"msg", "cannot finish or roll back an operation",
			"operation", op.Operation.ID,
			"state", state,
			"err", err,
		)
	}

	e.setWaiting(op, waitsForGPUs(e.gpusIn(op, api.Stuck)))
	e.setState(op, state, string(state))

	// If this fails, the engine is read-only, and the slots hold what was done so far.
	_ = e.saveOperation(op)

	if !op.counted {
		e.countOperation(op, state)
	}

	op.counted = true
}

// anyGPU reports whether a GPU of the operation is in a state.
func (e *Engine) anyGPU(op *operation, state api.OperationState) bool {
	return len(e.gpusIn(op, state)) > 0
}

// gpusIn returns the GPUs of the operation that are in a state.
func (e *Engine) gpusIn(op *operation, state api.OperationState) []gpu.UUID {
	e.mu.Lock()
	defer e.mu.Unlock()

	var list []gpu.UUID

	for _, g := range op.Operation.GPUs {
		if g.State == state {
			list = append(list, g.GPU)
		}
	}

	return list
}

// unreadError says that a GPU could not be read: its instances are unknown, not other ones.
type unreadError struct{ err error }

func (u *unreadError) Error() string { return u.err.Error() }
func (u *unreadError) Unwrap() error { return u.err }

// finishRollback ends an operation of which no GPU is left unfinished.
func (e *Engine) finishRollback(ctx context.Context, op *operation) {
	state := api.RolledBack

	switch {
	case !op.changed():
		state = api.Failed
	case e.anyGPU(op, api.Interrupted):
		state = api.Interrupted
	}

	e.mu.Lock()
	if op.Cause != nil {
		op.Operation.Error = op.Cause // not why a former attempt has failed
	}

	e.mu.Unlock()

	if state != api.Failed {
		e.listReplaced(ctx, op)
		e.endChanges(op)
		e.pollLayout(ctx, op)
		e.runHooks(ctx, op, state)
		e.restartAfterRollback(ctx, op)

		if e.deferToRestart(ctx, op) {
			return
		}
	}

	e.endOperation(ctx, op, state, nil)
}

// listReplaced records which MIG devices have other UUIDs than before the operation.
func (e *Engine) listReplaced(ctx context.Context, op *operation) {
	gpus, _, err := e.readLayouts(ctx, op.gpus()...)
	if err != nil {
		return
	}

	names := map[gpu.MIGUUID]gpu.MIGUUID{}

	for _, p := range op.Parts {
		g, err := findGPU(gpus, nil, p.GPU)
		if err != nil {
			continue
		}

		want := p.before()
		if op.Operation.State == api.Settling { // the layout after, of a rollback, had UUIDs once
			want = p.after()
		}

		for from, to := range renamedDevices(want, layout{GPU: g.UUID, Instances: g.Instances}) {
			names[from] = to
		}
	}

	e.mu.Lock()
	op.Operation.Renamed = names
	e.mu.Unlock()
}

// endOperation closes an operation. If its end cannot be saved, the engine is read-only, and tries again. One that is
// unsettled keeps what it waits for, and its cordon as long as the kubelet may offer devices that do not exist.
func (e *Engine) endOperation(
	ctx context.Context,
	op *operation,
	state api.OperationState,
	p *api.Problem,
) {
	if state != api.Unsettled || op.offered {
		e.uncordonNode(ctx, op)
	}

	e.mu.Lock()

	op.Operation.Ended = e.o.Now()
	if state != api.Unsettled {
		op.Operation.WaitsFor = nil
	}

	if p != nil {
		op.Operation.Error = p
	}

	for n := range op.Operation.GPUs {
		if g := &op.Operation.GPUs[n]; !g.State.Final() {
			g.State = state
		}
	}

	if state.Committed() {
		op.Operation.Error = nil
		e.rememberLayouts(op)
	}

	e.mu.Unlock()
	e.setState(op, state, string(state))
	e.logEnd(op, state)

	if e.isCurrent(op) {
		_ = e.saveOperation(op)
	} else {
		_ = e.saveHistory()
	}

	e.countOperation(op, state)
}

// logEnd logs the end of an operation, as a warning if the operation has any.
func (e *Engine) logEnd(op *operation, state api.OperationState) {
	e.mu.Lock()
	warnings := slices.Clone(op.Operation.Warnings)
	waits := slices.Clone(op.Operation.WaitsFor)
	cordoned := op.Cordoned
	e.mu.Unlock()

	line := []any{
		"msg",
		"operation ended",
		"operation",
		op.Operation.ID,
		"verb",
		op.Operation.Verb,
		"by",
		op.Operation.By,
		"state",
		state,
	}
	if state == api.Unsettled {
		line = append(line, "waits_for", strings.Join(waits, "; "), "cordoned", cordoned)
	}

	if len(warnings) == 0 && state != api.Unsettled {
		level.Info(e.o.Logger).Log(line...)
		return
	}

	level.Warn(e.o.Logger).Log(append(line, "warnings", strings.Join(warnings, "; "))...)
}

func (e *Engine) isCurrent(op *operation) bool {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.current == op
}

// rememberLayouts takes the layouts of an operation over into those that a restore would make. It is called with mu
// held.
func (e *Engine) rememberLayouts(op *operation) {
	all := slices.Clone(op.Untouched)
	for _, p := range op.Parts {
		if op.Operation.Verb != api.VerbMode {
			all = append(all, p.after())
		}
	}

	for _, l := range all {
		at := slices.IndexFunc(e.layouts, func(c layout) bool { return c.GPU == l.GPU })
		if at >= 0 {
			e.layouts[at] = l
		} else {
			e.layouts = append(e.layouts, l)
		}

		e.dropUnrestored(l.GPU)
	}
}

func (e *Engine) countOperation(op *operation, state api.OperationState) {
	if e.o.Observer != nil {
		e.o.Observer.Operation(
			op.Operation.Verb,
			string(state),
			e.o.Now().Sub(op.Operation.Started),
		)
	}
}
