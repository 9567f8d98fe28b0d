package control

import (
	"context"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Abandon closes an operation that could not be rolled back, and leaves the node as it is: for an operator who wants neither
// the layout before nor to wait.
func (e *Engine) Abandon(ctx context.Context, by Actor, id string) (*api.Operation, error) {
	if p := e.mayApply(by); p != nil {
		return nil, p
	}
	e.mu.Lock()
	op, p := e.find(id)
	e.mu.Unlock()
	if p != nil {
		return nil, p
	}
	if p := e.reserve(op); p != nil {
		return nil, p
	}
	defer e.release()
	e.mu.Lock()
	state := op.doc.State
	e.mu.Unlock()
	if over(state) {
		return nil, problemf(api.BadSpec, "operation %s is %s: there is nothing to abandon", id, state)
	}
	if p := e.hanging(op); p != nil {
		return nil, p
	}
	e.warn(op, "%s has abandoned it: the layout was left as it was found, neither the one before nor the one after", by.Name)
	e.open(ctx, op)
	e.end(op, api.Failed, nil)
	e.announce()
	return e.Operation(id)
}

// hanging is a problem while a driver call has not returned: what it does when it returns is unknown.
func (e *Engine) hanging(op *operation) *api.Problem {
	if h, ok := e.o.Actuator.(Hanging); !ok || h.HungCalls() == 0 {
		return nil
	}
	p := problemf(api.StuckNode, "a driver call has still not returned; try again, or reboot the node if it never does")
	p.Operation = op.doc.ID
	return p
}

// maxBackoff is the longest time between two attempts to take a stuck operation up again. One that gets stuck each time must
// not keep the driver and the disk busy.
const maxBackoff = 5 * time.Minute

// unstick takes a stuck operation up again by itself once its driver call has returned: at once, then ever more rarely.
func (e *Engine) unstick(ctx context.Context) {
	e.mu.Lock()
	op := e.waiting()
	due := e.o.Apply && op != nil && op.doc.State == api.Stuck && e.current == nil && !e.o.Now().Before(op.again)
	e.mu.Unlock()
	h, ok := e.o.Actuator.(Hanging)
	if !due || !ok || h.HungCalls() > 0 {
		return
	}
	op.backoff = min(max(2*op.backoff, housekeeping), maxBackoff)
	e.mu.Lock()
	op.again = e.o.Now().Add(op.backoff)
	e.mu.Unlock()
	if _, err := e.retry(ctx, op); err != nil {
		level.Debug(e.o.Logger).Log("msg", "A stuck operation cannot be taken up again yet", "operation", op.doc.ID, "err", err)
	}
}

// retry takes an operation up again where it could not be finished.
func (e *Engine) retry(ctx context.Context, op *operation) (*api.Operation, error) {
	if p := e.reserve(op); p != nil {
		return nil, p
	}
	defer e.release()
	if p := e.hanging(op); p != nil {
		return nil, p
	}
	if _, _, err := e.read(ctx); err != nil {
		return nil, driverProblem(err)
	}
	e.mu.Lock()
	if over(op.doc.State) {
		e.mu.Unlock()
		return e.Operation(op.doc.ID)
	}
	op.task, op.live = doUndo, true
	if op.begun.Operation.Verb == api.VerbMode {
		op.task = doMode
	}
	op.doc.State = api.RollingBack
	e.current = op
	e.tell(op, "state", gpu.None[int](), "the roll-back is tried again")
	e.mu.Unlock()
	e.queue <- op
	e.announce()
	return e.Operation(op.doc.ID)
}
