package nvmlsource

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Options configure a Source.
type Options struct {
	// Now is the clock for events and for the periods of readings.
	Now func() time.Time
	// SlowEvery is the period of the slow tier: readings that are expensive or seldom change; 0 is
	// 15 s. With the slow tier, once a minute, we also try calls again that were denied.
	SlowEvery time.Duration
	// HangsAfter is when a call of a reading counts as one that hangs, in real time; it is then
	// left out of ReadCosts. 0: no call hangs.
	HangsAfter time.Duration
	// LongReading is how long the calls of the fast tier may take in a reading of a GPU to count
	// for ReadCosts; 0: no limit. Longer readings follow each other without a pause, so no longer
	// period makes them cost less.
	LongReading time.Duration
	// Admin is set if this process has the rights that the driver takes for an administrator's:
	// CAP_SYS_ADMIN in the host's user namespace.
	Admin bool
	// GPM enables activity by GPM, on GPUs that have it, for all readings.
	GPM bool
	// ProcessesHidden, if not nil, is why the driver's lists may lack processes
	// (gpu.ErrPIDNamespace). Such lists prove nothing, so processes are not read then, and every
	// GPU has this error.
	ProcessesHidden error
	// ProcessUtilization enables the SM utilization of each process, if the driver reports it.
	ProcessUtilization bool
	// MayOpen, if not nil, is called before each nvmlInit, and returns why this process may not
	// open the GPUs. confidential is whether they are in confidential-computing mode; absent if the
	// driver does not say.
	MayOpen func(confidential gpu.Opt[bool]) error
	// Opening is what is needed to release GPUs.
	Opening Opening
	Logger  log.Logger
}

// DefaultSlowEvery is the period of the slow tier if Options have none.
const DefaultSlowEvery = 15 * time.Second

// Source reads the GPUs of a node by NVML. Different GPUs may be read at once, also while Discover
// runs; a call that hangs inside the driver blocks neither other GPUs nor Discover.
type Source struct {
	lib       Library
	opts      Options
	meter     *callMeter
	privilege privilege
	queue     eventQueue
	samples   samplePool
	actuator  *Actuator

	// discovering is held by Discover, also during driver calls. It guards the fields up to
	// session.
	discovering  sync.Mutex
	initialised  bool // nvmlInit has succeeded
	versionsRead bool
	driver       gpu.Driver
	slots        []slot         // by index
	lookups      map[int]lookup // under way, by index
	inventory    gpu.Inventory
	session      session

	// mu guards the fields below. It is never held during a driver call.
	mu       sync.Mutex
	gpus     map[gpu.UUID]*gpuState
	inits    int // calls of nvmlInit that succeeded minus those of nvmlShutdown, as NVML counts them
	closed   bool
	active   int           // Discovers, Reads and changes of the session under way
	finished chan struct{} // closed when closed and active is 0
}

// New returns a Source that has not called the driver yet.
func New(lib Library, opts Options) *Source {
	if opts.SlowEvery <= 0 {
		opts.SlowEvery = DefaultSlowEvery
	}

	meter := newCallMeter()
	lib = ObserveCalls(lib, meter)
	s := &Source{
		lib:       lib,
		meter:     meter,
		opts:      opts,
		privilege: privilege{logger: opts.Logger},
		lookups:   map[int]lookup{},
		gpus:      map[gpu.UUID]*gpuState{},
		finished:  make(chan struct{}),
		session:   session{known: map[gpu.UUID]gpu.Facts{}, using: map[*usage]bool{}},
	}
	s.queue = newEventQueue(lib, opts)
	s.actuator = newActuator(s)

	return s
}

// Events returns the channel of the driver's events. They are received from the first Discover on
// that finds a driver. The channel is never closed; if it is not read, events are dropped and
// gpu.EventsLost says so.
func (s *Source) Events() <-chan gpu.Event { return s.queue.out }

var errClosed = errors.New("nvmlsource: closed")

// beginCall counts a call that uses handles of GPUs, so that neither Close nor a change of the
// session unloads the driver's library under it.
func (s *Source) beginCall() (*usage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	switch {
	case s.closed:
		return nil, errClosed
	case s.session.blocked.Load():
		return nil, gpu.ErrLibraryClosed
	}

	return s.countCall(), nil
}

// countCall counts a call that uses handles of GPUs until endCall. The caller holds mu.
func (s *Source) countCall() *usage {
	s.active++
	u := &usage{began: time.Now()}
	s.session.using[u] = true

	return u
}

