package control

import "github.com/mig-exporter/mig-exporter/internal/control/api"

// maxReports is how many calls of observers can be due. If there are more, an observer hangs, and we
// drop them.
const maxReports = 256

// reportState queues calls of the observers: of State and Unsettled if their values have changed, of
// Unrestored and Wanted in any case. The goroutine of startReporting makes the calls, in their
// order.
func (e *Engine) reportState() {
	e.state.update(func(b *book) {
		now := b.status()
		if e.o.Observer != nil && now != b.reportedState &&
			enqueue(e.reports, func() { e.o.Observer.State(now) }) {
			b.reportedState = now
		}

		unsettled := b.count(api.Unsettled)
		if e.o.Unsettled != nil && unsettled != b.reportedUnsettled &&
			enqueue(e.reports, func() { e.o.Unsettled(unsettled) }) {
			b.reportedUnsettled = unsettled
		}

		if e.o.Unrestored != nil {
			list := b.listUnrestored()
			enqueue(e.reports, func() { e.o.Unrestored(list) })
		}

		if e.o.Wanted != nil {
			list := b.listWanted()
			enqueue(e.reports, func() { e.o.Wanted(list) })
		}
	})
}

// countOperation reports an operation that has ended, or waits to be retried, to the Observer too.
func (e *Engine) countOperation(op *operation, state api.OperationState) {
	if e.o.Observer != nil {
		took := e.o.Now().Sub(op.copy().Operation.Started)
		enqueue(e.reports, func() { e.o.Observer.Operation(op.verb, string(state), took) })
	}

	e.reportEnd(op)
}

// reportEnd reports an operation that has ended, or waits to be retried, with its changes.
func (e *Engine) reportEnd(op *operation) {
	if e.o.Ended == nil {
		return
	}

	r := op.copy().record
	ended := Ended{Operation: r.document()}

	for _, c := range r.Changes {
		ended.Changes = append(ended.Changes, LayoutChange{GPU: c.GPU, Before: c.Before, After: c.After})
	}

	enqueue(e.reports, func() { e.o.Ended(ended) })
}

// listWanted lists the layouts that a restore would make.
func (b *book) listWanted() []WantedLayout {
	list := make([]WantedLayout, 0, len(b.layouts))
	for _, l := range b.layouts {
		list = append(list, WantedLayout(l))
	}

	return list
}

// enqueue queues a call if there is room, and reports whether there was.
func enqueue(to chan<- func(), call func()) bool {
	select {
	case to <- call:
		return true
	default:
		return false
	}
}

// startReporting makes the calls that are due until stop is called.
func (e *Engine) startReporting() (stop func()) {
	over := make(chan struct{})
	ended := make(chan struct{})

	go func() {
		defer close(ended)

		for !isClosed(over) {
			select {
			case call := <-e.reports:
				call()
			case <-over:
			}
		}
	}()

	return func() {
		close(over)

		select {
		case <-ended:
		case <-e.stopped: // an observer hangs
		}
	}
}
