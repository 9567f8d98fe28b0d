package control

import (
	"context"
	"slices"

	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// cordonNode keeps new pods away while GPUs are repartitioned. The intent is saved first, and an annotation on
// the node marks the cordon as this program's: so a crash does not leave it, and no other cordon is undone.
func (e *Engine) cordonNode(ctx context.Context, op *operation) error {
	if e.o.Cluster == nil || !e.o.Cordon {
		return nil
	}

	e.cordoning.Lock()
	defer e.cordoning.Unlock()

	e.setCordoned(op, true)

	if err := e.saveOperation(op); err != nil {
		e.setCordoned(op, false)
		return err
	}

	callCtx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()

	if _, err := e.o.Cluster.Cordon(callCtx); err != nil {
		e.addWarning(
			op,
			"the node could not be cordoned (%s): pods may be given new devices before all is done",
			reasonText(err),
		)
	}

	return nil
}

func (e *Engine) setCordoned(op *operation, cordoned bool) {
	e.mu.Lock()
	op.Cordoned = cordoned
	e.mu.Unlock()
}

// needsCordon reports whether pods must still be kept from the node because of the operation. It is called with the
// engine's mu held.
func (op *operation) needsCordon() bool {
	state := op.Operation.State
	return op.Cordoned && (!state.Final() || state == api.Unsettled && !op.offered)
}

// uncordonNode undoes this program's cordon when the last operation that wants it ends. If it fails, Run tries it
// again, and the next start.
func (e *Engine) uncordonNode(ctx context.Context, op *operation) {
	e.cordoning.Lock()
	defer e.cordoning.Unlock()

	e.mu.Lock()
	mine := op.Cordoned && e.o.Cluster != nil
	wanted := slices.ContainsFunc(e.operations, func(o *operation) bool {
		return o != op && o.needsCordon()
	})
	e.mu.Unlock()

	if !mine {
		return
	}

	if !wanted {
		callCtx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
		defer cancel()

		if err := e.o.Cluster.Uncordon(callCtx); err != nil {
			level.Warn(e.o.Logger).Log(
				"msg", "node is still cordoned",
				"operation", op.Operation.ID,
				"err", err,
			)
			e.addWarning(
				op,
				"the node is still cordoned (%s): uncordoning is retried",
				reasonText(err),
			)

			return
		}
	}

	e.setCordoned(op, false)
}

// retryUncordon uncordons the node if an operation that needs the cordon no more could not undo it.
func (e *Engine) retryUncordon(ctx context.Context) {
	e.mu.Lock()
	at := slices.IndexFunc(
		e.operations,
		func(op *operation) bool { return op.Cordoned && !op.needsCordon() },
	)

	var op *operation
	if at >= 0 && e.current == nil && e.unusable == "" {
		op = e.operations[at]
	}

	e.mu.Unlock()

	if op == nil {
		return
	}

	e.uncordonNode(ctx, op)

	e.mu.Lock()
	cordoned := op.Cordoned
	e.mu.Unlock()

	if !cordoned {
		_ = e.saveHistory() // if it cannot be saved, the engine is read-only
	}
}
