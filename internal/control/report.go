package control

import (
	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// reports are the calls of observers that are still to be made. A goroutine of its own makes them in their order, so
// that an observer that hangs holds up nothing else.
type reports struct {
	state     string // reported last
	unsettled int    // reported last
	calls     []func()
	done      chan struct{} // closed when no call is left; nil while none is made
}

// reportState reports the state to the observers if it has changed, and so the number of unsettled operations; and
// the GPUs that are not restored.
func (e *Engine) reportState() {
	e.state.update(func(b *book) {
		r := &b.reports

		if now := b.status(); now != r.state && e.o.Observer != nil {
			r.calls = append(r.calls, func() { e.o.Observer.State(now) })
			r.state = now
		}

		if now := b.count(api.Unsettled); now != r.unsettled && e.o.Unsettled != nil {
			r.calls = append(r.calls, func() { e.o.Unsettled(now) })
			r.unsettled = now
		}

		if e.o.Unrestored != nil {
			list := b.listUnrestored()
			r.calls = append(r.calls, func() { e.o.Unrestored(list) })
		}
	})
	e.callObservers()
}

// countOperation reports an operation that has ended, or waits to be retried.
func (e *Engine) countOperation(op *operation, state api.OperationState) {
	if e.o.Observer == nil {
		return
	}

	took := e.o.Now().Sub(op.copy().Operation.Started)

	e.state.update(func(b *book) {
		b.reports.calls = append(b.reports.calls, func() {
			e.o.Observer.Operation(op.verb, string(state), took)
		})
	})
	e.callObservers()
}

// callObservers makes the calls that are due, unless that is under way.
func (e *Engine) callObservers() {
	idle := false

	e.state.update(func(b *book) {
		r := &b.reports

		idle = r.done == nil && len(r.calls) > 0
		if idle {
			r.done = make(chan struct{})
		}
	})

	if idle {
		go e.makeCalls()
	}
}

func (e *Engine) makeCalls() {
	for call := e.nextCall(); call != nil; call = e.nextCall() {
		call()
	}
}

// nextCall returns the call to be made next, nil if there is none.
func (e *Engine) nextCall() (call func()) {
	e.state.update(func(b *book) {
		r := &b.reports
		if len(r.calls) == 0 {
			close(r.done)
			r.done = nil

			return
		}

		call = r.calls[0]
		r.calls = r.calls[1:]
	})

	return call
}

// awaitReports waits until all calls are made, or Run has to return.
func (e *Engine) awaitReports() {
	done := read(e.state, func(b *book) chan struct{} { return b.reports.done })
	if done == nil {
		return
	}

	select {
	case <-done:
	case <-e.stopped:
	}
}
