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

// answerTime is how long a GPU has to answer before an operation of the last process waits for it, so that a GPU that
// hangs delays the others no longer.
const answerTime = 2 * time.Second

// missingFacts returns what it takes to finish an operation of the last process and is not known yet: each completes
// the sentence "it waits for ...". A fact that is not known is not a different one.
func (e *Engine) missingFacts(ctx context.Context, op *operation) []string {
	if e.driverVersion(ctx) == "" {
		return []string{"the driver to say its version"}
	}

	silent := e.silentGPUs(ctx, op)
	if op.mayBeFinished() || len(silent) == len(e.openGPUs(op)) {
		return waitsForGPUs(silent)
	}

	return nil // it is rolled back on the others, and cannot have been finished
}

// silentGPUs reads all GPUs that an operation has not finished, at once, and returns those that do not answer soon.
func (e *Engine) silentGPUs(ctx context.Context, op *operation) []gpu.UUID {
	ctx, cancel := context.WithTimeout(ctx, min(answerTime, e.o.CallTimeout))
	defer cancel()

	open := e.openGPUs(op)
	if len(open) == 0 {
		return nil
	}

	list, _, err := e.readLayouts(ctx, open...)
	if err != nil {
		return open
	}

	return slices.DeleteFunc(open, func(id gpu.UUID) bool { return instancesOn(list, id) != nil })
}

// openGPUs returns the GPUs that an operation has not finished.
func (e *Engine) openGPUs(op *operation) []gpu.UUID {
	e.mu.Lock()
	defer e.mu.Unlock()

	var list []gpu.UUID

	for _, g := range op.Operation.GPUs {
		if !g.State.Final() {
			list = append(list, g.GPU)
		}
	}

	return list
}

// mayBeFinished reports whether all steps of an operation may have been done: then its GPUs decide together whether it
// is committed or rolled back.
func (op *operation) mayBeFinished() bool {
	undone := slices.ContainsFunc(op.Operation.Steps, func(s api.OperationStep) bool {
		return s.State != api.StepDone && s.State != api.StepRunning
	})

	return op.Cause == nil && !undone
}

func waitsForGPUs(ids []gpu.UUID) []string {
	var list []string
	for _, id := range ids {
		list = append(list, fmt.Sprintf("%s to answer", id))
	}

	return list
}

// deferToDriver leaves an operation of the last process until the driver answers; then it is resumed. It blocks its
// own GPUs meanwhile.
func (e *Engine) deferToDriver(op *operation, waits []string) {
	e.bindViews(op)

	for _, id := range e.openGPUs(op) {
		e.setGPU(op, id, api.Stuck, nil, nil)
	}

	p := problemf(
		api.StuckNode,
		"%s; it is finished once that is known: it waits for %s",
		errInterrupted,
		strings.Join(waits, ", and for "),
	)
	p.Operation = op.Operation.ID

	e.mu.Lock()
	told := slices.Equal(op.Operation.WaitsFor, waits)
	op.Operation.Error = p
	op.retryable = true
	op.resumes = true
	e.mu.Unlock()

	if !told {
		level.Warn(e.o.Logger).Log(
			"msg", "operation of the last run waits",
			"operation", op.Operation.ID,
			"for", strings.Join(waits, ", "),
		)
	}

	e.setWaiting(op, waits)
	e.setState(op, api.Stuck, string(api.Stuck))
}

// endWaiting notes that an operation is taken up again.
func (e *Engine) endWaiting(op *operation) {
	e.setWaiting(op, nil)
	e.mu.Lock()

	op.resumes = false
	if op.Operation.Error != nil && op.Operation.Error.Type == api.StuckNode {
		op.Operation.Error = op.Cause
	}

	e.mu.Unlock()
}

// canAnswer reports whether it makes sense to take up an operation again that waits for the driver: the last Snapshot
// has the driver's version and has read one of the GPUs that it waits for, or all of them if they decide together.
func (e *Engine) canAnswer(op *operation) bool {
	silent := e.gpusIn(op, api.Stuck)
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
	if op.resumes && op.mayBeFinished() {
		return len(silent) == 0
	}

	return len(silent) < all
}

// bindViews binds an operation of the last process to this process's view of its GPUs, if there is one: what other
// clients build while it waits is not its own. The operation itself may still do the step that was in flight, so that
// the instances alone decide about its GPU.
func (e *Engine) bindViews(op *operation) {
	e.mu.Lock()
	defer e.mu.Unlock()

	for _, p := range op.Parts {
		if p.Pending == nil && p.View.Process != e.views.process {
			p.View = e.views.mark(p.GPU)
		}
	}
}

// keepAlive notes on disk that this process is there and knows of the operations that wait for a driver call: the time
// until the next process begins counts from now.
func (e *Engine) keepAlive() {
	e.mu.Lock()
	waiting := false

	for _, op := range e.operations {
		if op.Operation.State == api.Stuck && op.absence == "" {
			op.Written = e.o.Now()
			waiting = true
		}
	}

	due := waiting && e.current == nil && e.unusable == ""
	e.mu.Unlock()

	if due {
		_ = e.saveHistory() // if it cannot be saved, the engine is read-only
	}
}

// driverVersion returns the driver version in the last Snapshot, "" if it is not known. Before the first Snapshot it
// polls.
func (e *Engine) driverVersion(ctx context.Context) string {
	if e.o.Poller.Current() == nil {
		callCtx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
		defer cancel()
		_ = e.o.Poller.Poll(callCtx, nil) // if it fails, the version stays unknown
	}

	return e.polledDriver()
}

// polledDriver returns the driver version in the last Snapshot, "" if it is not known.
func (e *Engine) polledDriver() string {
	s := e.o.Poller.Current()
	if s == nil {
		return ""
	}

	d, _ := s.Driver.Get()

	return d.Version
}
