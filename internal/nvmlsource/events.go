package nvmlsource

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/retry"
)

const (
	waitMillis  = 250 // limit of one wait in the driver: Close may have to wait for it
	eventBuffer = 256 // events kept until they are read; further ones are dropped
	minBackoff  = 250 * time.Millisecond
	maxBackoff  = 30 * time.Second // limit of the pause before a failed queue is created again
)

// eventQueue receives the driver's events, in a goroutine of its own that starts with the first
// GPU.
type eventQueue struct {
	lib  Library
	opts Options
	out  chan gpu.Event

	// mu guards the fields up to watcher. It is never held during a driver call.
	mu    sync.Mutex
	quit  context.CancelFunc // makes the goroutine end; nil until it was started
	ended chan struct{}      // closed when the goroutine has ended, or if stop came before it began
	// halted is closed when no call of the queue is under way after a halt; nil if no halt was begun
	// since reset.
	halted        chan struct{}
	haltedAt      time.Time // when the last halt was begun; zero if none was
	running       bool      // the goroutine has been started
	stopped       bool
	set           *queueSet // nil until there is a GPU, and after a failure
	setErr        error     // why set is nil, if the driver could not create it
	lostGPU       bool      // the last set failed because a GPU is lost
	gpus          []*gpuState
	registrations map[Device]*registration
	// withheld has the GPUs that must not be registered, with how many calls of withholdGPU were not
	// undone yet.
	withheld map[Device]int
	watcher  mig.LayoutWatcher // nil if there is none

	registering sync.WaitGroup // calls under way that register GPUs

	overflow bool // events were dropped, and EventsLost was not sent yet; only the goroutine uses it
}

func newEventQueue(lib Library, opts Options) eventQueue {
	return eventQueue{
		lib: lib, opts: opts,
		out:           make(chan gpu.Event, eventBuffer),
		ended:         make(chan struct{}),
		registrations: map[Device]*registration{},
		withheld:      map[Device]int{},
	}
}

// startRegistering makes the queue receive the events of these GPUs, from now on, and of no others.
// But a GPU that is no longer listed stays registered until the queue is created again: NVML cannot
// remove it.
func (q *eventQueue) startRegistering(gpus []*gpuState) {
	if !q.startQueue(gpus) {
		return
	}

	q.register(gpus)
	q.mu.Lock()
	starts := !q.running && !q.stopped
	unused := !q.running && q.stopped

	if starts {
		q.startWaiting()
	}

	q.mu.Unlock()

	if unused { // Close was called meanwhile, and the set will not be waited on
		q.dropSet()
	}
}

// startWaiting starts the goroutine. The caller holds mu.
func (q *eventQueue) startWaiting() {
	if !q.haltedAt.IsZero() {
		q.overflow = q.overflow ||
			time.Since(q.haltedAt) >= maxSetGap // events may have been missed
	}

	ctx, quit := context.WithCancel(context.Background())
	q.running = true
	q.quit = quit
	go q.waitForEvents(ctx, q.ended)
}

// startQueue sets the GPUs and creates the first set. It reports whether there will be events to
// wait for.
func (q *eventQueue) startQueue(gpus []*gpuState) bool {
	q.mu.Lock()
	q.gpus = gpus
	idle := q.stopped || len(gpus) == 0
	running := q.running
	logged := q.setErr != nil
	q.mu.Unlock()

	if idle || running {
		return !idle
	}

	err := q.renewSet()
	if err == nil {
		return true
	}

	if !logged {
		level.Warn(q.opts.Logger).Log(
			"msg", "cannot create an event queue; XIDs are not received until there is one",
			"err", err,
		)
	}

	// If the driver has no events, there is nothing to wait for: readings find changes of the layout
	// by scans.
	return !errors.Is(err, gpu.ErrNotSupported)
}

// stop makes the goroutine end; the channel is closed when it has.
func (q *eventQueue) stop() (ended <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()

	return q.stopLocked()
}

// stopLocked is stop for a caller that holds mu.
func (q *eventQueue) stopLocked() (ended <-chan struct{}) {
	if q.stopped {
		return q.ended
	}

	q.stopped = true

	if q.running {
		q.quit()
	} else {
		close(q.ended)
	}

	return q.ended
}

// waitForEvents receives events until the queue is stopped, which ends ctx. It runs in a goroutine of
// its own.
func (q *eventQueue) waitForEvents(ctx context.Context, ended chan<- struct{}) {
	defer close(ended)
	defer q.dropSet()
	var backoff retry.Backoff
	broken := false // the set has failed, and the next one has not been seen to work yet

	for ctx.Err() == nil {
		set := q.currentSet()
		if set == nil {
			broken = true
			backoff = q.restoreAfter(ctx, backoff)

			continue
		}

		e, ret := set.Wait(waitMillis)
		switch ret {
		case nvml.SUCCESS, nvml.ERROR_TIMEOUT:
			if broken {
				q.send(gpu.Event{Kind: gpu.EventsLost, Time: q.opts.Now()})
			}

			backoff = retry.Backoff{}
			broken = false
			q.deliverOverflow()

			if ret == nvml.SUCCESS {
				q.deliver(e)
			}
		default:
			level.Warn(q.opts.Logger).Log(
				"msg", "event queue failed; creating it again",
				"err", driverError("nvmlEventSetWait", ret),
			)
			q.mu.Lock()
			q.lostGPU = ret == nvml.ERROR_GPU_IS_LOST
			q.mu.Unlock()
			q.dropSet()
		}
	}
}

