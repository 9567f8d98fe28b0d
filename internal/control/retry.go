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

// matches reports whether live are the instances that the operation has left: those before its
// pending step, or those after it.
func (c *gpuChange) matches(live []mig.Instance) bool {
	if mig.SameInstances(live, c.Expected) {
		return true
	}

	if c.Pending == nil {
		return false
	}

	_, ok := c.Pending.Verify(c.Expected, live)

	return ok
}

// Accept closes an operation that could not be rolled back, and leaves its GPUs as they are. If the
// operation's verb is recovery, Accept replaces the damaged documents of the state folder.
func (e *Engine) Accept(ctx context.Context, by Actor, id string) (*api.Operation, error) {
	if p := e.checkMayApply(by); p != nil {
		return nil, p
	}

	op, p := e.findOperation(id)
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

	op.addWarning("%s has accepted the current layout", by.Name)

	gpus, _, err := e.readLayouts(ctx, op.gpus...)
	if err != nil {
		level.Warn(e.o.Logger).Log(
			"msg", "cannot read the GPUs of an accepted operation",
			"operation", id,
			"err", err,
		)
	}

	o := op.copy()
	for _, id := range o.openGPUs() {
		op.setGPU(id, api.Accepted, nil, instancesOn(gpus, id))
		e.views.end(id)        // endChanges leaves out a GPU with a driver call that hung
		e.views.addForeign(id) // the instances may be another client's
	}

	if op.verb == api.VerbRecovery {
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

// acceptDamage saves all documents again, and accepts all operations that were not over.
func (e *Engine) acceptDamage(ctx context.Context, op *operation) (*api.Operation, error) {
	var open []*operation

	e.state.update(func(b *book) {
		b.damaged = false
		b.readOnlyReason = ""
		open = b.list(func(o *entry) bool { return !o.Operation.State.Final() })
	})

	for _, o := range open {
		e.endOperation(ctx, o, api.Accepted, nil)
	}

	for range 2 { // both slots
		if err := e.saveOperation(op); err != nil {
			return nil, failureProblem(err)
		}
	}

	e.reportState()

	return e.Operation(op.id)
}

// isDegraded reports whether an operation in this state waits to be retried or accepted.
func isDegraded(state api.OperationState) bool {
	return state == api.Degraded || state == api.Stuck
}

// retryProblem returns a problem unless an operation can be retried or accepted now. verb is
// "retry" or "accept", for the problem's text.
func (e *Engine) retryProblem(op *operation, verb string) *api.Problem {
	o := op.copy()

	if state := o.Operation.State; !isDegraded(state) {
		return problemf(
			api.BadSpec,
			"operation %s is %s: there is nothing to %s",
			op.id,
			state,
			verb,
		)
	}

	for _, id := range o.openGPUs() {
		if e.hasHungCall(id) {
			p := problemf(
				api.StuckNode,
				"a driver call for %s has still not returned; try again, or reboot the node if it never does",
				id,
			)
			p.Operation = op.id

			return p
		}
	}

	return nil
}

// hasHungCall reports whether a driver call for a GPU has not returned after its timeout. It may
// still change the GPU.
func (e *Engine) hasHungCall(id gpu.UUID) bool {
	h, ok := e.o.Actuator.(Hanging)
	return ok && h.Hung(id)
}

// maxBackoff is the longest time between two attempts to resume an operation, or to run its hooks
// again. Attempts that fail must not keep the driver and the disk busy.
const maxBackoff = 5 * time.Minute

// retryDegraded resumes one operation whose driver call has returned, or that can be saved again.
// It tries at once, then at growing intervals.
func (e *Engine) retryDegraded(ctx context.Context) {
	var due []*operation

	now := e.o.Now()

	e.state.update(func(b *book) {
		if b.current == nil && b.readOnlyReason == "" && !b.recovering {
			due = b.list(func(o *entry) bool {
				return isDegraded(o.Operation.State) && o.retryable && o.retry.IsDue(now) &&
					(e.o.Apply || o.resumes)
			})
		}
	})

	at := slices.IndexFunc(due, e.isWorthRetrying)
	if at < 0 {
		return
	}

	op := due[at]
	op.change(func(o *entry) { o.retry.Postpone(now, housekeeping, maxBackoff) })

	if _, err := e.retry(ctx, op, false); err != nil {
		level.Debug(e.o.Logger).Log(
			"msg", "cannot resume an operation yet",
			"operation", op.id,
			"err", err,
		)
	}
}

// retry resumes the rollback of an operation. While a driver call for a GPU has not returned, it
// returns a problem if an operator has asked for it; else it rolls back the operation's other GPUs.
func (e *Engine) retry(ctx context.Context, op *operation, asked bool) (*api.Operation, error) {
	if op.verb == api.VerbRecovery {
		return nil, problemf(
			api.ReadOnly,
			"what operation %s was about is not known: accept it",
			op.id,
		)
	}

	if p := e.reserve(ctx, op, op.gpus...); p != nil {
		return nil, p
	}

	defer e.releaseReservation()

	if op.status().Final() { // another client has changed its GPUs
		return e.Operation(op.id)
	}

	if p := e.retryProblem(op, "retry"); p != nil && (asked || p.Type != api.StuckNode) {
		return nil, p
	}

	e.state.update(func(b *book) {
		o := op.in(b)
		o.task = doRollback

		switch {
		case o.resumes:
			o.task = doResume
		case op.verb == api.VerbMode:
			o.task = doMode
		}

		o.live = true
		o.Operation.State = api.RollingBack
		b.current = op
	})
	op.setState(api.RollingBack, "it is tried again to finish the operation")
	e.queue <- op
	e.reportState()

	return e.Operation(op.id)
}

// reviewDegraded looks at operations that could not be rolled back. If another client has changed
// one of the GPUs since, the operation gives that GPU up, and ends if it has no other left. The
// caller holds the reservation.
func (e *Engine) reviewDegraded(ctx context.Context, gpus []gpu.UUID) {
	degraded := read(e.state, func(b *book) []*operation {
		return b.list(func(o *entry) bool { return o.Operation.State == api.Degraded })
	})

	for _, op := range degraded {
		gaveUp := false

		for _, c := range op.copy().Changes {
			if !slices.Contains(gpus, c.GPU) || op.gpuState(c.GPU) != api.Degraded {
				continue
			}

			if err := e.reconcile(ctx, op, c.GPU); isForeign(err) {
				e.markForeign(ctx, op, err)
				gaveUp = true
			}
		}

		o := op.copy()
		if gaveUp && len(o.gpusIn(api.Degraded))+len(o.gpusIn(api.Stuck)) == 0 {
			state := api.Interrupted
			if !o.changed() {
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
		} else if gaveUp {
			_ = e.saveHistory() // if it cannot be saved, the engine is read-only
		}
	}
}
