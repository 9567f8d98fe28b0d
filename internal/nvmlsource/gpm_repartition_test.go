package nvmlsource_test

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// partitioner repartitions GPU 0 again and again. Every instance that it ever created has a number,
// by which its activity is recognized.
type partitioner struct {
	*node
	layouts [][]part
	layout  int
	parts   []part // as they are now
	number  map[[2]int]int
	known   []part // by number
	settles bool   // the driver's events of a layout change have been received when it is over
}

// part is a GPU instance with one compute instance, or that compute instance.
type part struct {
	profile uint32
	start   int
	slices  int
	id      gpu.InstanceID
	compute gpu.ComputeID
}

// changeLayout destroys all instances and makes those of another layout.
func (c *partitioner) changeLayout(layout int) {
	c.t.Helper()

	for _, p := range c.parts {
		must(c.t, c.DestroyComputeInstance(0, p.id, p.compute))
		must(c.t, c.DestroyGPUInstance(0, p.id))
	}

	c.layout = layout
	c.parts = nil

	c.number = map[[2]int]int{}
	for _, p := range c.layouts[layout] {
		var err error
		p.id, err = c.CreateGPUInstance(0, p.profile, gpu.Some(p.start))
		must(c.t, err)
		p.compute, err = c.CreateComputeInstance(0, p.id, p.slices)
		must(c.t, err)

		c.parts = append(c.parts, p)
		for _, key := range [][2]int{{int(p.id), -1}, {int(p.id), int(p.compute)}} {
			c.number[key] = len(c.known)
			c.known = append(c.known, p)
		}
	}

	if c.settles {
		c.AwaitHandled(c.t.Context())
	}
}

func must(t *testing.T, err error) {
	t.Helper()

	if err != nil {
		t.Fatal(err)
	}
}

func newPartitioner(t *testing.T) *partitioner {
	n := profiledNode(t, "version: 1\nnode: {kubernetes: false}\ngpus:\n  - {model: H100-80GB, mig: true}\n")
	c := &partitioner{node: n, known: make([]part, 1), layouts: [][]part{
		{{profile: 9, start: 4, slices: 3}, {profile: 5, start: 0, slices: 4}},
		{{profile: 9, start: 0, slices: 3}, {profile: 9, start: 4, slices: 3}},
		{{profile: 14, start: 4, slices: 2}, {profile: 19, start: 0, slices: 1}, {profile: 14, start: 2, slices: 2}},
	}}
	n.spy.occupant = func(instance, compute int) int { return c.number[[2]int{instance, compute}] }
	c.changeLayout(0)

	return c
}

// check holds that every value is of the instance that it is given for, and returns how many there
// are.
func (c *partitioner) check(g gpu.GPU) (values int) {
	c.t.Helper()

	of := func(a gpu.Activity, i gpu.GPUInstance) {
		sm, ok := a.SM.Get()
		if !ok {
			return
		}

		values++

		number := int(sm*100 + 0.5)
		if number >= len(c.known) {
			c.t.Fatalf("instance %d of %s: a window of two instances", i.ID, i.Profile)
		}

		was := c.known[number]
		if place, _ := i.Placement.Get(); was.id != i.ID || place.Start != was.start || i.ProfileID != gpu.Some(was.profile) {
			c.t.Fatalf("instance %d, profile %v at %d, has the activity of %+v", i.ID, i.ProfileID, place.Start, was)
		}
	}
	for _, i := range g.Instances {
		of(i.Activity, i)

		for _, ci := range i.ComputeInstances {
			of(ci.Activity, i)
		}
	}

	return values
}

// run polls while another client repartitions the GPU between any two driver calls, and returns how
// many values were served.
func (c *partitioner) run(layoutChanges int, next func() int) (values int) {
	id := c.discover()[0]
	calls := 0
	at := -1
	done := 0
	c.spy.always(func() {
		if calls++; calls == at {
			c.changeLayout(next())
			done++
		}
	})
	random := rand.New(rand.NewPCG(4, 2))

	for round := 0; done < layoutChanges; round++ {
		calls = 0

		at = -1
		if round%4 < 2 { // two in a row, then time for a window
			at = 1 + random.IntN(60)
		}

		c.advance(time.Second)

		g, err := c.source.Read(id)
		if err != nil {
			c.t.Fatal(err)
		}

		values += c.check(g)
	}

	c.spy.always(nil)

	return values
}

// TestLayoutChangesNeverMixInstances: nothing that was measured at one instance is served at
// another, nor is what comes out of samples of two, wherever between two driver calls the layout
// changes; also where the driver has no events.
func TestLayoutChangesNeverMixInstances(t *testing.T) {
	// what came back in between looks as if nothing had happened: three layouts in turn
	t.Run("without events", func(t *testing.T) {
		c := newPartitioner(t)
		c.spy.set("RegisterEvents(MIG)", nvml.ERROR_NOT_SUPPORTED)

		if values := c.run(2000, func() int { return (c.layout + 1) % len(c.layouts) }); values < 1000 {
			t.Errorf("only %d values were served", values)
		}
	})
	t.Run("with events", func(t *testing.T) { // the same layout may come back at once, with the same ids and UUIDs
		c := newPartitioner(t)
		random := rand.New(rand.NewPCG(1, 2))
		next := func() int { return random.IntN(len(c.layouts)) }
		c.discover()

		c.settles = true
		if values := c.run(2000, next); values < 1000 {
			t.Errorf("only %d values were served", values)
		}
	})
}

// TestLayoutChangesLeakNothing: however often the layout changes, the samples are those that its
// instances need, and all are freed at the end.
func TestLayoutChangesLeakNothing(t *testing.T) {
	c := newPartitioner(t)
	c.spy.set("RegisterEvents(MIG)", nvml.ERROR_NOT_SUPPORTED)
	next := func() int { return (c.layout + 1) % len(c.layouts) }
	c.run(100, next)
	taken := c.spy.taken()
	made := taken["GpmSampleAlloc"]
	goroutines := runtime.NumGoroutine()
	c.run(10_000, next)

	if more := c.spy.taken()["GpmSampleAlloc"]; made == 0 || made > 2*9 || more > 0 {
		t.Errorf("%d samples, then %d more; want 1 to 18, then none", made, more)
	}

	if now := runtime.NumGoroutine(); now > goroutines {
		t.Errorf("%d goroutines, then %d", goroutines, now)
	}

	must(t, c.source.Close(t.Context()))

	if freed := c.spy.taken()["GpmSampleFree"]; freed != made {
		t.Errorf("%d samples made, %d freed", made, freed)
	}
}
