package control

import (
	"context"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// HoldOperations keeps operations from beginning until release is called. It returns an error while
// one is under way, or waits for the kubelet. Right after the start it waits, as requests do.
func (e *Engine) HoldOperations(ctx context.Context) (release func(), err error) {
	select {
	case <-e.started:
	case <-ctx.Done():
	}

	e.state.update(func(b *book) {
		if err = b.refuseHold(); err == nil {
			b.reserved = true
		}
	})

	if err != nil {
		return nil, err
	}

	return e.releaseReservation, nil
}

// refuseHold returns why operations cannot be kept from beginning now, nil if they can.
func (b *book) refuseHold() error {
	switch {
	case b.current != nil:
		return problemf(
			api.InProgress,
			"operation %s of partition control is %s",
			b.current.id,
			b.current.in(b).Operation.State,
		)

	case b.reserved:
		return problemf(
			api.InProgress,
			"a request to partition control is being checked; try again",
		)

	case b.status() == running:
		return problemf(api.InProgress, "an operation of partition control is not finished")
	default:
		return nil
	}
}
