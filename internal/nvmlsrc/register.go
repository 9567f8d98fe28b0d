package nvmlsrc

import (
	"errors"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// queueSet is a queue in the driver. What is here is guarded by the eventQueue's mu.
type queueSet struct {
	EventSet
	users   int  // calls under way that register GPUs with it
	dropped bool // it is not waited on any more; the last user frees it
	spoilt  bool // it must not be waited on again; it may be, at the moment
	// released: a GPU is to be taken out of it, which NVML cannot do. It is given up for another one without that GPU, after what
	// it holds has been read.
	released bool
	freed    chan struct{}
}

// eventKinds are registered one by one: where one is not supported, none of a mask is.
const eventKinds = nvml.EventTypeXidCriticalError | nvml.EventMigConfigChange

// registration is how far the events of one GPU are received. It is kept by handle, as the driver does: a GPU that is
// found again behind its old handle is in the set still, and must not be put into it twice.
type registration struct {
	uuid    gpu.UUID
	board   *board // that was tried last
	busy    bool   // a call is under way, perhaps with an earlier set
	kinds   uint64 // registered with the set in use
	triedAt time.Time
	pause   time.Duration // until what failed is tried again
	spoils  bool          // the set broke over it
	suspect bool          // a set failed because a GPU is lost, which may be this one: it must be read well first

	heard  bool  // XIDs were received at some time
	err    error // why XIDs are not; nil where they are, or nothing was tried yet
	passed bool  // a reading has told err
	logged bool
}

// due tells whether a GPU is to be registered, for what it lacks.
func (r *registration) due(b *board, now time.Time) bool {
	if r.busy || r.kinds == eventKinds || b.lost.Load() || r.suspect && !b.wasRead.Load() {
		return false
	}
	since := now.Sub(r.triedAt)
	waits := since >= 0 && since < r.pause
	return !waits || r.board != b && !r.spoils
}

// renew makes a set where there is none, or leaves in setErr why it cannot. The caller calls register then. Only the
// goroutine that waits may call it, and the Discover that starts that one.
func (q *eventQueue) renew() error {
	set, ret := q.lib.EventSetCreate()
	q.mu.Lock()
	defer q.mu.Unlock()
	if ret != nvml.SUCCESS {
		q.setErr = driverError("nvmlEventSetCreate", ret)
		return q.setErr
	}
	q.set, q.setErr = &queueSet{EventSet: set, freed: make(chan struct{})}, nil
	current := make(map[Device]*registration, len(q.boards))
	for h, r := range q.registrations {
		listening := slices.IndexFunc(q.boards, func(b *board) bool { return b.handle == h })
		if listening < 0 && !r.busy {
			continue
		}
		current[h] = r
		r.kinds = 0
		r.suspect = r.suspect || listening >= 0 && q.lostGPU && q.boards[listening].lost.Load()
		if !r.spoils {
			r.board = nil
		}
	}
	q.registrations = current
	return nil
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
		set.free()
	}
}

// free frees the set; whatever the driver says to that, it is not used any more.
func (s *queueSet) free() {
	_ = s.Free()
	close(s.freed)
}

// withhold takes a GPU out of the queue until restore is called: a set that it is in is replaced by another one, for NVML cannot
// take a GPU out of one. It waits a while for that to be done.
func (q *eventQueue) withhold(d Device) (restore func()) {
	q.mu.Lock()
	q.withheld[d]++
	set := q.set
	r := q.registrations[d]
	holds := set != nil && r != nil && (r.busy || r.kinds != 0)
	if holds {
		set.released = true
	}
	q.mu.Unlock()
	if holds {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-set.freed:
		case <-timer.C:
		}
	}
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.withheld[d]--; q.withheld[d] == 0 {
			delete(q.withheld, d)
		}
	}
}

// attempt is a call under way that registers a GPU for some kinds of events.
type attempt struct {
	board        *board
	registration *registration
	set          *queueSet
	kinds        uint64
}

