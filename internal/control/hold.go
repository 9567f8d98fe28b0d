package control

import (
	"context"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// HoldOperations keeps operations from beginning until release is called. It is refused while one is under way, or
// waits for the kubelet. Right after the start it waits, as requests do.
func (e *Engine) HoldOperations(ctx context.Context) (release func(), err error) {
	select {
	case <-e.started:
	case <-ctx.Done():
	}

	e.mu.Lock()
	defer e.mu.Unlock()

	if e.current == nil && !e.reserved && e.state() == running {
		return nil, problemf(api.InProgress, "an operation of partition control is not finished")
	}

	switch {
	case e.current != nil:
		return nil, problemf(
			api.InProgress,
			"operation %s of partition control is %s",
			e.current.Operation.ID,
			e.current.Operation.State,
		)
	case e.reserved:
		return nil, problemf(
			api.InProgress,
			"a request to partition control is being checked; try again",
		)
	}

	e.reserved = true

	return e.releaseReservation, nil
}
