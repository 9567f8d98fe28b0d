// Package poll reads the node's GPUs and their holders, once a cycle, and publishes both as an
// immutable Snapshot. It keeps what takes more than one reading: counters, layout generations, idle
// power.
package poll

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Options configure a Poller. Interval and Grace are real time; Now measures all other durations.
type Options struct {
	Hostname string
	// Interval is the time between two cycles. 0 is for a stepped clock: after the first cycle,
	// only Poll runs one.
	Interval time.Duration
	// Grace is how long one cycle waits for readings before it publishes without them.
	Grace time.Duration
	// Timeout is how long one call of the driver may take before its GPU counts as down. A reading
	// that makes progress may take readLimit times as long.
	Timeout time.Duration
	// Progress returns when the last driver call of a GPU's reading began. If nil, a reading counts
	// as one call.
	Progress func(gpu.UUID) time.Time
	// StaleAfter is the age at which we drop the readings of a GPU that is down. If we read the
	// GPUs only every third Interval to keep the Budget, it is three times as long.
	StaleAfter time.Duration
	Budget     Budget
	// PodsStaleAfter is how long we use the kubelet's last answer while it gives no other.
	PodsStaleAfter time.Duration
	Now            func() time.Time
	Pods           Pods       // nil: holders are unknown
	Containers     Containers // nil: processes are not mapped to containers
	// ProcessContainers makes us look up the container of every process, not only on devices that
	// several containers share.
	ProcessContainers bool
	// Processes is what may be served about single processes; ProcessTable has their names and
	// users.
	Processes    gpu.ProcessDetail
	ProcessTable ProcessTable // nil: processes have no names
	Profiler     Profiler     // nil: activity comes from the driver alone
	// ReplaceProfiler lets the source read a GPU's activity by GPM while the profiler does not
	// report it.
	ReplaceProfiler bool
	// Extras is what we read of each GPU besides the usual; SetExtras changes it.
	Extras    gpu.Extras
	Jobs      Jobs      // nil: there are no batch jobs
	KernelLog KernelLog // nil: XIDs come from the driver's events alone
	// Sources returns the states of sources outside the loop; nil: there are none.
	Sources func() []gpu.SourceState
	// Servers returns the last answers of the inference servers of pods; nil: none are asked. It
	// does not block.
	Servers func() []gpu.PodServer
	// HungElsewhere returns the number of driver calls that hang outside the loop; nil: there are
	// none.
	HungElsewhere func() int
	// Observe is called with every Snapshot just before it is published, and with the real time
	// that its readings took.
	Observe func(*gpu.Snapshot, time.Duration)
	Logger  log.Logger
}

// Poller owns the loop. Poll blocks until Run handles it, Run has returned, or its context ends.
type Poller struct {
	opts     Options
	source   GPUReader
	current  atomic.Pointer[gpu.Snapshot]
	requests chan pollRequest
	stopped  chan struct{} // closed when Run has returned

	nextMu sync.Mutex
	// next is closed with the next Snapshot; nil while no caller of Next waits. nextMu guards it.
	next chan struct{}

	seed maphash.Seed // makes the hashes of different cycles comparable: see cueSum

	// The goroutine of Run owns the fields below.
	generation       uint64    // of the last Snapshot
	lastCycle        time.Time // when the last cycle or reading began
	discovery        asyncCall[gpu.Inventory]
	inventory        gpu.Inventory // the last that the driver gave; see discoverGPUs
	driverErr        error         // why the driver does not list GPUs; nil if it did
	libraryClosed    error         // why we keep the driver's library closed for a while; nil if it is open
	driverAnsweredAt time.Time     // when the last successful discovery began
	gpus             map[gpu.UUID]*trackedGPU
	missing          map[int]*trackedGPU // GPUs without a handle, by index
	pods             podState
	profiling        profilerState
	jobs             jobState
	pacer            pacer
	log              logState
}

// ErrStopped is returned by Poll once Run has returned.
var ErrStopped = errors.New("poll: the loop has stopped")

var errNoAnswerYet = errors.New("the driver has not answered yet")

