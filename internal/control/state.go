package control

import (
	"slices"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// state owns what the goroutines of an Engine share. Only this file locks it: a function that gets a
// *book or an *entry runs under the lock, and must only compute. It must not call the driver, the
// state folder, the API server, hooks or observers.
type state struct {
	lock sync.Mutex
	book book
}

// update lends the book to change, which must not keep it.
func (s *state) update(change func(b *book)) {
	s.lock.Lock()
	defer s.lock.Unlock()

	change(&s.book)
}

// read returns what find finds in the book: a value, or a copy.
func read[T any](s *state, find func(b *book) T) (found T) {
	s.update(func(b *book) { found = find(b) })
	return found
}

// change lends an operation's entry to f, which must not keep it.
func (op *operation) change(f func(o *entry)) {
	op.state.update(func(*book) { f(&op.entry) })
}

// copy returns the operation's entry as it is now, without its events.
func (op *operation) copy() (o entry) {
	op.change(func(now *entry) {
		o = *now
		o.record = now.record.clone()
		o.events = nil
	})

	return o
}

// in returns the operation's entry. That the caller has a book shows that it holds the lock.
func (op *operation) in(*book) *entry { return &op.entry }

// book is what the goroutines of an Engine share.
type book struct {
	current        *operation    // accepted or being executed
	cleared        chan struct{} // closed when current becomes nil; nil while nothing waits for that
	reserved       bool          // a request is being checked, and may become the current operation
	operations     []*operation  // that we remember, oldest first
	layouts        []layout      // the committed layouts of GPUs, for a restore
	restoredBoot   string        // the boot whose restore was begun
	unrestored     []unrestored  // GPUs that we still have to restore in that boot
	loaded         bool          // the state folder was read
	recovering     bool          // we are finishing what the last process left
	readOnlyReason string        // why the engine is read-only; empty if it is not
	damaged        bool          // documents on disk are damaged; the operator has to accept that
	slotsUsed      bool          // an operation was saved in the slots, see history.SlotsUsed

	// The last state and number that went to the observers.
	reportedState     string
	reportedUnsettled int
}

func (b *book) status() string {
	if b.current != nil || b.recovering {
		return running
	}

	if b.readOnlyReason != "" {
		return readOnly
	}

	switch {
	case b.count(api.Stuck) > 0:
		return stuck
	case b.count(api.Degraded) > 0:
		return degraded
	case b.count(api.Settling) > 0:
		return running
	default:
		return idle
	}
}

// count returns the number of operations in a state.
func (b *book) count(state api.OperationState) int {
	return len(b.list(func(o *entry) bool { return o.Operation.State == state }))
}

// list returns the operations for which is returns true, the oldest first.
func (b *book) list(is func(o *entry) bool) []*operation {
	var found []*operation

	for _, op := range b.operations {
		if is(op.in(b)) {
			found = append(found, op)
		}
	}

	return found
}

// find returns the operation with an id, nil if we don't remember it.
func (b *book) find(id string) *operation {
	at := slices.IndexFunc(b.operations, func(op *operation) bool { return op.id == id })
	if at < 0 {
		return nil
	}

	return b.operations[at]
}

// blocking returns the operation that keeps a GPU from being changed, nil if there is none.
func (b *book) blocking(id gpu.UUID) *operation {
	for _, op := range b.operations {
		o := op.in(b)
		if op != b.current && !o.Operation.State.Final() && slices.Contains(op.gpus, id) &&
			!o.gpuState(id).Final() {
			return op
		}
	}

	return nil
}

// blocked lists the GPUs that cannot be changed now, with the id of the operation that blocks each.
func (b *book) blocked() map[gpu.UUID]string {
	list := map[gpu.UUID]string{}

	for _, op := range b.operations {
		for _, id := range op.gpus {
			if by := b.blocking(id); by != nil {
				list[id] = by.id
			}
		}
	}

	return list
}

// remember makes the layouts of a committed operation those that a restore would give its GPUs.
func (b *book) remember(o *entry) {
	all := slices.Clone(o.Untouched)

	for _, c := range o.Changes {
		all = append(all, c.after())
	}

	for _, l := range all {
		at := slices.IndexFunc(b.layouts, func(c layout) bool { return c.GPU == l.GPU })
		if at >= 0 {
			b.layouts[at] = l
		} else {
			b.layouts = append(b.layouts, l)
		}

		b.dropUnrestored(l.GPU)
	}
}

// dropOldOperations forgets the oldest operations that are over and need no more work.
func (b *book) dropOldOperations() {
	for len(b.operations) > maxOperations {
		old := b.list(func(o *entry) bool {
			return o.Operation.State.Final() && o.Operation.State != api.Unsettled && !o.Cordoned
		})
		if len(old) == 0 {
			return
		}

		at := slices.Index(b.operations, old[0])
		b.operations = slices.Delete(b.operations, at, at+1)
	}
}

// makeHistory returns the history to be saved: without the operation that the slots have.
func (b *book) makeHistory() history {
	b.dropOldOperations()

	h := history{
		Layouts:    slices.Clone(b.layouts),
		Restored:   b.restoredBoot,
		Unrestored: slices.Clone(b.unrestored),
		SlotsUsed:  b.slotsUsed,
		Operations: []record{},
	}
	for _, op := range b.operations {
		if o := op.in(b); op != b.current || !o.inSlots {
			o.Revision++
			h.Operations = append(h.Operations, o.record.clone())
		}
	}

	return h
}
