package control

import (
	"context"
	"slices"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// cordonNode keeps new pods away while GPUs are repartitioned. It first saves that it is about to, so
// that a start after a crash can uncordon the node. Cordon marks the node with an annotation, so that
// we never undo another's cordon.
func (e *Engine) cordonNode(ctx context.Context, op *operation) error {
	if e.o.Cluster == nil || !e.o.Cordon {
		return nil
	}

	if err := e.takeCordoning(ctx); err != nil {
		op.warnNotCordoned(err)
		return nil
	}

	defer e.cordoning.release()

	return e.cordonInTurn(ctx, op)
}

// cordonInTurn cordons the node; the caller has taken the turn. It returns an error only if it
// cannot save that it is about to: then it calls nothing. If the call fails, the operation goes on
// with a warning.
func (e *Engine) cordonInTurn(ctx context.Context, op *operation) error {
	op.setCordoned(true)

	if err := e.saveOperation(op); err != nil {
		op.setCordoned(false)
		return err
	}

	callCtx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()

	if _, err := e.o.Cluster.Cordon(callCtx); err != nil {
		op.warnNotCordoned(err) // Cordoned stays set: a failed call may still have cordoned the node
	}

	return nil
}

func (op *operation) warnNotCordoned(err error) {
	op.addWarning(
		"the node could not be cordoned (%s): pods may be given new devices before all is done",
		reasonText(err),
	)
}

// takeCordoning waits for the turn to cordon the node: another operation may be calling the API
// server and then saving, each of which takes a call timeout at most.
func (e *Engine) takeCordoning(ctx context.Context) error {
	waitCtx, cancel := context.WithTimeout(ctx, 2*e.o.CallTimeout)
	defer cancel()

	return e.cordoning.take(waitCtx)
}

func (op *operation) setCordoned(cordoned bool) {
	op.change(func(o *entry) { o.Cordoned = cordoned })
}

// needsCordon reports whether pods must still be kept from the node because of the operation.
func (o *entry) needsCordon() bool {
	state := o.Operation.State

	// Unsettled is a final state, but the kubelet may not offer the layout yet.
	return o.Cordoned && (!state.Final() || state == api.Unsettled && !o.layoutOffered)
}

// uncordonNode undoes this program's cordon when the last operation that wants it ends. If it
// fails, Run retries it, and so does the program's next start.
func (e *Engine) uncordonNode(ctx context.Context, op *operation) {
	if !op.copy().Cordoned || e.o.Cluster == nil {
		return
	}

	err := e.takeCordoning(ctx)
	if err == nil {
		defer e.cordoning.release()

		err = e.uncordonUnlessWanted(ctx, op)
	}

	if err != nil {
		level.Warn(e.o.Logger).Log(
			"msg", "node is still cordoned",
			"operation", op.id,
			"err", err,
		)
		op.addWarning("the node is still cordoned (%s): uncordoning is retried", reasonText(err))
	}
}

// uncordonUnlessWanted ends the cordon of an operation. It uncordons the node unless another
// operation needs the cordon.
func (e *Engine) uncordonUnlessWanted(ctx context.Context, op *operation) error {
	if !op.copy().Cordoned { // another goroutine has done it
		return nil
	}

	wanted := read(e.state, func(b *book) bool {
		return slices.ContainsFunc(b.operations, func(other *operation) bool {
			return other != op && other.in(b).needsCordon()
		})
	})

	if !wanted {
		callCtx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
		defer cancel()

		if err := e.o.Cluster.Uncordon(callCtx); err != nil {
			return err
		}
	}

	op.setCordoned(false)

	return nil
}

// retryUncordon retries the uncordoning that an ended operation failed to do. If several have, it
// retries one: a call that fails would only fail for the others, too, and Run calls again soon.
func (e *Engine) retryUncordon(ctx context.Context) {
	var left []*operation

	e.state.update(func(b *book) {
		if b.current == nil && b.readOnlyReason == "" {
			left = b.list(func(o *entry) bool { return o.Cordoned && !o.needsCordon() })
		}
	})

	if len(left) == 0 {
		return
	}

	e.uncordonNode(ctx, left[0])

	if !left[0].copy().Cordoned {
		_ = e.saveHistory() // if it cannot be saved, the engine is read-only
	}
}
