package poll

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	uuidA gpu.UUID = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
	uuidB gpu.UUID = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
)

// fakeSource answers what the test sets; a GPU in hang blocks until it is released.
type fakeSource struct {
	mu      sync.Mutex
	inv     gpu.Inventory
	invErr  error
	gpus    map[gpu.UUID]gpu.GPU
	errs    map[gpu.UUID]error
	hang    map[gpu.UUID]chan struct{}
	reads   map[gpu.UUID]int
	cues    []gpu.ReadCues   // of the readings, in turn
	layouts map[gpu.UUID]int // of ReadLayout
	whole   bool             // ReadLayout reads everything
	// layoutErrs are those of what ReadLayout reads.
	layoutErrs []gpu.ReadError
	events     chan gpu.Event
	discover   int
}

func newFakeSource(ids ...gpu.UUID) *fakeSource {
	s := &fakeSource{
		inv:     gpu.Inventory{Driver: gpu.Driver{Version: "580.95.05"}, GPUs: foundGPUs(ids...)},
		gpus:    map[gpu.UUID]gpu.GPU{},
		errs:    map[gpu.UUID]error{},
		hang:    map[gpu.UUID]chan struct{}{},
		reads:   map[gpu.UUID]int{},
		layouts: map[gpu.UUID]int{},
		events:  make(chan gpu.Event, 16),
	}
	for i, id := range ids {
		s.gpus[id] = gpu.GPU{Facts: gpu.Facts{UUID: id, Index: i, Minor: gpu.Some(i)},
			Readings: gpu.Readings{PowerWatts: gpu.Some(100.0)}}
	}

	return s
}

func foundGPUs(ids ...gpu.UUID) []gpu.FoundGPU {
	var list []gpu.FoundGPU
	for i, id := range ids {
		list = append(list, gpu.FoundGPU{Index: i, UUID: id})
	}

	return list
}

func (s *fakeSource) Discover() (gpu.Inventory, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.discover++

	return s.inv, s.invErr
}

func (s *fakeSource) ReadWith(id gpu.UUID, cues gpu.ReadCues) (gpu.GPU, error) {
	s.mu.Lock()
	s.cues = append(s.cues, cues)
	s.reads[id]++
	hang := s.hang[id]
	s.mu.Unlock()

	if hang != nil {
		<-hang
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gpus[id]
	g.Instances = cloneInstances(g.Instances)

	return g, s.errs[id]
}

func (s *fakeSource) ReadLayout(id gpu.UUID, _ gpu.ReadCues) (gpu.GPU, bool, error) {
	s.mu.Lock()
	s.layouts[id]++
	hang := s.hang[id]
	s.mu.Unlock()

	if hang != nil {
		<-hang
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	g := s.gpus[id]
	if s.whole {
		return g, true, s.errs[id]
	}

	layout := gpu.GPU{Facts: gpu.Facts{UUID: id}, MIG: g.MIG, Device: gpu.Device{Errors: s.layoutErrs}}
	for _, gi := range cloneInstances(g.Instances) {
		dropInstanceReadings(&gi)
		layout.Instances = append(layout.Instances, gi)
	}

	return layout, false, s.errs[id]
}

func (s *fakeSource) Events() <-chan gpu.Event { return s.events }

func (s *fakeSource) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// fakePods answers with a list of now or, if there is an error, with what is known without an
// answer: the last list, whose holders are unconfirmed if that is long ago.
type fakePods struct {
	list        gpu.Assignments
	err         error
	unconfirmed bool
	now         func() time.Time // start sets it
	last        time.Time
}

func (p *fakePods) List(context.Context) (gpu.Assignments, error) {
	list := p.list
	list.List = slices.Clone(list.List)

	if p.err == nil {
		p.last = p.now()
	}

	for n := range list.List {
		list.List[n].LastListed = p.last
		if p.unconfirmed {
			list.List[n].Holder.Unconfirmed = "no answer"
		}
	}

	return list, p.err
}

// fakeContainers knows the container of each pid.
type fakeContainers map[uint32]gpu.Container

func (c fakeContainers) ContainerOf(pid uint32) (gpu.Container, bool) {
	found, ok := c[pid]
	return found, ok
}

// clock is a stepped clock.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// harness runs a Poller on a stepped clock.
type harness struct {
	*Poller
	t     *testing.T
	clock *clock
}

func newHarness(t *testing.T, src GPUReader, change func(*Options)) *harness {
	t.Helper()
	c := newClock()

	opts := Options{
		Hostname: "node", Grace: time.Second, Timeout: 5 * time.Second, StaleAfter: 3 * time.Second,
		PodsStaleAfter: time.Minute, Now: c.Now, Logger: log.NewNopLogger(),
	}
	if change != nil {
		change(&opts)
	}

	if pods, ok := opts.Pods.(*fakePods); ok {
		pods.now = c.Now
	}

	h := &harness{Poller: New(src, opts), t: t, clock: c}

	return h
}

// startLoop starts the loop; the returned function stops it and returns its error.
func (h *harness) startLoop() (stop func() error) {
	ctx, cancel := context.WithCancel(h.t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()

	return func() error {
		cancel()
		return <-done
	}
}

// pollAfter advances the clock, polls and returns the new Snapshot.
func (h *harness) pollAfter(d time.Duration) *gpu.Snapshot {
	h.t.Helper()

	if err := h.Poll(h.t.Context(), func() error { h.clock.advance(d); return nil }); err != nil {
		h.t.Fatalf("poll: %v", err)
	}

	return h.Current()
}

func findGPU(t *testing.T, s *gpu.Snapshot, id gpu.UUID) *gpu.GPU {
	t.Helper()

	for i := range s.GPUs {
		if s.GPUs[i].UUID == id {
			return &s.GPUs[i]
		}
	}

	t.Fatalf("no GPU %s in the Snapshot", id)

	return nil
}
