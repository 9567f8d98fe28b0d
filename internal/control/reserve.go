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

// startTimeout is how long a request waits until we have finished what the last process left.
const startTimeout = 10 * time.Second

// reserve keeps other requests from beginning an operation while we check this one; the caller ends
// that with releaseReservation. It blocks for up to twice startTimeout. It returns a problem if an
// operation is under way, or if one blocks any of the GPUs. retried is the operation that the
// request resumes, which does not block itself; nil if the request begins a new one.
func (e *Engine) reserve(ctx context.Context, retried *operation, gpus ...gpu.UUID) *api.Problem {
	// We don't refuse a request that comes right after the start; it waits.
	select {
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

	for _, id := range gpus {
		if op := e.blockingOperation(id); op != nil && op != retried {
			e.releaseReservation()
			return blockedProblem(op, id)
		}
	}

	return nil
}

// awaitCleared blocks while we still save the end of an operation that has nothing left to do: a
// client may have seen that it has ended, and ask for the next one.
func (e *Engine) awaitCleared(ctx context.Context) {
	var cleared chan struct{}

	e.state.update(func(b *book) {
		if b.current == nil || !b.current.in(b).isDone() {
			return
		}

		if b.cleared == nil {
			b.cleared = make(chan struct{})
		}

		cleared = b.cleared
	})

	if cleared == nil {
		return
	}

	select {
	case <-cleared:
	case <-ctx.Done():
	case <-time.After(startTimeout):
	}
}

// isDone reports whether an operation is over, or waits for the kubelet or for an operator.
func (o *entry) isDone() bool {
	state := o.Operation.State
	return state.Final() || state == api.Settling || isDegraded(state)
}

func (e *Engine) claimReservation(retried *operation) (p *api.Problem) {
	e.state.update(func(b *book) {
		if p = b.refuse(retried); p == nil {
			b.reserved = true
		}
	})

	return p
}

// refuse returns why we can check no request now, or nil. See reserve about retried.
func (b *book) refuse(retried *operation) *api.Problem {
	switch {
	case b.current != nil:
		p := problemf(
			api.InProgress,
			"operation %s (%s) is %s",
			b.current.id,
			b.current.verb,
			b.current.in(b).Operation.State,
		)
		p.Operation = b.current.id

		return p
	case b.recovering:
		return problemf(
			api.InProgress,
			"what the last run of the exporter left is being finished; try again",
		)
	case b.reserved:
		return problemf(api.InProgress, "another request is being checked; try again")
	case b.readOnlyReason != "" && (retried == nil || retried.verb != api.VerbRecovery):
		return problemf(api.ReadOnly, "%s", b.readOnlyReason)
	default:
		return nil
	}
}

func (e *Engine) releaseReservation() {
	e.state.update(func(b *book) { b.reserved = false })
}

// blockingOperation returns the operation that keeps a GPU from being changed, nil if there is
// none.
func (e *Engine) blockingOperation(id gpu.UUID) *operation {
	return read(e.state, func(b *book) *operation { return b.blocking(id) })
}

// checkBlocked returns a problem if an operation keeps a GPU from being changed.
func (e *Engine) checkBlocked(id gpu.UUID) *api.Problem {
	if op := e.blockingOperation(id); op != nil {
		return blockedProblem(op, id)
	}

	return nil
}

func blockedProblem(op *operation, id gpu.UUID) *api.Problem {
	o := op.copy()
	state := o.gpuState(id)
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

	p := problemf(kind, text, op.id, id)
	if state == api.Stuck && o.resumes {
		p.Detail = fmt.Sprintf(
			"operation %s of the last run is not finished on %s yet: it waits for %s",
			op.id,
			id,
			strings.Join(o.Operation.WaitsFor, ", and for "),
		)
	}

	p.Operation = op.id

	return p
}

// repairStore makes the engine usable again if the state folder can be written again. It does not
// wait for a store call that hangs.
func (e *Engine) repairStore() {
	due := read(e.state, func(b *book) bool {
		return b.readOnlyReason != "" && b.loaded && !b.damaged && b.current == nil
	})
	if !due || e.saving.isTaken() {
		return
	}

	if err := e.useStore(e.reopenStore); err != nil {
		e.setUnusable(err)
		return
	}

	e.state.update(func(b *book) { b.readOnlyReason = "" })
	level.Info(e.o.Logger).Log("msg", "state folder of partition control is usable again")
	e.reportState()
}

// stateText describes why a state folder cannot be used. It names a path of the node only if an
// operator has to correct its rights.
func stateText(err error) string {
	var errno syscall.Errno
	switch {
	case errors.Is(err, ErrStateForeign):
		return ErrStateForeign.Error()
	case errors.Is(err, ErrStateReplaced):
		return ErrStateReplaced.Error()
	case errors.Is(err, errStoreHangs):
		return errStoreHangs.Error()
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "no room is left on its disk"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return "it cannot be written"
	case errors.As(err, &errno):
		return errno.Error()
	}

	return strings.TrimPrefix(err.Error(), "open state folder: ")
}