func (s *Source) endCall(u *usage) {
	s.mu.Lock()
	delete(s.session.using, u)

	if len(s.session.using) == 0 && s.session.unused != nil {
		close(s.session.unused)
		s.session.unused = nil
	}

	s.mu.Unlock()
	s.leave()
}

// enter counts a Discover, a change of the session or a part of one, so that Close waits for it.
func (s *Source) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.closed {
		return errClosed
	}

	s.active++

	return nil
}

func (s *Source) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.active--
	if s.closed && s.active == 0 {
		close(s.finished)
	}
}

// Read reads one GPU that Discover has listed: facts, MIG tree and readings. The result shares
// nothing with the Source that is ever modified. A reading that fails is in the errors of its
// entity; the error is for a GPU that cannot be read at all.
func (s *Source) Read(id gpu.UUID) (gpu.GPU, error) {
	return s.ReadWith(id, gpu.ReadCues{FollowMemory: true})
}

// ReadWith is Read with cues: what the caller wants to be read, and what it knows of the GPU's
// holders.
func (s *Source) ReadWith(id gpu.UUID, cues gpu.ReadCues) (gpu.GPU, error) {
	return s.readGPU(
		id,
		func(g *gpuState) (gpu.GPU, error) { return newGPURead(s, g, cues).read() },
	)
}

// ReadLayout reads the MIG mode of a GPU and its instances without their readings, by few calls. If
// the mode has changed or nothing of the GPU is known yet, it is a ReadWith instead, and whole is
// true. What else a change of the layout makes due is left to the next Read.
func (s *Source) ReadLayout(
	id gpu.UUID,
	cues gpu.ReadCues,
) (result gpu.GPU, whole bool, err error) {
	result, err = s.readGPU(id, func(g *gpuState) (gpu.GPU, error) {
		layout, known, err := newLayoutRead(s, g).readLayout()
		if known || err != nil {
			return layout, err
		}

		whole = true

		return newGPURead(s, g, cues).read()
	})

	return result, whole, err
}

// readGPU calls read for a GPU that Discover has listed, one call at a time.
func (s *Source) readGPU(id gpu.UUID, read func(*gpuState) (gpu.GPU, error)) (gpu.GPU, error) {
	use, err := s.beginCall()
	if err != nil {
		return gpu.GPU{}, err
	}
	defer s.endCall(use)
	s.mu.Lock()
	g := s.gpus[id]
	s.mu.Unlock()

	if g == nil {
		return gpu.GPU{}, fmt.Errorf("read GPU %s: %w", id, gpu.ErrNotFound)
	}

	defer func() {
		if g.isIn(phaseRetired) {
			s.retireGPU(g)
		}
	}()

	use.noteWait()
	g.reading.Lock()
	defer g.reading.Unlock()

	use.noteCall(time.Now())
	g.meter.use = use

	result, err := read(g)
	if err != nil {
		g.advanceTo(phaseLost)
		return gpu.GPU{}, fmt.Errorf("read GPU %s: %w", id, err)
	}

	s.noteFacts(result.Facts)

	return result, nil
}

func (s *Source) countInits() int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.inits
}

// shutDown calls nvmlShutdown as often as nvmlInit has succeeded: only the last call closes the
// GPUs.
func (s *Source) shutDown() error {
	for s.countInits() > 0 {
		ret := s.lib.Shutdown()
		if ret != nvml.SUCCESS && ret != nvml.ERROR_UNINITIALIZED {
			return checkReturn("nvmlShutdown", ret)
		}

		s.mu.Lock()

		s.inits--
		if ret == nvml.ERROR_UNINITIALIZED {
			s.inits = 0
		}

		s.mu.Unlock()
	}

	return nil
}

// Close ends the event queue and shuts NVML down, once. If a driver call still hangs when ctx ends,
// it returns an error and leaves NVML as it is: unloading it under a running call would kill the
// process.
func (s *Source) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}

	s.closed = true
	if s.active == 0 {
		close(s.finished)
	}

	s.mu.Unlock()

	done := make(chan error, 1)
	go func() {
		s.queue.stop()
		<-s.finished
		<-s.queue.stop() // a change of the session may have started it again
		s.queue.registering.Wait()
		var err error

		if s.countInits() > 0 && ctx.Err() == nil {
			s.freeSamples()
			err = s.shutDown()
		}

		done <- err
	}()

	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("close NVML: a driver call has not returned: %w", gpu.ErrTimeout)
	}
}
