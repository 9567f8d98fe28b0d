package server

import (
	"context"
	"slices"
	"sync"
)

// planQueue bounds the plans that are computed at once. At most one of them belongs to a given
// caller, and callers take turns: before a caller gets its second turn, every other waiting caller
// gets its first. One caller can therefore neither occupy all slots nor delay another caller by
// more than one plan of each caller ahead of it.
type planQueue struct {
	slots     int // limit of plans that are computed at once
	perCaller int // limit of one caller's tickets

	mu      sync.Mutex
	running int                    // plans that are being computed
	callers map[string]*planCaller // by name
	// turns are the callers that wait and have no plan being computed; the first one is next.
	turns []*planCaller
}

// planCaller is a caller with calls in the queue.
type planCaller struct {
	calls   int           // its tickets, also of calls that do not wait for their turn yet
	running *planTicket   // nil if none of its plans is being computed
	waiting []*planTicket // for their turn, the oldest first
}

// planTicket is the place of one call in the queue, from enqueue to release.
type planTicket struct {
	queue  *planQueue
	name   string
	caller *planCaller
	start  chan struct{} // closed when the plan may be computed
}

func newPlanQueue(slots, perCaller int) *planQueue {
	return &planQueue{slots: slots, perCaller: perCaller, callers: make(map[string]*planCaller)}
}

// enqueue returns a place in the queue, which the call must release, or nil if the caller has
// reached its limit.
func (q *planQueue) enqueue(name string) *planTicket {
	q.mu.Lock()
	defer q.mu.Unlock()

	caller := q.callers[name]
	if caller == nil {
		caller = new(planCaller)
		q.callers[name] = caller
	}

	if caller.calls >= q.perCaller {
		return nil
	}

	caller.calls++

	return &planTicket{queue: q, name: name, caller: caller, start: make(chan struct{})}
}

// waitTurn blocks until the plan may be computed or ctx ends. With an error, the plan must not be
// computed.
func (t *planTicket) waitTurn(ctx context.Context) error {
	q := t.queue
	q.mu.Lock()
	t.caller.waiting = append(t.caller.waiting, t)
	q.schedule(t.caller)
	q.mu.Unlock()

	select {
	case <-t.start:
	case <-ctx.Done():
	}

	return ctx.Err() // also if both happened: no client waits for the plan
}

// release gives up the call's place in the queue, whether it waits or is being computed.
func (t *planTicket) release() {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()

	if t.caller.running == t {
		t.caller.running = nil
		q.running--
	} else if i := slices.Index(t.caller.waiting, t); i >= 0 {
		t.caller.waiting = slices.Delete(t.caller.waiting, i, i+1)
	}

	if t.caller.calls--; t.caller.calls == 0 {
		delete(q.callers, t.name)
	}

	q.schedule(t.caller)
}

// schedule updates whether the caller is in turns, and starts the next calls if slots are free.
// q.mu is held.
func (q *planQueue) schedule(caller *planCaller) {
	i := slices.Index(q.turns, caller)
	switch eligible := caller.running == nil && len(caller.waiting) > 0; {
	case eligible && i < 0:
		q.turns = append(q.turns, caller)
	case !eligible && i >= 0:
		q.turns = slices.Delete(q.turns, i, i+1)
	}

	for q.running < q.slots && len(q.turns) > 0 {
		next := q.turns[0]
		q.turns = slices.Delete(q.turns, 0, 1)
		next.running = next.waiting[0]
		next.waiting = next.waiting[1:]
		q.running++
		close(next.running.start)
	}
}