// register registers those of some GPUs that are due, one after the other. One that hangs in it is left behind after a
// while, for it must not keep the others from being heard.
func (q *eventQueue) register(boards []*board) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	expired := timer.C
	for {
		a, ok := q.nextToRegister(boards)
		if !ok {
			return
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			q.registerOne(a)
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

// nextToRegister picks a GPU and notes that a call is under way, which registerOne ends; false where none is due.
func (q *eventQueue) nextToRegister(boards []*board) (attempt, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.set == nil || q.set.spoilt || q.set.released || q.stopped {
		return attempt{}, false
	}
	now := q.opts.Now()
	for _, b := range boards {
		r := q.registrations[b.handle]
		if r == nil {
			r = &registration{}
			q.registrations[b.handle] = r
		}
		if q.withheld[b.handle] > 0 || !r.due(b, now) {
			continue
		}
		r.uuid, r.board, r.busy, r.triedAt, r.pause = b.uuid, b, true, now, 0
		q.set.users++
		q.registering.Add(1)
		return attempt{board: b, registration: r, set: q.set, kinds: eventKinds &^ r.kinds}, true
	}
	return attempt{}, false
}

// registerOne registers one GPU. Where another set was made meanwhile, it is not yet in that.
func (q *eventQueue) registerOne(a attempt) {
	defer q.registering.Done()
	var done uint64
	errs := map[uint64]error{}
	spoilt := false
	for _, kind := range []uint64{nvml.EventTypeXidCriticalError, nvml.EventMigConfigChange} {
		if a.kinds&kind == 0 || spoilt {
			continue
		}
		ret := a.board.handle.RegisterEvents(kind, a.set.EventSet)
		if ret == nvml.SUCCESS {
			done |= kind
			continue
		}
		errs[kind] = driverError("nvmlDeviceRegisterEvents", ret)
		spoilt = ret == nvml.ERROR_UNKNOWN // the set is undefined now (nvml.h)
	}
	q.mu.Lock()
	a.set.users--
	a.set.spoilt = a.set.spoilt || spoilt
	free := a.set.dropped && a.set.users == 0
	late := q.set != nil && q.set != a.set
	if r := a.registration; late {
		r.busy, r.board = false, nil
	} else {
		r.busy, r.kinds, r.spoils = false, r.kinds|done, spoilt
		r.judge(errs, q.opts.SlowEvery)
		q.tell(a)
	}
	q.mu.Unlock()
	if free {
		a.set.free()
	}
	if late {
		q.register([]*board{a.board})
	}
}

// judge takes the errors of a call, by kind.
func (r *registration) judge(errs map[uint64]error, soon time.Duration) {
	r.suspect, r.err = false, errs[nvml.EventTypeXidCriticalError]
	r.passed = false
	r.heard = r.heard || r.kinds&nvml.EventTypeXidCriticalError != 0
	for _, err := range errs {
		if r.pause == 0 {
			r.pause = supportEvery
		}
		if !r.spoils && !errors.Is(err, gpu.ErrNotSupported) {
			r.pause = soon
		}
		r.suspect = r.suspect || losesDevice(err)
	}
}

// tell logs, once, a GPU whose XIDs are not received. One that is lost fails in its readings, too. The caller holds mu.
func (q *eventQueue) tell(a attempt) {
	r := a.registration
	if r.err == nil {
		r.logged = false
	} else if !r.logged && !r.suspect {
		r.logged = true
		level.Warn(q.opts.Logger).Log("msg", "XIDs of the GPU are not received", "gpu", a.board.uuid, "err", r.err)
	}
}

// xidState tells whether the XIDs of a GPU are received.
type xidState struct {
	err  error // why they are not; nil where they are
	ever bool  // they were, at some time
	told bool  // an earlier reading was told of err
}

func (q *eventQueue) xidsOf(b *board) xidState {
	q.mu.Lock()
	defer q.mu.Unlock()
	var state xidState
	if r := q.registrations[b.handle]; r != nil {
		state = xidState{err: r.err, ever: r.heard, told: r.passed}
		r.passed = true
	}
	if q.setErr != nil {
		state.err, state.told = q.setErr, true // it is in the log
	}
	return state
}

// readEvents sees to it that the GPU's events are received, and takes note where its XIDs are not.
func (r *round) readEvents() {
	if r.fatal != nil {
		return
	}
	queue := &r.source.queue
	if !r.board.wasRead.Swap(true) || r.slow {
		queue.register([]*board{r.board})
	}
	xids := queue.xidsOf(r.board)
	r.board.facts.NoXIDs = xids.err != nil && !xids.ever
	if xids.err != nil && !errors.Is(xids.err, gpu.ErrNotSupported) {
		r.errs = append(r.errs, gpu.ReadError{Reading: gpu.ReadingEvents, Err: xids.err, Remembered: xids.told})
	}
}
