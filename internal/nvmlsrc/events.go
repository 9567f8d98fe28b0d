package nvmlsrc

import (
	"errors"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// How long the queue waits in the driver at a time, which Close may have to wait for; how many events may be waiting to
// be read; and the pauses before a failed queue is set up anew.
const (
	waitMillis  = 250
	eventBuffer = 256
	minBackoff  = 250 * time.Millisecond
	maxBackoff  = 30 * time.Second
)

// eventQueue receives what the driver reports, in a goroutine of its own that starts with the first GPU.
type eventQueue struct {
	lib   Library
	opts  Options
	out   chan gpu.Event
	quit  chan struct{}
	ended chan struct{} // closed when the goroutine has ended, or never started and never will

	// mu is held while the set is changed, and never while the driver is asked.
	mu            sync.Mutex
	running       bool
	stopped       bool
	set           *queueSet // nil until there is a GPU, and after a failure
	setErr        error     // why there is none, where the driver gives none
	lostGPU       bool      // the last set failed because a GPU is lost
	boards        []*board
	registrations map[Device]*registration
	withheld      map[Device]int // GPUs that are not to be registered, and how many want that

	registering sync.WaitGroup // calls under way that register GPUs

	overflow bool // events were dropped and nobody was told yet; of the goroutine
}

func newEventQueue(lib Library, opts Options) eventQueue {
	return eventQueue{
		lib: lib, opts: opts,
		out:           make(chan gpu.Event, eventBuffer),
		quit:          make(chan struct{}),
		ended:         make(chan struct{}),
		registrations: map[Device]*registration{},
		withheld:      map[Device]int{},
	}
}

// listen makes these the GPUs whose events are received. Events before it are lost. One that is gone stays registered
// until the queue is set up anew: NVML cannot take it out.
func (q *eventQueue) listen(boards []*board) {
	if !q.begin(boards) {
		return
	}
	q.register(boards)
	q.mu.Lock()
	starts := !q.running && !q.stopped
	unused := !q.running && q.stopped
	q.running = q.running || starts
	q.mu.Unlock()
	if starts {
		go q.run()
	}
	if unused { // Close came in between, and nobody will wait on it
		q.drop()
	}
}

// begin takes the GPUs and makes the first set. It is false where there is nothing to listen to.
func (q *eventQueue) begin(boards []*board) bool {
	q.mu.Lock()
	q.boards = boards
	idle, running, said := q.stopped || len(boards) == 0, q.running, q.setErr != nil
	q.mu.Unlock()
	if idle || running {
		return !idle
	}
	err := q.renew()
	if err == nil {
		return true
	}
	if !said {
		level.Warn(q.opts.Logger).Log("msg", "No event queue; XIDs are not seen until there is one", "err", err)
	}
	return !errors.Is(err, gpu.ErrNotSupported) // readings find changes of the layout, too
}

// stop ends the goroutine; ended says when.
func (q *eventQueue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return
	}
	q.stopped = true
	close(q.quit)
	if !q.running {
		close(q.ended)
	}
}

func (q *eventQueue) run() {
	defer close(q.ended)
	defer q.drop()
	backoff, broken := minBackoff, false
	for {
		select {
		case <-q.quit:
			return
		default:
		}
		set := q.current()
		if set == nil {
			broken = true
			if !q.pause(backoff) {
				return
			}
			if q.restore() {
				backoff = min(2*backoff, maxBackoff)
			}
			continue
		}
		e, ret := set.Wait(waitMillis)
		switch ret {
		case nvml.SUCCESS, nvml.ERROR_TIMEOUT:
			if broken { // only now is it known to work
				q.send(gpu.Event{Kind: gpu.EventsLost, Time: q.opts.Now()})
			}
			backoff, broken = minBackoff, false
			q.deliver(e, ret == nvml.SUCCESS)
		default:
			level.Warn(q.opts.Logger).Log("msg", "Event queue failed; it is set up anew", "err", driverError("nvmlEventSetWait", ret))
			q.mu.Lock()
			q.lostGPU = ret == nvml.ERROR_GPU_IS_LOST
			q.mu.Unlock()
			q.drop()
		}
	}
}

// current is the set to wait on, nil where there is none.
func (q *eventQueue) current() *queueSet {
	q.mu.Lock()
	set := q.set
	spoilt, released := set != nil && set.spoilt, set != nil && set.released
	q.mu.Unlock()
	switch {
	case spoilt:
		q.drop()
		return nil
	case released:
		return q.replace(set)
	}
	return set
}

// briefly is for how long the other GPUs may be in no set without being told that events were lost.
const briefly = time.Second

// replace gives a set up that was released, with no event of it lost, and makes another one at once; nil where that fails.
func (q *eventQueue) replace(set *queueSet) *queueSet {
	for range eventBuffer {
		e, ret := set.Wait(0)
		if ret != nvml.SUCCESS {
			break
		}
		q.deliver(e, true)
	}
	began := time.Now()
	q.drop()
	q.restore()
	if time.Since(began) >= briefly { // a GPU has hung while it was registered
		q.overflow = true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.set
}

// restore tries to set the queue up anew; where that fails, it is tried again. It is false where there is no GPU to hear:
// nothing was tried.
func (q *eventQueue) restore() bool {
	q.mu.Lock()
	boards := q.boards
	idle := q.stopped || len(boards) == 0
	q.mu.Unlock()
	if idle {
		return false
	}
	_ = q.renew() // it is in setErr, for the readings
	q.register(boards)
	return true
}

// pause is false where the queue was stopped meanwhile.
func (q *eventQueue) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-q.quit:
		return false
	case <-t.C:
		return true
	}
}

// deliver passes an event on, and that others were lost before it.
func (q *eventQueue) deliver(e Event, is bool) {
	if q.overflow {
		q.overflow = false
		q.send(gpu.Event{Kind: gpu.EventsLost, Time: q.opts.Now()})
	}
	if !is {
		return
	}
	out := gpu.Event{GPU: q.uuidOf(e.Device), Time: q.opts.Now()}
	switch {
	case e.Type&nvml.EventTypeXidCriticalError != 0:
		out.Kind, out.XID = gpu.EventXID, e.Data
	case e.Type&nvml.EventMigConfigChange != 0:
		out.Kind = gpu.EventMIGChange
		q.recut(e.Device)
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

// recut makes the next reading of a GPU ask again what it did not support: with its instances that changes, and was
// perhaps asked while they were changing.
func (q *eventQueue) recut(d Device) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, b := range q.boards {
		if b.handle == d {
			b.recut.Store(true)
		}
	}
}

// send never blocks: the queue in the driver must be emptied whether anybody listens or not.
func (q *eventQueue) send(e gpu.Event) {
	select {
	case q.out <- e:
	default:
		q.overflow = true
	}
}

// uuidOf finds the GPU of an event by its handle: a GPU that has just been lost cannot be asked.
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
		uuid = gpu.UUID(text(asked))
	}
	return uuid
}
