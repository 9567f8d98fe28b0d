package nvmlsource

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// queueSet is a queue in the driver. Its fields are guarded by the eventQueue's mu.
type queueSet struct {
	EventSet
	users   int  // calls under way that register GPUs with it
	dropped bool // it is not waited on any more; the last user frees it
	broken  bool // it is undefined after a failure and must not be waited on again; a wait may be under way
	// released is set if a GPU is to be removed, which NVML cannot do: the set is replaced by one without that GPU,
	// after its events have been read.
	released bool
	freed    chan struct{}
}

// eventKinds are the events that are received. They are registered one by one: NVML refuses a mask of which one is
// not supported. Libraries before 565 do not know newKinds.
const (
	newKinds   = nvml.EventTypeGpuUnavailableError | nvml.EventTypeGpuRecoveryAction
	eventKinds = nvml.EventTypeXidCriticalError | nvml.EventMigConfigChange | newKinds
)

// registration is the state of receiving the events of one GPU. It is kept by handle, as the driver does: a GPU that is
// found again behind its old handle is still in the set, and must not be put into it twice.
type registration struct {
	uuid    gpu.UUID
	state   *gpuState // of the last attempt
	busy    bool      // a call is under way, perhaps with an earlier set
	kinds   uint64    // registered with the set in use
	harmful uint64    // of newKinds, those of which a try broke a set: they are not tried again
	triedAt time.Time
	pause   time.Duration // until what failed is tried again
	breaks  bool          // the last attempt broke the set
	suspect bool          // a set failed because a GPU is lost, perhaps this one: it is not registered before it was read

	delivery delivery // of the events that it is registered for

	received bool  // XIDs were received at some time
	err      error // why XIDs are not received; nil if they are, or no attempt has ended yet
	reported bool  // a reading has reported err
	overdue  bool  // a reading has reported that the attempt under way does not end
	logged   bool
}

// reportsChanges reports whether we learn of every change of the GPU's layout: it is registered for them, and its
// events are delivered.
func (r *registration) reportsChanges() bool {
	return r.kinds&nvml.EventMigConfigChange != 0 && r.delivery == delivered
}

// isDue reports whether a GPU is to be registered for kinds that it lacks.
func (r *registration) isDue(g *gpuState, now time.Time) bool {
	if r.busy || r.kinds|r.harmful == eventKinds || !g.isUsable() ||
		r.suspect && !g.isIn(phaseRead) {
		return false
	}

	since := now.Sub(r.triedAt)
	waits := since >= 0 && since < r.pause

	return !waits || r.state != g && !r.breaks
}

// renewSet creates a set, or sets setErr. The caller then calls register. Only the goroutine that waits for events
// may call it, and the Discover that starts that goroutine.
func (q *eventQueue) renewSet() error {
	set, ret := q.lib.EventSetCreate()
	q.mu.Lock()
	defer q.mu.Unlock()

	if ret != nvml.SUCCESS {
		q.setErr = driverError("nvmlEventSetCreate", ret)
		return q.setErr
	}

	q.set = &queueSet{EventSet: set, freed: make(chan struct{})}
	q.setErr = nil
	current := make(map[Device]*registration, len(q.gpus))

	for h, r := range q.registrations {
		listening := slices.IndexFunc(q.gpus, func(g *gpuState) bool { return g.handle == h })
		if listening < 0 && !r.busy {
			continue
		}

		current[h] = r
		r.kinds = 0
		r.suspect = r.suspect || listening >= 0 && q.lostGPU && !q.gpus[listening].isUsable()

		if !r.breaks {
			r.state = nil
		}
	}

	q.registrations = current

	return nil
}

// dropSet drops the set. Only the goroutine that waits on it may do so. If a call with it hangs in the driver, it is
// freed when that returns, not under it.
func (q *eventQueue) dropSet() {
	q.mu.Lock()
	set := q.set

	q.set = nil
	if set != nil {
		set.dropped = true
		q.tellWatching(false)
	}

	free := set != nil && set.users == 0
	q.mu.Unlock()

	if free {
		set.freeOnce()
	}
}

// tellWatching tells the watcher that the changes of all registered GPUs are reported from now on, or not any more. The
// caller holds mu.
func (q *eventQueue) tellWatching(on bool) {
	for _, r := range q.registrations {
		if q.watcher != nil && r.reportsChanges() {
			q.watcher.Watching(r.uuid, on)
		}
	}
}

// watchLayouts sets the watcher, and tells it which GPUs' changes are reported already.
func (q *eventQueue) watchLayouts(w mig.LayoutWatcher) {
	q.mu.Lock()
	defer q.mu.Unlock()

	q.watcher = w
	if q.set != nil {
		q.tellWatching(true)
	}
}

// freeOnce frees the set, which is not used any more whether that succeeds or not.
func (s *queueSet) freeOnce() {
	_ = s.Free()
	close(s.freed)
}

