package nvmlsource

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// queueSet is an event set of the driver, NVML's queue of events. Its fields are guarded by the
// eventQueue's mu.
type queueSet struct {
	EventSet
	users   int  // calls under way that register GPUs with it
	dropped bool // we do not wait on it any more; the last user frees it
	broken  bool // a failure has left it undefined: we must not wait on it again, but a wait may be under way
	// released is set if a GPU is to be removed, which NVML cannot do: the set is replaced by one
	// without that GPU, after its events have been read.
	released bool
	freed    chan struct{} // closed when the set was freed
}

// renewSet creates a set, or sets setErr. The caller then calls register. Only the goroutine that
// waits for events may call it, and the Discover that starts that goroutine.
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
		at := slices.IndexFunc(q.gpus, func(g *gpuState) bool { return g.handle == h })
		if at < 0 && !r.isUnderWay() {
			continue // the GPU is no longer listed
		}

		current[h] = r
		r.leaveSet(at >= 0 && q.lostGPU && !q.gpus[at].isUsable())
	}

	q.registrations = current

	return nil
}

// dropSet drops the set. Only the goroutine that waits on it may do so. If a call that registers a
// GPU with the set hangs in the driver, the set is freed when that call returns.
func (q *eventQueue) dropSet() {
	q.mu.Lock()
	set := q.set

	q.set = nil
	if set != nil {
		set.dropped = true
		q.informWatcher(false)
	}

	free := set != nil && set.users == 0
	q.mu.Unlock()

	if free {
		set.freeOnce()
	}
}

// informWatcher informs the watcher that the changes of all registered GPUs are reported from now
// on, or no longer. The caller holds mu.
func (q *eventQueue) informWatcher(on bool) {
	for _, r := range q.registrations {
		if q.watcher != nil && r.reportsChanges() {
			q.watcher.Watching(r.uuid, on)
		}
	}
}

// watchLayouts sets the watcher, and informs it of the GPUs whose changes are reported already.
func (q *eventQueue) watchLayouts(w mig.LayoutWatcher) {
	q.mu.Lock()
	defer q.mu.Unlock()

	q.watcher = w
	if q.set != nil {
		q.informWatcher(true)
	}
}

// freeOnce frees the set. We do not use it any more, even if that fails.
func (s *queueSet) freeOnce() {
	_ = s.Free()
	close(s.freed)
}

// withholdGPU removes a GPU from the queue until restore is called. NVML cannot remove a GPU from a
// set, so a set that it is in is replaced; withholdGPU waits for that for at most lookupTimeout.
func (q *eventQueue) withholdGPU(d Device) (restore func()) {
	q.mu.Lock()
	q.withheld[d]++
	set := q.set
	r := q.registrations[d]

	inSet := set != nil && r != nil && (r.isUnderWay() || r.kinds != 0)
	if inSet {
		set.released = true
	}

	q.mu.Unlock()

	if inSet {
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

// register registers the GPUs that are due, one after the other. It waits for at most
// lookupTimeout: a call that hangs is abandoned, so that it does not block the others.
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

		if expired == nil { // the time is up: we only start the others
			continue
		}

		select {
		case <-done:
		case <-expired:
			expired = nil
		}
	}
}

// nextToRegister picks a GPU and marks it as being registered until registerOne returns; it returns
// false if none is due.
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

		r.begin(g, now)
		q.set.users++
		q.registering.Add(1)

		return registerAttempt{
			state:        g,
			registration: r,
			set:          q.set,
			kinds:        r.missingKinds(),
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

// registerOne registers one GPU. If the set was replaced meanwhile, the GPU is not in the new one,
// and is registered again.
func (q *eventQueue) registerOne(a registerAttempt) {
	defer q.registering.Done()
	outcome := a.registerKinds()

	q.mu.Lock()
	a.set.users--
	a.set.broken = a.set.broken || outcome.broken
	free := a.set.dropped && a.set.users == 0

	late := q.set != nil && q.set != a.set
	if late {
		a.registration.endLate()
	} else {
		q.endAttempt(a, outcome)
	}

	q.mu.Unlock()

	if free {
		a.set.freeOnce()
	}

	if late {
		q.register([]*gpuState{a.state})
	}
}

// registerKinds registers the GPU for one kind after the other, until one breaks the set.
func (a *registerAttempt) registerKinds() attemptOutcome {
	outcome := attemptOutcome{errs: map[uint64]error{}}

	for _, kind := range []uint64{
		nvml.EventTypeXidCriticalError, nvml.EventMigConfigChange,
		nvml.EventTypeGpuUnavailableError, nvml.EventTypeGpuRecoveryAction,
	} {
		if a.kinds&kind == 0 || outcome.broken {
			continue
		}

		ret := a.state.handle.RegisterEvents(kind, a.set.EventSet)
		if ret == nvml.SUCCESS {
			outcome.registered |= kind
			continue
		}

		outcome.errs[kind] = driverError("nvmlDeviceRegisterEvents", ret)

		outcome.broken = ret == nvml.ERROR_UNKNOWN // the set is undefined now (nvml.h)
		if outcome.broken && kind&newKinds != 0 {
			outcome.harmful = kind // an old library: the other events matter more
		}
	}

	return outcome
}

// endAttempt records the outcome of an attempt whose set was not replaced meanwhile. It informs the
// watcher if changes of the GPU's layout are reported from now on, and logs if XIDs of the GPU are
// not received. The caller holds mu.
func (q *eventQueue) endAttempt(a registerAttempt, outcome attemptOutcome) {
	r := a.registration
	before := r.reportsChanges()
	r.end(outcome, q.opts.SlowEvery)

	if q.watcher != nil && q.set == a.set && !before && r.reportsChanges() {
		q.watcher.Watching(r.uuid, true)
	}

	if r.shouldLog() {
		level.Warn(q.opts.Logger).Log(
			"msg", "cannot receive XIDs of a GPU",
			"gpu", a.state.uuid,
			"err", r.failure.Err,
		)
	}
}

// xidState is whether the XIDs of a GPU are received, and which kinds of events could be.
type xidState struct {
	kinds    uint64        // of events that the GPU is registered for
	received bool          // XIDs were received at some time
	failure  gpu.ReadError // why XIDs are not received; zero if they are
}

// xidsOf returns the xidState of a GPU for a reading, which reports its failure.
func (q *eventQueue) xidsOf(g *gpuState) xidState {
	q.mu.Lock()
	defer q.mu.Unlock()

	var state xidState
	if r := q.registrations[g.handle]; r != nil {
		state = xidState{
			kinds:    r.kinds,
			received: r.received,
			failure:  r.reportFailure(q.opts.Now()),
		}
	}

	if q.setErr != nil { // startQueue has logged it
		state.failure = gpu.ReadError{
			Reading:    gpu.ReadingEvents,
			Err:        q.setErr,
			Remembered: true,
		}
	}

	return state
}
