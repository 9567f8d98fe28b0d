package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// answerTime is how long we wait for a GPU's answer before we defer the operation of the last
// process. It is short, since the other operations wait meanwhile.
const answerTime = 2 * time.Second

// missingFacts returns the facts that we still need to finish an operation of the last process:
// each completes the sentence "it waits for ...". We must not take a fact that we don't know for one
// that has changed.
func (e *Engine) missingFacts(ctx context.Context, op *operation) []string {
	if e.driverVersion(ctx) == "" {
		return []string{"the driver to say its version"}
	}

	o := op.copy()
	open := o.openGPUs()
	silent := e.silentGPUs(ctx, open)

	if o.mayBeFinished() || len(silent) == len(open) {
		return waitsForGPUs(silent)
	}

	// Not all steps were done, so the operation is rolled back whatever the silent GPUs say: we can
	// begin with the others.
	return nil
}

// silentGPUs reads GPUs and returns those that do not answer within answerTime.
func (e *Engine) silentGPUs(ctx context.Context, ids []gpu.UUID) []gpu.UUID {
	ctx, cancel := context.WithTimeout(ctx, min(answerTime, e.o.CallTimeout))
	defer cancel()

	if len(ids) == 0 {
		return nil
	}

	list, _, err := e.readLayouts(ctx, ids...)
	if err != nil {
		return ids
	}

	return slices.DeleteFunc(slices.Clone(ids), func(id gpu.UUID) bool { return instancesOn(list, id) != nil })
}

// mayBeFinished reports whether all steps of an operation may have been done: then we need an answer
// from all its GPUs to know whether to commit it or to roll it back.
func (r *record) mayBeFinished() bool {
	undone := slices.ContainsFunc(r.Operation.Steps, func(s api.OperationStep) bool {
		return s.State != api.StepDone && s.State != api.StepRunning
	})

	return r.Cause == nil && !undone
}

func waitsForGPUs(ids []gpu.UUID) []string {
	var list []string
	for _, id := range ids {
		list = append(list, fmt.Sprintf("%s to answer", id))
	}

	return list
}

// deferToDriver leaves an operation of the last process until the driver answers; then
// retryDegraded resumes it. The operation blocks its own GPUs meanwhile.
func (e *Engine) deferToDriver(op *operation, waits []string) {
	e.bindViews(op)

	o := op.copy()
	for _, id := range o.openGPUs() {
		op.setGPU(id, api.Stuck, nil, nil)
	}

	p := problemf(
		api.StuckNode,
		"%s; it is finished once that is known: it waits for %s",
		errInterrupted,
		strings.Join(waits, ", and for "),
	)
	p.Operation = op.id

	op.change(func(o *entry) {
		o.Operation.Error = p
		o.retryable = true
		o.resumes = true
	})

	if !slices.Equal(o.Operation.WaitsFor, waits) {
		level.Warn(e.o.Logger).Log(
			"msg", "operation of the last run waits",
			"operation", op.id,
			"for", strings.Join(waits, ", "),
		)
	}

	op.setWaiting(waits)
	op.setState(api.Stuck, string(api.Stuck))
}

// endWaiting ends the wait that deferToDriver began.
func (e *Engine) endWaiting(op *operation) {
	op.setWaiting(nil)
	op.change(func(o *entry) {
		o.resumes = false
		if o.Operation.Error != nil && o.Operation.Error.Type == api.StuckNode {
			o.Operation.Error = o.Cause
		}
	})
}

// isWorthRetrying reports whether it makes sense to resume an operation that waits for the driver:
// the last Snapshot has the driver's version and one of the GPUs that the operation waits for, or
// all of them if we need them all, see mayBeFinished.
func (e *Engine) isWorthRetrying(op *operation) bool {
	o := op.copy()

	silent := o.gpusIn(api.Stuck)
	if len(silent) == 0 {
		return e.retryProblem(op, "retry") == nil
	}

	s := e.o.Poller.Current()
	if s == nil || e.polledDriver() == "" {
		return false
	}

	answers := func(id gpu.UUID) bool {
		up := slices.ContainsFunc(s.GPUs, func(g gpu.GPU) bool { return g.UUID == id && g.Up })
		return up && !e.hasHungCall(id)
	}
	if o.resumes && o.mayBeFinished() {
		return !slices.ContainsFunc(silent, func(id gpu.UUID) bool { return !answers(id) })
	}

	return slices.ContainsFunc(silent, answers)
}

// bindViews makes this process's marks those of an operation of the last process: if another client
// changes the GPUs while the operation waits, the operation must not take the result for its own. It
// leaves out a GPU with a pending step: the driver may still perform that step, which we could not
// tell from another client's change.
func (e *Engine) bindViews(op *operation) {
	for _, c := range op.copy().Changes {
		if c.Pending == nil && c.View.Process != e.views.process {
			c.View = e.views.mark(c.GPU)
			op.setChange(c)
		}
	}
}

// keepAlive saves that this process still watches over the operations that wait for a driver call.
// After a restart, maxAway counts from the last such save.
func (e *Engine) keepAlive() {
	due := false
	now := e.o.Now()

	e.state.update(func(b *book) {
		waiting := b.list(func(o *entry) bool {
			return o.Operation.State == api.Stuck && o.absence == ""
		})
		for _, op := range waiting {
			op.in(b).Written = now
		}

		due = len(waiting) > 0 && b.current == nil && b.readOnlyReason == ""
	})

	if due {
		_ = e.saveHistory() // if it cannot be saved, the engine is read-only
	}
}

// driverVersion returns the driver version in the last Snapshot, "" if unknown. Before the
// first Snapshot it polls.
func (e *Engine) driverVersion(ctx context.Context) string {
	if e.o.Poller.Current() == nil {
		callCtx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
		defer cancel()
		_ = e.o.Poller.Poll(callCtx, nil) // if it fails, the version stays unknown
	}

	return e.polledDriver()
}

// polledDriver returns the driver version in the last Snapshot, "" if unknown.
func (e *Engine) polledDriver() string {
	s := e.o.Poller.Current()
	if s == nil {
		return ""
	}

	d, _ := s.Driver.Get()

	return d.Version
}