// withholdGPU removes a GPU from the queue until restore is called: a set that it is in is replaced, since NVML
// cannot remove a GPU from one. It waits for that for at most lookupTimeout.
func (q *eventQueue) withholdGPU(d Device) (restore func()) {
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
		timer := time.NewTimer(lookupTimeout)
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

// registerAttempt is a call under way that registers a GPU for some kinds of events.
type registerAttempt struct {
	state        *gpuState
	registration *registration
	set          *queueSet
	kinds        uint64
}

// register registers the GPUs that are due, one after the other. It waits for at most lookupTimeout: a call that
// hangs is abandoned, so that it does not block the others.
func (q *eventQueue) register(gpus []*gpuState) {
	timer := time.NewTimer(lookupTimeout)
	defer timer.Stop()
	expired := timer.C

	for {
		a, ok := q.nextToRegister(gpus)
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

// nextToRegister picks a GPU and marks it as being registered until registerOne returns; it returns false if none is
// due.
func (q *eventQueue) nextToRegister(gpus []*gpuState) (registerAttempt, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()

	if q.set == nil || q.set.broken || q.set.released || q.stopped {
		return registerAttempt{}, false
	}

	now := q.opts.Now()
	for _, g := range gpus {
		r := q.registrationOf(g.handle)
		if q.withheld[g.handle] > 0 || !r.isDue(g, now) {
			continue
		}

		r.uuid = g.uuid
		r.state = g
		r.busy = true
		r.triedAt = now
		r.pause = 0
		r.overdue = false
		q.set.users++
		q.registering.Add(1)

		return registerAttempt{
			state:        g,
			registration: r,
			set:          q.set,
			kinds:        eventKinds &^ (r.kinds | r.harmful),
		}, true
	}

	return registerAttempt{}, false
}

// registrationOf returns the registration of a GPU, a new one if it has none. The caller holds mu.
func (q *eventQueue) registrationOf(d Device) *registration {
	r := q.registrations[d]
	if r == nil {
		r = &registration{}
		q.registrations[d] = r
	}

	return r
}

// registerOne registers one GPU. If another set was created meanwhile, the GPU is not yet in that.
func (q *eventQueue) registerOne(a registerAttempt) {
	defer q.registering.Done()
	var done uint64
	errs := map[uint64]error{}
	broken := false
	var harmful uint64

	for _, kind := range []uint64{
		nvml.EventTypeXidCriticalError, nvml.EventMigConfigChange,
		nvml.EventTypeGpuUnavailableError, nvml.EventTypeGpuRecoveryAction,
	} {
		if a.kinds&kind == 0 || broken {
			continue
		}

		ret := a.state.handle.RegisterEvents(kind, a.set.EventSet)
		if ret == nvml.SUCCESS {
			done |= kind
			continue
		}

		errs[kind] = driverError("nvmlDeviceRegisterEvents", ret)

		broken = ret == nvml.ERROR_UNKNOWN // the set is undefined now (nvml.h)
		if broken && kind&newKinds != 0 {
			harmful = kind // an old library: the other events matter more
		}
	}

	q.mu.Lock()
	a.set.users--
	a.set.broken = a.set.broken || broken
	free := a.set.dropped && a.set.users == 0

	late := q.set != nil && q.set != a.set
	if r := a.registration; late {
		r.busy = false
		r.state = nil
	} else {
		before := r.reportsChanges()
		r.harmful |= harmful
		r.busy = false
		r.kinds |= done
		r.breaks = broken && harmful == 0

		inUse := q.set == a.set // else it was dropped, and there is no other one yet
		if q.watcher != nil && inUse && !before && r.reportsChanges() {
			q.watcher.Watching(r.uuid, true)
		}

		r.recordErrors(errs, q.opts.SlowEvery)
		q.logAttempt(a)
	}

	q.mu.Unlock()

	if free {
		a.set.freeOnce()
	}

	if late {
		q.register([]*gpuState{a.state})
	}
}

// recordErrors records the errors of a call, by kind.
func (r *registration) recordErrors(errs map[uint64]error, soon time.Duration) {
	r.suspect = false
	r.err = errs[nvml.EventTypeXidCriticalError]
	r.reported = false
	r.received = r.received || r.kinds&nvml.EventTypeXidCriticalError != 0

	for _, err := range errs {
		if r.pause == 0 {
			r.pause = supportEvery
		}

		// A library that does not know a kind of event may call that an invalid argument.
		if !r.breaks && !errors.Is(err, gpu.ErrNotSupported) &&
			!errors.Is(err, gpu.ErrInvalidArgument) {
			r.pause = soon
		}

		r.suspect = r.suspect || losesDevice(err)
	}
}

// logAttempt logs, once, a GPU whose XIDs are not received. One that is lost fails in its readings, too. The caller
// holds mu.
func (q *eventQueue) logAttempt(a registerAttempt) {
	r := a.registration
	if r.err == nil {
		r.logged = false
	} else if !r.logged && !r.suspect {
		r.logged = true
		level.Warn(q.opts.Logger).Log(
			"msg", "cannot receive XIDs of a GPU",
			"gpu", a.state.uuid,
			"err", r.err,
		)
	}
}

// xidState is whether the XIDs of a GPU are received, and which other events.
type xidState struct {
	kinds uint64

	err      error // why they are not; nil if they are
	received bool  // they were at some time
	reported bool  // an earlier reading has reported err
}

// xidsOf returns the state for a reading, which reports its error.
func (q *eventQueue) xidsOf(g *gpuState) xidState {
	q.mu.Lock()
	defer q.mu.Unlock()

	var state xidState
	if r := q.registrations[g.handle]; r != nil {
		state = xidState{kinds: r.kinds, err: r.err, received: r.received, reported: r.reported}
		r.reported = true

		late := r.busy && r.kinds&nvml.EventTypeXidCriticalError == 0 &&
			q.opts.Now().Sub(r.triedAt) >= lookupTimeout
		if late && r.err == nil {
			state.err = fmt.Errorf("register for events: %w", gpu.ErrTimeout)
			state.reported = r.overdue
			r.overdue = true
		}
	}

	if q.setErr != nil {
		state.err = q.setErr
		state.reported = true // it is in the log
	}

	return state
}
