package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Rollback begins an operation that restores the layout before operation id, if that has succeeded
// or is unsettled. If it is degraded or stuck, Rollback resumes its rollback instead.
func (e *Engine) Rollback(ctx context.Context, by Actor, id string) (*api.Operation, error) {
	if p := e.checkMayApply(by); p != nil {
		return nil, p
	}

	op, p := e.findOperation(id)
	if p != nil {
		return nil, p
	}

	state := op.status()

	switch {
	case isDegraded(state):
		return e.retry(ctx, op, true)
	case !state.Final():
		p := problemf(api.InProgress, "operation %s is %s", id, state)
		if state == api.Settling {
			p.Detail = fmt.Sprintf(
				"operation %s waits until the kubelet shows its devices: wait for it, or end that wait, "+
					"then roll it back",
				id,
			)
		}

		p.Operation = id

		return nil, p
	case !state.Committed():
		return nil, problemf(
			api.BadSpec,
			"operation %s is %s: there is nothing to roll back",
			id,
			state,
		)
	case op.verb == api.VerbMode:
		return nil, problemf(api.BadSpec, "a MIG mode is not rolled back: ask for the other mode")
	}

	if p := e.reserve(ctx, nil, op.gpus...); p != nil {
		return nil, p
	}

	defer e.releaseReservation()

	r, p := e.newRollback(ctx, op)
	if p != nil {
		return nil, p
	}

	r.Operation.RollbackOf = id
	r.Operation.By = by.Name
	r.Operation.StatedReason = by.Reason

	return e.acceptOperation(*r, doSteps)
}

// newRollback returns the operation that restores the layout before op. It returns a problem if an
// instance that it would destroy is in use, or if anything has changed the GPUs since op.
func (e *Engine) newRollback(ctx context.Context, op *operation) (*record, *api.Problem) {
	u, err := e.collectUsage(ctx, needsNoOther, op.gpus...)
	if err != nil {
		return nil, driverProblem(err)
	}

	o := op.copy()

	// collectUsage takes the marks before it reads the GPUs: they would not show a change that was
	// made while it read.
	u.marks = e.marks()
	if p := u.checkView(&o.record); p != nil {
		return nil, p
	}

	var steps []mig.Step
	var blocking []api.Blocker
	var live []mig.GPULayout

	for _, change := range o.Changes {
		g, err := u.gpu(change.GPU)
		if err != nil {
			return nil, problemf(api.Unavailable, "%s cannot be read", change.GPU)
		}

		list := mig.StepsTo(&g, change.Before)
		if len(list) > 0 && !g.MIG.Or(false) {
			return nil, problemf(
				api.ModeDiffers,
				"GPU %d (%s) has no MIG mode on any more",
				g.Index,
				g.UUID,
			)
		}

		for _, s := range list {
			if s.Destroys() {
				blocking = append(blocking, u.listBlockers(g, s, nil)...)
			}
		}

		live = append(live, g)
		steps = append(steps, list...)
	}

	if len(blocking) > 0 {
		p := problemf(api.Busy, "%d of the instances that would go are in use", len(blocking))
		p.Blocking = blocking

		return nil, withHint(p)
	}

	if _, p := e.checkOwners(ctx, gpusOfSteps(steps), o.TakeOver); p != nil {
		return nil, p
	}

	r := e.newRecord(ctx, api.VerbRollback, "", steps)
	r.TakeOver = o.TakeOver

	for n, g := range live {
		r.addGPU(g, o.Changes[n].Before)
	}

	r.setViews(u.marks)

	return &r, nil
}

// startRollback rolls an operation back because of cause.
func (e *Engine) startRollback(ctx context.Context, op *operation, cause error) {
	problem := failureProblem(cause)

	op.change(func(o *entry) {
		o.Cause = problem
		o.Operation.Error = problem
	})
	op.addNote("%s", problem.Detail)
	e.markForeign(ctx, op, cause)
	e.rollBack(ctx, op)
}

