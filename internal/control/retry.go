package control

import (
	"context"
	"slices"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// matches reports whether instances are those that the operation has left, before or after the step that is pending.
func (p *part) matches(live []mig.Instance) bool {
	if mig.SameInstances(live, p.Expected) {
		return true
	}

	if p.Pending == nil {
		return false
	}

	_, err := verifyOutcome(p.Expected, *p.Pending, live)

	return err == nil
}

// Accept closes an operation that could not be rolled back, and leaves its GPUs as they are. One of the verb
// recovery makes damaged documents of the state folder good.
func (e *Engine) Accept(ctx context.Context, by Actor, id string) (*api.Operation, error) {
	if p := e.mayApply(by); p != nil {
		return nil, p
	}

	e.mu.Lock()
	op, p := e.findOperation(id)
	e.mu.Unlock()

	if p != nil {
		return nil, p
	}

	if p := e.reserve(ctx, op); p != nil {
		return nil, p
	}

	defer e.releaseReservation()

	if p := e.retryProblem(op, "accept"); p != nil {
		return nil, p
	}

	e.addWarning(op, "%s has accepted the current layout", by.Name)

	gpus, _, err := e.readLayouts(ctx, op.gpus()...)
	if err != nil {
		level.Warn(e.o.Logger).Log(
			"msg", "cannot read the GPUs of an accepted operation",
			"operation", id,
			"err", err,
		)
	}

	for _, g := range op.Operation.GPUs {
		if !e.gpuState(op, g.GPU).Final() {
			e.setGPU(op, g.GPU, api.Accepted, nil, instancesOn(gpus, g.GPU))
			e.views.end(g.GPU)        // a call that had not returned has kept it
			e.views.addForeign(g.GPU) // what stands there is not known to be any operation's
		}
	}

	if op.Operation.Verb == api.VerbRecovery {
		return e.acceptDamage(ctx, op)
	}

	e.endOperation(ctx, op, api.Accepted, nil)
	e.reportState()

	if reason := e.Reason(); reason != "" {
		return nil, problemf(
			api.ReadOnly,
			"operation %s is accepted, but that could not be saved yet: %s",
			id,
			reason,
		)
	}

	return e.Operation(id)
}

// acceptDamage writes all documents again. What was not over is accepted with them.
func (e *Engine) acceptDamage(ctx context.Context, op *operation) (*api.Operation, error) {
	e.mu.Lock()
	e.damaged = false
	e.unusable = ""
	open := slices.DeleteFunc(
		slices.Clone(e.operations),
		func(o *operation) bool { return o.Operation.State.Final() },
	)
	e.mu.Unlock()

	for _, o := range open {
		e.endOperation(ctx, o, api.Accepted, nil)
	}

	for range 2 { // both slots
		if err := e.saveOperation(op); err != nil {
			return nil, failureProblem(err)
		}
	}

	e.reportState()

	return e.Operation(op.Operation.ID)
}

// isDegraded reports whether an operation in this state waits to be retried or accepted.
func isDegraded(state api.OperationState) bool {
	return state == api.Degraded || state == api.Stuck
}

// retryProblem returns a problem unless an operation can be retried or accepted now.
func (e *Engine) retryProblem(op *operation, what string) *api.Problem {
	e.mu.Lock()
	state := op.Operation.State
	e.mu.Unlock()

	if !isDegraded(state) {
		return problemf(
			api.BadSpec,
			"operation %s is %s: there is nothing to %s",
			op.Operation.ID,
			state,
			what,
		)
	}

	for _, g := range op.Operation.GPUs {
		if !e.gpuState(op, g.GPU).Final() && e.hasHungCall(g.GPU) {
			p := problemf(
				api.StuckNode,
				"a driver call for %s has still not returned; try again, or reboot the node if it never does",
				g.GPU,
			)
			p.Operation = op.Operation.ID

			return p
		}
	}

	return nil
}

// hasHungCall reports whether a driver call for a GPU has not returned: what it does when it returns is unknown.
func (e *Engine) hasHungCall(id gpu.UUID) bool {
	h, ok := e.o.Actuator.(Hanging)
	return ok && h.Hung(id)
}

// maxBackoff is the longest time between two attempts to take an operation up again. One that fails each time must
// not keep the driver and the disk busy.
const maxBackoff = 5 * time.Minute

// retryDegraded resumes an operation whose driver call has returned, or for which there is room on disk again: at
// once, then at growing intervals.
func (e *Engine) retryDegraded(ctx context.Context) {
	e.mu.Lock()

	var due []*operation
	if e.current == nil && e.unusable == "" && !e.recovering {
		due = slices.DeleteFunc(slices.Clone(e.operations), func(op *operation) bool {
			return !isDegraded(op.Operation.State) || !op.retryable || e.o.Now().Before(op.again) ||
				!e.o.Apply && !op.resumes
		})
	}

	e.mu.Unlock()

	at := slices.IndexFunc(due, func(op *operation) bool {
		return e.canAnswer(op)
	})
	if at < 0 {
		return
	}

	op := due[at]
	e.mu.Lock()
	op.backoff = min(max(2*op.backoff, housekeeping), maxBackoff)
	op.again = e.o.Now().Add(op.backoff)
	e.mu.Unlock()

	if _, err := e.retry(ctx, op, false); err != nil {
		level.Debug(e.o.Logger).Log(
			"msg", "cannot resume an operation yet",
			"operation", op.Operation.ID,
			"err", err,
		)
	}
}

// retry resumes the rollback of an operation. Unless an operator has asked for it, the GPUs whose calls have not
// returned are left out.
func (e *Engine) retry(ctx context.Context, op *operation, asked bool) (*api.Operation, error) {
	if op.Operation.Verb == api.VerbRecovery {
		return nil, problemf(
			api.ReadOnly,
			"what operation %s was about is not known: accept it",
			op.Operation.ID,
		)
	}

	if p := e.reserve(ctx, op, op.gpus()...); p != nil {
		return nil, p
	}

	defer e.releaseReservation()
	e.mu.Lock()
	over := op.Operation.State.Final()
	e.mu.Unlock()

	if over { // another client has changed its GPUs
		return e.Operation(op.Operation.ID)
	}

	if p := e.retryProblem(op, "retry"); p != nil && (asked || p.Type != api.StuckNode) {
		return nil, p
	}

	op.task = doRollback
	switch {
	case op.resumes:
		op.task = doResume
	case op.Operation.Verb == api.VerbMode:
		op.task = doMode
	}

	e.mu.Lock()
	op.live = true
	e.current = op
	op.Operation.State = api.RollingBack
	e.mu.Unlock()
	e.setState(op, api.RollingBack, "it is tried again to finish the operation")
	e.queue <- op
	e.reportState()

	return e.Operation(op.Operation.ID)
}

// reviewDegraded ends operations that could not be rolled back on those of their GPUs that another client has changed
// since: they are never rolled back there. It is called with the reservation held.
func (e *Engine) reviewDegraded(ctx context.Context, gpus []gpu.UUID) {
	e.mu.Lock()
	left := slices.DeleteFunc(slices.Clone(e.operations), func(op *operation) bool {
		return op.Operation.State != api.Degraded
	})
	e.mu.Unlock()

	for _, op := range left {
		reviewed := false

		for _, p := range op.Parts {
			if !slices.Contains(gpus, p.GPU) || e.gpuState(op, p.GPU) != api.Degraded {
				continue
			}

			if err := e.reconcilePart(ctx, op, p); isForeign(err) {
				e.markForeign(ctx, op, err)
				reviewed = true
			}
		}

		if reviewed && !e.anyGPU(op, api.Degraded) && !e.anyGPU(op, api.Stuck) {
			state := api.Interrupted
			if !op.changed() {
				state = api.Failed
			}

			e.endOperation(
				ctx,
				op,
				state,
				problemf(
					api.LayoutChanged,
					"another client has changed the GPUs since: they are left as they are",
				),
			)
			e.reportState()
		} else if reviewed {
			_ = e.saveHistory() // if it cannot be saved, the engine is read-only
		}
	}
}