// currentSet returns the set to wait on, or nil. It drops a broken set and replaces a released one.
func (q *eventQueue) currentSet() *queueSet {
	q.mu.Lock()
	set := q.set
	broken := set != nil && set.broken
	released := set != nil && set.released
	q.mu.Unlock()

	switch {
	case broken:
		q.dropSet()
		return nil
	case released:
		return q.replaceSet(set)
	}

	return set
}

// maxSetGap is how long the replacement of a set may take. If it takes longer, we report that
// events may be lost.
const maxSetGap = time.Second

// replaceSet delivers the events of a released set and returns a new set, or nil if none can be
// created.
func (q *eventQueue) replaceSet(set *queueSet) *queueSet {
	for range eventBuffer { // bounded, since events may keep coming
		e, ret := set.Wait(0)
		if ret != nvml.SUCCESS {
			break
		}

		q.deliverOverflow()
		q.deliver(e)
	}

	began := time.Now()
	q.dropSet()
	q.restoreSet()

	if time.Since(began) >= maxSetGap { // a GPU has hung while it was registered
		q.overflow = true
	}

	q.mu.Lock()
	defer q.mu.Unlock()

	return q.set
}

// restoreAfter waits, and then tries to create the set again. It returns the backoff of the next
// attempt, which is longer if there was one now.
func (q *eventQueue) restoreAfter(ctx context.Context, before retry.Backoff) retry.Backoff {
	backoff := before
	backoff.Postpone(time.Now(), minBackoff, maxBackoff)

	if retry.Sleep(ctx, backoff.Wait) != nil || !q.restoreSet() {
		return before
	}

	return backoff
}

// restoreSet tries to create the set again; if that fails, the caller tries again later. It returns
// false, without a try, if there are no GPUs.
func (q *eventQueue) restoreSet() bool {
	q.mu.Lock()
	gpus := q.gpus
	idle := q.stopped || len(gpus) == 0
	q.mu.Unlock()

	if idle {
		return false
	}

	_ = q.renewSet() // the error is in setErr, for the readings
	q.register(gpus)

	return true
}

// deliverOverflow sends EventsLost if events were dropped.
func (q *eventQueue) deliverOverflow() {
	if q.overflow {
		q.overflow = false
		q.send(gpu.Event{Kind: gpu.EventsLost, Time: q.opts.Now()})
	}
}

// deliver converts an event of the driver and sends it.
func (q *eventQueue) deliver(e Event) {
	out := gpu.Event{GPU: q.uuidOf(e.Device), Time: q.opts.Now()}
	switch {
	case e.Type&nvml.EventTypeXidCriticalError != 0:
		out.Kind = gpu.EventXID
		out.XID = e.Data
	case e.Type&nvml.EventMigConfigChange != 0:
		out.Kind = gpu.EventMIGChange
		q.reportChange(e.Device, out.GPU)
	case e.Type&nvml.EventTypeGpuUnavailableError != 0:
		out.Kind = gpu.EventUnavailable
	case e.Type&nvml.EventTypeGpuRecoveryAction != 0:
		out.Kind = gpu.EventRecoveryAction
	default:
		return
	}

	if e.GPUInstanceID != NoInstance {
		out.Instance = gpu.Some(gpu.InstanceID(e.GPUInstanceID))
		if e.ComputeInstanceID != NoInstance {
			out.Compute = gpu.Some(gpu.ComputeID(e.ComputeInstanceID))
		}
	}

	q.send(out)
}

// reportChange marks the GPU of a layout change as changed, or every GPU if we cannot tell which
// one it is. It informs the watcher here and not when the event is read, since readers of the
// channel may be slow.
func (q *eventQueue) reportChange(d Device, id gpu.UUID) {
	q.mu.Lock()
	defer q.mu.Unlock()

	isMeant := func(g *gpuState) bool { return g.handle == d || id != "" && g.uuid == id }
	anyGPU := id == "" && !slices.ContainsFunc(q.gpus, isMeant)

	for _, g := range q.gpus {
		if !anyGPU && !isMeant(g) {
			continue
		}

		g.markChanged(changeReported)

		if q.watcher != nil {
			q.watcher.LayoutChanged(g.uuid)
		}
	}
}

// send never blocks: the driver's queue must be emptied even if the events are not read.
func (q *eventQueue) send(e gpu.Event) {
	select {
	case q.out <- e:
	default:
		q.overflow = true
	}
}

// uuidOf returns the UUID of the GPU of an event. It asks the driver only if the handle was not
// registered: a GPU that has just been lost does not answer.
func (q *eventQueue) uuidOf(d Device) gpu.UUID {
	if d == nil {
		return ""
	}

	q.mu.Lock()
	r := q.registrations[d]

	var uuid gpu.UUID
	if r != nil {
		uuid = r.uuid
	}

	q.mu.Unlock()

	if uuid != "" {
		return uuid
	}

	if asked, ret := d.GetUUID(); ret == nvml.SUCCESS {
		uuid = gpu.UUID(validUTF8(asked))
	}

	return uuid
}