// markForeign marks a GPU as interrupted if err says that another client has changed it, or as
// failed if the operation has not changed it. It does nothing for any other error.
func (e *Engine) markForeign(ctx context.Context, op *operation, err error) {
	var foreign *foreignError
	if !errors.As(err, &foreign) {
		return
	}

	state := api.Interrupted
	if !op.gpuChange(foreign.gpu).Changed {
		state = api.Failed
	}

	level.Warn(e.o.Logger).Log(
		"msg", "another client changed a GPU during an operation; the GPU is left as it is",
		"operation", op.id,
		"gpu", foreign.gpu,
	)

	if foreign.current == nil { // it was not read, or kept changing while it was read
		if g, err := e.readGPU(ctx, foreign.gpu); err == nil {
			foreign.current = knownInstances(g.Instances)
		}
	}

	// While the operation ran, we counted every reported change as its own.
	e.views.addForeign(foreign.gpu)
	op.setGPU(foreign.gpu, state, foreign, foreign.current)
}

// rollBack restores the previous layout of each GPU of the operation, except of those that another
// client has changed. If it fails on a GPU, that one becomes degraded or stuck, and rollBack goes
// on with the others.
func (e *Engine) rollBack(ctx context.Context, op *operation) {
	if e.deferToRestart(ctx, op) {
		return
	}

	op.setState(api.RollingBack, "rolling back")
	var failed error

	for _, c := range op.copy().Changes {
		if op.gpuState(c.GPU).Final() {
			continue
		}

		err := e.rollBackGPU(ctx, op, c.GPU)
		if err != nil && e.deferToRestart(ctx, op) {
			return
		}

		if err != nil && !isForeign(err) {
			failed = cmp.Or(failed, err)
		}

		e.recordRollback(ctx, op, c.GPU, err)
	}

	if failed != nil {
		e.markDegraded(op, failed)
		return
	}

	e.finishRollback(ctx, op)
}

// recordRollback sets the state of a GPU after its rollback.
func (e *Engine) recordRollback(ctx context.Context, op *operation, id gpu.UUID, err error) {
	c := op.gpuChange(id)

	switch {
	case isForeign(err):
		e.markForeign(ctx, op, err)
	case isTimeout(err):
		op.setGPU(id, api.Stuck, err, knownInstances(c.Expected))
	case err != nil:
		op.setGPU(id, api.Degraded, err, knownInstances(c.Expected))
	case c.Changed:
		op.setGPU(id, api.RolledBack, nil, nil)
	default:
		op.setGPU(id, api.Failed, nil, nil)
	}
}

func (e *Engine) rollBackGPU(ctx context.Context, op *operation, id gpu.UUID) error {
	if c := op.gpuChange(id); !c.Changed && c.Pending == nil {
		return nil
	}

	op.setGPU(id, api.RollingBack, nil, nil)

	if err := e.reconcile(ctx, op, id); err != nil {
		return err
	}

	c := op.gpuChange(id) // with the instances that were read
	live := c.live()

	for _, s := range mig.StepsTo(&live, c.Before) {
		at := op.addRollbackStep(s)
		if err := e.doStep(ctx, op, s, at, nil); err != nil {
			return err
		}
	}

	op.markUndone(id)

	return nil
}

func (op *operation) addRollbackStep(s mig.Step) stepRef {
	at := stepRef{rollback: true}

	op.change(func(o *entry) {
		at.index = len(o.Operation.Rollback)
		o.Operation.Rollback = append(o.Operation.Rollback, pendingSteps([]mig.Step{s})...)
	})

	return at
}

// reconcile reads a GPU and records whether its pending step was done. It returns an error unless
// the GPU is as the operation has left it: as before the pending step, or as after it.
func (e *Engine) reconcile(ctx context.Context, op *operation, id gpu.UUID) error {
	if e.hasHungCall(id) {
		return &unreadError{
			fmt.Errorf("%w: an earlier call still hangs in the driver", gpu.ErrTimeout),
		}
	}

	g, err := e.readGPU(ctx, id)
	if err != nil {
		return &unreadError{err}
	}

	c := op.gpuChange(id)
	c.facts = g

	// Another client may have destroyed the operation's instances and created equal ones.
	byOthers := !c.changing && e.isChangedByOthers(&c)
	ended := api.StepFailed

	switch {
	case byOthers || !c.matches(g.Instances):
		err = &foreignError{gpu: id, current: knownInstances(g.Instances)}
		c.Changed = c.Changed || c.Pending != nil
	case !mig.SameInstances(g.Instances, c.Expected): // the GPU is as after the pending step
		c.Expected, _ = c.Pending.Verify(c.Expected, g.Instances)
		c.Changed = true
		ended = api.StepDone
	}

	op.endPendingStep(c, ended)

	return err
}