// New returns a Poller that has not read anything yet.
func New(source GPUReader, opts Options) *Poller {
	return &Poller{
		opts:      opts,
		seed:      maphash.MakeSeed(),
		source:    source,
		requests:  make(chan pollRequest),
		stopped:   make(chan struct{}),
		gpus:      map[gpu.UUID]*trackedGPU{},
		missing:   map[int]*trackedGPU{},
		driverErr: errNoAnswerYet,
		pacer:     newPacer(opts.Budget),
	}
}

// Current returns the last Snapshot, nil before the first.
func (p *Poller) Current() *gpu.Snapshot { return p.current.Load() }

// Next returns a channel that is closed once Current returns another Snapshot than after. After Run
// has returned, it may never be closed.
func (p *Poller) Next(after *gpu.Snapshot) <-chan struct{} {
	p.nextMu.Lock()
	defer p.nextMu.Unlock()

	if p.current.Load() != after {
		closed := make(chan struct{})
		close(closed)

		return closed
	}

	if p.next == nil {
		p.next = make(chan struct{})
	}

	return p.next
}

// setCurrent makes s the current Snapshot, and wakes the callers of Next.
func (p *Poller) setCurrent(s *gpu.Snapshot) {
	p.nextMu.Lock()
	defer p.nextMu.Unlock()

	p.current.Store(s)

	if p.next != nil {
		close(p.next)
		p.next = nil
	}
}

// SetExtras changes Options.Extras from the next reading on. Only the function that you pass to
// Poll may call it: the loop's goroutine runs that function.
func (p *Poller) SetExtras(extras gpu.Extras) { p.opts.Extras = extras }

// pollRequest asks the loop for a cycle, or for readings of some GPUs.
type pollRequest struct {
	before func() error // the loop calls it first; nil: nothing
	gpus   []gpu.UUID   // read only these; empty: run a cycle
	done   chan error   // gets one result, and has room for it
}

// Poll runs one cycle and returns when its Snapshot is published. Unless before is nil, the loop
// calls it first, never during a cycle. If before fails, Poll returns its error without a cycle.
func (p *Poller) Poll(ctx context.Context, before func() error) error {
	return p.request(ctx, pollRequest{before: before})
}

// PollGPUs reads some GPUs, and returns when the Snapshot with them is published. It takes all else
// from the previous Snapshot, also a GPU that does not answer in time.
func (p *Poller) PollGPUs(ctx context.Context, ids ...gpu.UUID) error {
	return p.request(ctx, pollRequest{gpus: ids})
}

