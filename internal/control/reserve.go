package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"time"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// startTimeout is how long a request waits until what the last process left is finished.
const startTimeout = 10 * time.Second

// reserve reserves the engine's one current operation for a request that is being checked, until releaseReservation.
// Other operations must not block any of the GPUs; retried is the one that is to be taken up again, which does not
// block itself.
func (e *Engine) reserve(ctx context.Context, retried *operation, gpus ...gpu.UUID) *api.Problem {
	select { // a request that comes right after the start waits, instead of being refused
	case <-e.started:
	case <-ctx.Done():
	case <-time.After(startTimeout):
	}

	e.awaitCleared(ctx)
	e.repairStore()

	if p := e.claimReservation(retried); p != nil {
		return p
	}

	e.reviewDegraded(ctx, gpus)
	e.mu.Lock()
	defer e.mu.Unlock()

	for _, id := range gpus {
		if op, state := e.blockingOperation(id); op != nil && op != retried {
			e.reserved = false
			return blockedProblem(op, id, state)
		}
	}

	return nil
}

// awaitCleared waits while the current operation has nothing left to do, but its end is still being written: the client
// may have seen that it has ended.
func (e *Engine) awaitCleared(ctx context.Context) {
	e.mu.Lock()
	if e.current == nil || !e.current.isDone() {
		e.mu.Unlock()
		return
	}

	if e.cleared == nil {
		e.cleared = make(chan struct{})
	}

	cleared := e.cleared
	e.mu.Unlock()

	select {
	case <-cleared:
	case <-ctx.Done():
	case <-time.After(startTimeout):
	}
}

// isDone reports whether an operation is over, or waits for the kubelet or for an operator. It is called with the
// engine's mu held.
func (op *operation) isDone() bool {
	state := op.Operation.State
	return state.Final() || state == api.Settling || isDegraded(state)
}

func (e *Engine) claimReservation(retried *operation) *api.Problem {
	e.mu.Lock()
	defer e.mu.Unlock()

	switch {
	case e.current != nil:
		p := problemf(
			api.InProgress,
			"operation %s (%s) is %s",
			e.current.Operation.ID,
			e.current.Operation.Verb,
			e.current.Operation.State,
		)
		p.Operation = e.current.Operation.ID

		return p
	case e.recovering:
		return problemf(
			api.InProgress,
			"what the last run of the exporter left is being finished; try again",
		)
	case e.reserved:
		return problemf(api.InProgress, "another request is being checked; try again")
	case e.unusable != "" && (retried == nil || retried.Operation.Verb != api.VerbRecovery):
		return problemf(api.ReadOnly, "%s", e.unusable)
	}

	e.reserved = true

	return nil
}

func (e *Engine) releaseReservation() {
	e.mu.Lock()
	e.reserved = false
	e.mu.Unlock()
}

// blockingOperation returns the operation that keeps a GPU from being changed, and its state there. It is called with
// mu held.
func (e *Engine) blockingOperation(id gpu.UUID) (*operation, api.OperationState) {
	for _, op := range e.operations {
		if op == e.current || op.Operation.State.Final() {
			continue
		}

		for _, g := range op.Operation.GPUs {
			if g.GPU == id && !g.State.Final() {
				return op, g.State
			}
		}
	}

	return nil, ""
}

func blockedProblem(op *operation, id gpu.UUID, state api.OperationState) *api.Problem {
	kind := api.DegradedNode
	text := "operation %s could not be rolled back on %s: retry its rollback, or accept the " +
		"current layout"

	switch state {
	case api.Stuck:
		kind = api.StuckNode
		text = "a driver call of operation %s on %s has not returned: its rollback goes on when it does"
	case api.Settling:
		kind = api.InProgress
		text = "operation %s waits until the kubelet shows the devices of %s: wait for it, or end " +
			"that wait"
	}

	p := problemf(kind, text, op.Operation.ID, id)
	if state == api.Stuck && op.resumes {
		p.Detail = fmt.Sprintf(
			"operation %s of the last run is not finished on %s yet: it waits for %s",
			op.Operation.ID,
			id,
			strings.Join(op.Operation.WaitsFor, ", and for "),
		)
	}

	p.Operation = op.Operation.ID

	return p
}

// blockedGPUs lists the GPUs that cannot be changed now, with the operation that keeps each. It is called with mu held.
func (e *Engine) blockedGPUs() map[gpu.UUID]string {
	list := map[gpu.UUID]string{}

	for _, op := range e.operations {
		for _, g := range op.Operation.GPUs {
			if by, _ := e.blockingOperation(g.GPU); by != nil {
				list[g.GPU] = by.Operation.ID
			}
		}
	}

	return list
}

// repairStore makes the engine usable again if a state folder that could not be written can be written now.
func (e *Engine) repairStore() {
	e.mu.Lock()
	due := e.unusable != "" && e.loaded && !e.damaged && e.current == nil
	e.mu.Unlock()

	if !due {
		return
	}

	e.saving.Lock()
	err := e.reopenStore()
	e.saving.Unlock()

	if err != nil {
		e.setUnusable(err)
		return
	}

	e.mu.Lock()
	e.unusable = ""
	e.mu.Unlock()
	level.Info(e.o.Logger).Log("msg", "state folder of partition control is usable again")
	e.reportState()
}

// stateText describes why a state folder cannot be used, without a path of the node unless that is what an operator has
// to correct.
func stateText(err error) string {
	var errno syscall.Errno
	switch {
	case errors.Is(err, ErrStateForeign):
		return ErrStateForeign.Error()
	case errors.Is(err, ErrStateReplaced):
		return ErrStateReplaced.Error()
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "no room is left on its disk"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return "it cannot be written"
	case errors.As(err, &errno):
		return errno.Error()
	}

	return strings.TrimPrefix(err.Error(), "open state folder: ")
}
