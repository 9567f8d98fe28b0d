package nvmlsrc

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// queueSet is a queue in the driver. What is here is guarded by the eventQueue's mu.
type queueSet struct {
	EventSet
	users   int  // calls under way that register GPUs with it
	dropped bool // it is not waited on any more; the last user frees it
	spoilt  bool // it must not be waited on again; it may be, at the moment
}

// renew makes a set where there is none. The caller holds mu, and calls register once it does no longer.
func (q *eventQueue) renew() nvml.Return {
	set, ret := q.lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return ret
	}
	q.set = &queueSet{EventSet: set}
	q.registered = map[*board]bool{}
	return ret
}

// drop gives the set up. Only the goroutine that waits on it may do so. Where a call with it hangs in the driver, it is
// left to that: freeing it would pull it from under the call.
func (q *eventQueue) drop() {
	q.mu.Lock()
	set := q.set
	q.set = nil
	if set != nil {
		set.dropped = true
	}
	free := set != nil && set.users == 0
	q.mu.Unlock()
	if free {
		_ = set.Free() // whatever it says, the set is not used any more
	}
}

// register registers those GPUs that are not yet, one after the other. One that hangs in it is left behind after a while,
// for it must not keep the others from being heard.
func (q *eventQueue) register() {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	expired := timer.C
	for {
		b, set := q.nextToRegister()
		if b == nil {
			return
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			q.registerOne(set, b)
		}()
		if expired == nil {
			continue
		}
		select {
		case <-done:
		case <-expired:
			expired = nil
		}
	}
}

// nextToRegister picks a GPU and notes that a call is under way, which registerOne ends; nil where there is none left.
func (q *eventQueue) nextToRegister() (*board, *queueSet) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.set == nil || q.set.spoilt || q.stopped {
		return nil, nil
	}
	for _, b := range q.boards {
		if q.registered[b] || q.refused[b] || q.busy[b] {
			continue
		}
		q.registered[b], q.busy[b] = true, true
		q.set.users++
		q.registering.Add(1)
		return b, q.set
	}
	return nil, nil
}

// registerOne registers one GPU. Where another set was made meanwhile, it is not yet in that.
func (q *eventQueue) registerOne(set *queueSet, b *board) {
	defer q.registering.Done()
	unknown := false
	// One by one: where one kind is not supported, none of a mask is registered.
	for _, kind := range []uint64{nvml.EventTypeXidCriticalError, nvml.EventMigConfigChange} {
		if b.handle.RegisterEvents(kind, set.EventSet) == nvml.ERROR_UNKNOWN { // the set is undefined now (nvml.h)
			unknown = true
			break
		}
	}
	q.mu.Lock()
	delete(q.busy, b)
	set.users--
	if unknown {
		q.refused[b], set.spoilt = true, true
	}
	free := set.dropped && set.users == 0
	late := q.set != nil && q.set != set
	q.mu.Unlock()
	if free {
		_ = set.Free()
	}
	if late {
		q.register()
	}
}
