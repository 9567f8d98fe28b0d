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

// answerTime is how long a GPU has to answer before an operation of the last process waits for it,
// so that a GPU that hangs delays the others no longer.
const answerTime = 2 * time.Second

// missingFacts returns what we still do not know and need to finish an operation of the last
// process: each completes the sentence "it waits for ...". An unknown fact is not a different one.
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

	return nil // it is rolled back on the others, and cannot have been finished
}

// silentGPUs reads GPUs, at once, and returns those that do not answer soon.
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

// mayBeFinished reports whether all steps of an operation may have been done: then its GPUs decide
// together whether it is committed or rolled back.
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

// deferToDriver leaves an operation of the last process until the driver answers; then it is
// resumed. It blocks its own GPUs meanwhile.
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

// endWaiting notes that an operation is taken up again.
func (e *Engine) endWaiting(op *operation) {
	op.setWaiting(nil)
	op.change(func(o *entry) {
		o.resumes = false
		if o.Operation.Error != nil && o.Operation.Error.Type == api.StuckNode {
			o.Operation.Error = o.Cause
		}
	})
}

// canAnswer reports whether it makes sense to take up an operation again that waits for the driver:
// the last Snapshot has the driver's version and has read one of the GPUs that it waits for, or all
// of them if they decide together.
func (e *Engine) canAnswer(op *operation) bool {
	o := op.copy()

	silent := o.gpusIn(api.Stuck)
	if len(silent) == 0 {
		return e.retryProblem(op, "retry") == nil
	}

	s := e.o.Poller.Current()
	if s == nil || e.polledDriver() == "" {
		return false
	}

	all := len(silent)

	silent = slices.DeleteFunc(silent, func(id gpu.UUID) bool {
		up := slices.ContainsFunc(s.GPUs, func(g gpu.GPU) bool { return g.UUID == id && g.Up })
		return up && !e.hasHungCall(id)
	})
	if o.resumes && o.mayBeFinished() {
		return len(silent) == 0
	}

	return len(silent) < all
}

// bindViews binds an operation of the last process to this process's view of its GPUs, if there is
// one: what other clients build while it waits is not its own. The operation itself may still do
// the step that was in flight, so that the instances alone decide about its GPU.
func (e *Engine) bindViews(op *operation) {
	for _, c := range op.copy().Changes {
		if c.Pending == nil && c.View.Process != e.views.process {
			c.View = e.views.mark(c.GPU)
			op.setChange(c)
		}
	}
}

// keepAlive notes on disk that this process is there and knows of the operations that wait for a
// driver call: the time until the next process begins counts from now.
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

		due = len(waiting) > 0 && b.current == nil && b.unusable == ""
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