func (p *Poller) request(ctx context.Context, r pollRequest) error {
	done := make(chan error, 1)
	r.done = done

	select {
	case p.requests <- r:
	case <-p.stopped:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}

	select {
	case err := <-done:
		return err
	case <-p.stopped:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run polls until ctx ends. Then it waits for calls under way, at most the shorter of Grace and
// maxJoin, and abandons those that hang. The only error that it returns is gpu.ErrVersionMismatch:
// then only a restart of the process helps.
func (p *Poller) Run(ctx context.Context) error {
	var ticks <-chan time.Time

	events := p.source.Events()
	if p.opts.Interval > 0 {
		ticker := time.NewTicker(p.opts.Interval)
		defer ticker.Stop()
		ticks = ticker.C
	} else {
		events = nil // with a stepped clock, events wait for the next cycle
	}

	defer close(p.stopped)
	defer p.waitForCalls()

	if err := p.runCycle(ctx, true); err != nil {
		return err
	}

	for {
		var err error

		select {
		case <-ctx.Done():
			return nil
		case <-ticks:
			err = p.tick(ctx)
		case r := <-p.requests:
			err = p.handleRequest(ctx, r)
		case e := <-events:
			err = p.readAfterEvent(ctx, e)
		}

		if err != nil {
			return err
		}
	}
}

// handleRequest calls r.before, reads, and sends the result to r.done. It returns an error only if
// the loop must end.
func (p *Poller) handleRequest(ctx context.Context, r pollRequest) error {
	if r.before != nil {
		if err := r.before(); err != nil {
			r.done <- err
			return nil //nolint:nilerr // the requester has the error; the loop goes on
		}
	}

	reads := dueReads{everything: len(r.gpus) == 0}
	for _, id := range r.gpus {
		reads.add(id, wholeGPU)
	}

	err := p.read(ctx, reads)
	r.done <- err

	return err
}

// tick runs a cycle. If driver calls cost more than the budget, only every second cycle, or fewer,
// reads the GPUs; but each cycle asks for holders.
func (p *Poller) tick(ctx context.Context) error {
	err := p.runCycle(ctx, p.pacer.isDue())
	p.keepToBudget()

	return err
}

// runCycle asks who holds the devices, reads the GPUs if readsGPUs is set, and publishes a
// Snapshot. The Snapshot also has the readings that began in an earlier cycle and have ended since.
func (p *Poller) runCycle(ctx context.Context, readsGPUs bool) error {
	began := time.Now()
	now := p.opts.Now()
	p.adjustForClockSetBack(now)
	expired, stop := closedAfter(ctx, p.opts.Grace)
	defer stop()

	// The kubelet answers while we read the GPUs.
	if p.opts.Pods != nil {
		p.pods.request(ctx, now, &p.opts)
	}

	var err error

	if readsGPUs {
		p.pacer.skipped = 0
		err = p.readInCycle(ctx, now, expired)
	} else {
		p.pacer.skipped++
		err = p.receiveLateReadings(now)
	}

	if err != nil {
		return err
	}

	p.readKernelLog(now) // after the readings, which give it the GPUs' PCI addresses

	if p.opts.Jobs != nil {
		p.jobs.request(now, p.opts.Jobs, p.jobDevices())
	}

	p.pods.collect(now, expired, p.opts.PodsStaleAfter)
	p.jobs.collect(now, expired, p.opts.Timeout)

	if ctx.Err() != nil {
		return nil // we stopped waiting early: a Snapshot would lack readings under way
	}

	s := p.buildSnapshot(now)
	s.BetweenPolls = !readsGPUs
	p.updateCues(s)
	p.publish(s, time.Since(began))

	return nil
}

// readInCycle finds and reads the GPUs. Events that arrive meanwhile wait for the end of the cycle:
// they may concern a layout that it has not seen.
func (p *Poller) readInCycle(ctx context.Context, now time.Time, expired <-chan struct{}) error {
	p.setMaxGaps()
	p.drainEvents(&dueReads{}) // the cycle reads everything anyway
	p.requestProfiling(ctx, now)
	p.chooseActivitySources(now)

	if err := p.discoverGPUs(now, expired); err != nil {
		return err
	}

	return p.readGPUs(now, expired)
}

// publish makes s the current Snapshot. took is the real time since its readings began.
func (p *Poller) publish(s *gpu.Snapshot, took time.Duration) {
	before := p.current.Load()
	s.UnlistedXIDs = p.unlistedXIDs()

	if p.opts.Observe != nil {
		p.opts.Observe(s, took)
	}

	p.setCurrent(s)
	p.logChanges(before, s)
}

// closedAfter returns a channel that is closed once d has passed or ctx has ended, and a function
// that releases its timer.
func closedAfter(ctx context.Context, d time.Duration) (<-chan struct{}, func()) {
	ctx, cancel := context.WithTimeout(ctx, d)
	return ctx.Done(), cancel
}

// maxJoin bounds how long Run waits at its end for calls under way. The caller of Run waits for
// them again when it shuts the driver down.
const maxJoin = 2 * time.Second

// waitForCalls waits for the calls under way, and logs how many driver calls it abandons. The call
// of the kubelet ends when we cancel it.
func (p *Poller) waitForCalls() {
	expired, stop := closedAfter(context.Background(), min(p.opts.Grace, maxJoin))
	defer stop()

	abandoned := 0

	if p.discovery.outlasts(expired) {
		abandoned++
	}

	for _, t := range p.gpus {
		if t.read.outlasts(expired) {
			abandoned++
		}
	}

	if p.profiling.call.outlasts(expired) {
		abandoned++
	}

	p.jobs.call.receive(expired)
	p.pods.cancelAndWait()

	if abandoned > 0 {
		level.Warn(p.opts.Logger).Log(
			"msg", "abandoned driver calls that did not return",
			"calls", abandoned,
		)
	}
}