// endPendingStep stores c without a pending step, and sets the state of the step that was running
// on its GPU, maybe in a former process.
func (op *operation) endPendingStep(c gpuChange, state api.StepState) {
	c.Pending = nil

	op.change(func(o *entry) {
		*o.gpuChange(c.GPU) = c

		for _, list := range [][]api.OperationStep{o.Operation.Steps, o.Operation.Rollback} {
			for n := range list {
				if list[n].GPU == c.GPU && list[n].State == api.StepRunning {
					list[n].State = state
				}
			}
		}
	})
}

// markUndone marks the steps on a GPU that were done as undone.
func (op *operation) markUndone(id gpu.UUID) {
	op.change(func(o *entry) {
		for n := range o.Operation.Steps {
			if s := &o.Operation.Steps[n]; s.GPU == id && s.State == api.StepDone {
				s.State = api.StepUndone
			}
		}
	})
}

// markDegraded leaves an operation unfinished until it is retried: by the engine once the cause is
// gone, by an operator, or by the next start.
func (e *Engine) markDegraded(op *operation, err error) {
	o := op.copy()
	stuckGPUs := o.gpusIn(api.Stuck)

	state := api.Degraded
	if len(stuckGPUs) > 0 {
		state = api.Stuck
	}

	p := *failureProblem(err)
	if o.Cause != nil && o.Cause.Detail != p.Detail {
		p.Detail = fmt.Sprintf("%s (the rollback: %s)", o.Cause.Detail, p.Detail)
		p.Blocking = append(p.Blocking, o.Cause.Blocking...)
	}

	p.Operation = op.id

	var saving storeError
	var unread *unreadError
	retryable := state == api.Stuck || errors.As(err, &saving) || errors.As(err, &unread)

	op.change(func(o *entry) {
		o.Operation.Error = &p
		o.retryable = retryable
		o.counted = true
	})

	if o.Operation.Error == nil || o.Operation.Error.Detail != p.Detail { // else it was logged
		level.Error(e.o.Logger).Log(
			"msg", "cannot finish or roll back an operation",
			"operation", op.id,
			"state", state,
			"err", err,
		)
	}

	op.setWaiting(waitsForGPUs(stuckGPUs))
	op.setState(state, string(state))

	// If this fails, the engine is read-only, and the slots hold what was done so far.
	_ = e.saveOperation(op)

	if !o.counted {
		e.countOperation(op, state)
	}
}

// unreadError says that a GPU could not be read: unlike after a foreignError, its instances may be
// as expected.
type unreadError struct{ err error }

func (u *unreadError) Error() string { return u.err.Error() }
func (u *unreadError) Unwrap() error { return u.err }

// finishRollback ends an operation once each of its GPUs has its final state.
func (e *Engine) finishRollback(ctx context.Context, op *operation) {
	state := api.RolledBack
	o := op.copy()

	switch {
	case !o.changed():
		state = api.Failed
	case len(o.gpusIn(api.Interrupted)) > 0:
		state = api.Interrupted
	}

	op.change(func(o *entry) {
		if o.Cause != nil {
			o.Operation.Error = o.Cause // instead of the error of a former attempt
		}
	})

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
	gpus, _, err := e.readLayouts(ctx, op.gpus...)
	if err != nil {
		return
	}

	names := map[gpu.MIGUUID]gpu.MIGUUID{}

	o := op.copy()
	for _, c := range o.Changes {
		g, err := findGPU(gpus, nil, c.GPU)
		if err != nil {
			continue
		}

		// If the operation failed and was rolled back, the same devices as before exist again. If it
		// has committed, only After can name them: that of an operation of the verb rollback has the
		// UUIDs that the devices had once.
		former := c.before()
		if o.Operation.State == api.Settling {
			former = c.after()
		}

		maps.Copy(names, renamedDevices(former, layout{GPU: g.UUID, Instances: g.Instances}))
	}

	op.change(func(o *entry) { o.Operation.Renamed = names })
}
