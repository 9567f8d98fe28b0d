package poll

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestLayoutGenerations(t *testing.T) {
	tr := newTestGPU()
	see := func(g gpu.GPU) gpu.GPU {
		tr.recordReading(g, tr.last.LastRead.Add(time.Second))
		return tr.last
	}
	g := see(migGPU())
	cmptest.Equal(t, "first generation", g.MIG.LayoutGeneration, 1)
	cmptest.Equal(t, "first generation of an instance", g.Instances[0].Generation, 1)
	cmptest.Equal(t, "changes before the first", tr.totals.LayoutChanges.Value, 0)

	g = see(migGPU())
	if g.MIG.LayoutGeneration != 1 || tr.totals.LayoutChanges.Value != 0 {
		t.Errorf("same layout: generation %d, changes %v", g.MIG.LayoutGeneration, tr.totals.LayoutChanges.Value)
	}

	steps := []struct {
		name   string
		change func(*gpu.GPU)
		kept   bool // the GPU instance with id 1 keeps its generation
	}{
		{"compute instance gone", func(g *gpu.GPU) { g.Instances[0].ComputeInstances = g.Instances[0].ComputeInstances[:1] },
			true},
		{"compute instance with the same id and another UUID", func(g *gpu.GPU) {
			g.Instances[0].ComputeInstances[0].UUID = "MIG-8"
			g.Instances[0].ComputeInstances = g.Instances[0].ComputeInstances[:1]
		}, true},
		{"id 1 is elsewhere", func(g *gpu.GPU) { g.Instances[1].Placement = gpu.Some(gpu.Placement{Start: 6, Size: 2}) },
			false},
		{"nothing left", func(g *gpu.GPU) { g.Instances = nil }, false},
	}
	for i, s := range steps {
		next := migGPU()
		s.change(&next)
		before := instanceGeneration(tr.last, 1)

		g = see(next)
		if want := uint64(i + 2); g.MIG.LayoutGeneration != want || tr.totals.LayoutChanges.Value != float64(i+1) {
			t.Errorf("%s: generation %d, changes %v; want %d and %d", s.name, g.MIG.LayoutGeneration,
				tr.totals.LayoutChanges.Value, want, i+1)
		}

		if after := instanceGeneration(g, 1); (after == before) != s.kept {
			t.Errorf("%s: generation of instance 1 went from %d to %d", s.name, before, after)
		}
	}
}

func instanceGeneration(g gpu.GPU, id gpu.InstanceID) uint64 {
	for i := range g.Instances {
		if g.Instances[i].ID == id {
			return g.Instances[i].Generation
		}
	}

	return 0
}

func TestWrappedCounters(t *testing.T) {
	at := time.Unix(1, 0)

	var w growingCounter
	if got := w.update(gpu.None[uint64](), false, true, at); got.Present() {
		t.Errorf("never read: %v", got)
	}

	total := 0.0
	for _, step := range []struct {
		name  string
		raw   gpu.Opt[uint64]
		wraps bool
		grow  float64
	}{
		{"begins at 0 whatever the driver has counted before", gpu.Some(uint64(1000)), true, 0},
		{"grows", gpu.Some(uint64(1500)), true, 500},
		{"one failed reading", gpu.None[uint64](), true, 0},
		{"grows over it", gpu.Some(uint64(1<<32 - 1)), true, 1<<32 - 1501},
		{"wraps", gpu.Some(uint64(9)), true, 10},
		{"started again", gpu.Some(uint64(5)), false, 5},
		{"is wide after all", gpu.Some(uint64(1 << 40)), true, 1<<40 - 5},
		{"a wide one that fell started again", gpu.Some(uint64(7)), true, 7},
	} {
		total += step.grow

		got := w.update(step.raw, true, step.wraps, at).Or(gpu.Counter{})
		if got.Value != total || !got.Since.Equal(at) {
			t.Errorf("%s: %+v, want %v", step.name, got, total)
		}
	}

	if got := w.update(gpu.None[uint64](), false, true, at); got.Present() {
		t.Errorf("no longer reported: %v, want nothing", got)
	}
}

// TestInstancesThatWereNotSeen: a scan that fails is no layout change, nor is the loss of the right
// to see placements.
func TestInstancesThatWereNotSeen(t *testing.T) {
	tr := newTestGPU()
	tr.recordReading(migGPU(), time.Unix(1, 0))
	blind := migGPU()
	blind.Instances = nil
	blind.Errors = []gpu.ReadError{{Reading: gpu.ReadingMIG, Err: gpu.ErrDriver}}
	tr.recordReading(blind, time.Unix(2, 0))

	up := []bool{}
	for i := range tr.last.Instances {
		up = append(up, tr.last.Instances[i].Up)
	}

	cmptest.Equal(t, "instances that are up after a failed scan", up, []bool{false, false})
	cmptest.Equal(t, "changes after a failed scan", tr.totals.LayoutChanges.Value, 0)

	narrow := migGPU()
	for i := range narrow.Instances {
		narrow.Instances[i].Placement = gpu.None[gpu.Placement]()
	}

	tr.recordReading(narrow, time.Unix(3, 0))

	if tr.totals.LayoutChanges.Value != 0 || tr.last.Instances[0].Generation != 1 {
		t.Errorf("placements no longer reported: %v changes, generation %d", tr.totals.LayoutChanges.Value,
			tr.last.Instances[0].Generation)
	}

	empty := migGPU()
	empty.Instances = nil
	tr.recordReading(empty, time.Unix(4, 0))

	if tr.totals.LayoutChanges.Value != 1 || len(tr.last.Instances) != 0 {
		t.Errorf("all destroyed: %v changes, %d instances", tr.totals.LayoutChanges.Value, len(tr.last.Instances))
	}
}

// TestMIGModeThatCouldNotBeRead: after a failed reading of the MIG mode, the instances and totals
// stay; a GPU that has no MIG counts no layout changes.
func TestMIGModeThatCouldNotBeRead(t *testing.T) {
	tr := newTestGPU()
	tr.totals.LayoutChanges.Since = time.Unix(1, 0)
	see := func(at int64, g gpu.GPU) gpu.GPU {
		tr.recordReading(g, time.Unix(at, 0))
		return tr.snapshotGPU(time.Unix(at, 0), time.Minute)
	}

	blind := gpu.GPU{Device: gpu.Device{Errors: []gpu.ReadError{{Reading: gpu.ReadingMIG, Err: gpu.ErrDriver}}}}
	if g := see(1, blind); !g.Totals.LayoutChanges.Since.IsZero() {
		t.Errorf("a GPU of which it was never known counts layout changes: %+v", g.Totals.LayoutChanges)
	}

	see(2, migGPU())
	less := migGPU()
	less.Instances = less.Instances[:1]

	want := see(3, less)
	for at, next := range map[string]gpu.GPU{"failed": blind, "read again": less} {
		g := see(4, next)
		cmptest.Equal(t, at+": layout changes", g.Totals.LayoutChanges, gpu.Counter{Value: 1, Since: time.Unix(1, 0)})

		if len(g.Instances) != 1 {
			t.Fatalf("%s: %d instances, want 1", at, len(g.Instances))
		}

		cmptest.Equal(t, at+": generation", g.Instances[0].Generation, want.Instances[0].Generation)
		cmptest.Equal(t, at+": up", g.Instances[0].Up, at != "failed")
	}

	see(5, blind)

	if g := see(6, gpu.GPU{}); !g.Totals.LayoutChanges.Since.IsZero() || len(g.Instances) != 0 {
		t.Errorf("the GPU has no MIG: layout changes %+v, %d instances", g.Totals.LayoutChanges, len(g.Instances))
	}
}

// TestPermissionToSeeTheTree: a GPU instance without a compute instance shows only with the right
// to list it. That it is out of sight is no change of the layout, nor is what could still be
// created known then.
func TestPermissionToSeeTheTree(t *testing.T) {
	tr := newTestGPU()
	all := migGPU()
	all.Instances[1].ComputeInstances = nil
	all.Profiles[0].Placements = []gpu.Placement{{Start: 0, Size: 4}, {Start: 4, Size: 4}}
	tr.recordReading(all, time.Unix(1, 0))
	denied := []gpu.ReadError{{Reading: gpu.ReadingMIG, Err: gpu.ErrNoPermission, Remembered: true}}
	see := func(at int64, errs []gpu.ReadError, instances ...gpu.GPUInstance) (generation uint64, capacity bool) {
		g := all
		g.Errors, g.Instances = errs, cloneInstances(instances)
		tr.recordReading(g, time.Unix(at, 0))

		return tr.last.MIG.LayoutGeneration, tr.last.Capacity.Present()
	}
	generation, capacity := see(2, denied, all.Instances[0])
	cmptest.Equal(t, "out of sight: generation", generation, 1)
	cmptest.Equal(t, "out of sight: capacity", capacity, false)
	cmptest.Equal(t, "out of sight: number of instances", len(tr.last.Instances), 1)
	generation, capacity = see(3, nil, all.Instances...)
	cmptest.Equal(t, "in sight again: generation", generation, 1)
	cmptest.Equal(t, "in sight again: capacity", capacity, true)
	cmptest.Equal(t, "in sight again: since", tr.last.Instances[1].Since, time.Unix(1, 0))
	less := cloneInstances(all.Instances)[0]

	less.ComputeInstances = less.ComputeInstances[:1]
	if generation, _ := see(4, denied, less); generation != 2 {
		t.Errorf("a compute instance gone while the others are out of sight: generation %d, want 2", generation)
	}

	if generation, _ := see(5, nil, less, all.Instances[1]); generation != 2 {
		t.Errorf("the one out of sight is still there: generation %d, want 2", generation)
	}

	if generation, _ := see(6, denied, less); generation != 2 {
		t.Errorf("out of sight: generation %d, want 2", generation)
	}

	if generation, _ := see(7, nil, less); generation != 3 {
		t.Errorf("destroyed while it was out of sight: generation %d, want 3", generation)
	}
}

func TestRememberedErrorsAreNotCounted(t *testing.T) {
	tr := newTestGPU()
	g := migGPU()
	g.Errors = []gpu.ReadError{{Reading: gpu.ReadingECC, Err: gpu.ErrDriver},
		{Reading: gpu.ReadingMIG, Err: gpu.ErrNoPermission, Remembered: true}}
	tr.recordReading(g, time.Unix(1, 0))
	tr.recordReading(g, time.Unix(2, 0))

	published := tr.snapshotGPU(time.Unix(2, 0), time.Minute)
	if ecc, mig := errorCount(&published, gpu.ReadingECC, gpu.ReasonOther), errorCount(&published, gpu.ReadingMIG,
		gpu.ReasonNoPermission); ecc != 2 || mig != 0 {
		t.Errorf("ECC failed %v times, MIG %v; want 2 and 0", ecc, mig)
	}
}

// TestCapacityWithoutMIG: while MIG is off, only the maximum of each profile is set, and nothing
// can be created.
func TestCapacityWithoutMIG(t *testing.T) {
	tr := newTestGPU()
	g := migGPU()
	g.Instances, g.MIG.Enabled = nil, gpu.Some(false)
	g.Profiles = []gpu.Profile{
		{ID: 9, Name: "3g.20gb", ComputeSlices: 3, MemorySlices: 4,
			Placements: []gpu.Placement{{Start: 0, Size: 4}, {Start: 4, Size: 4}}},
		{ID: 0, Name: "7g.40gb", ComputeSlices: 7, MemorySlices: 8, Placements: []gpu.Placement{{Start: 0, Size: 8}}},
	}
	tr.recordReading(g, time.Unix(1, 0))

	got, ok := tr.last.Capacity.Get()
	if !ok {
		t.Fatal("no capacity while MIG is off")
	}

	cmptest.Equal(t, "profiles while MIG is off", got.Profiles,
		[]gpu.ProfileCapacity{{Name: "3g.20gb", Max: 2}, {Name: "7g.40gb", Max: 1}})
	cmptest.Equal(t, "memory slices while MIG is off", got.Memory, gpu.SliceCount{})
	g.MIG.Enabled = gpu.Some(true)
	tr.recordReading(g, time.Unix(2, 0))

	if got := tr.last.Capacity.Or(gpu.Capacity{}); got.Profiles[0].Available != 2 || got.Memory.Free != 8 {
		t.Errorf("capacity with MIG on %+v", got)
	}
}

func TestClockEventSeconds(t *testing.T) {
	tr := newTestGPU()
	at := time.Unix(100, 0)
	see := func(events gpu.Opt[gpu.ClockEvents]) {
		tr.recordReading(gpu.GPU{Readings: gpu.Readings{ClockEvents: events}}, at)
		at = at.Add(2 * time.Second)
	}
	see(gpu.None[gpu.ClockEvents]())

	if tr.totals.ClockEvents != nil {
		t.Errorf("a GPU that reports no clock events has %v", tr.totals.ClockEvents)
	}

	see(gpu.Some(gpu.ClockEvents(0x4)))
	see(gpu.Some(gpu.ClockEvents(0x4 | 0x20)))
	tr.maxGap = time.Second
	see(gpu.Some(gpu.ClockEvents(0x20))) // read 2 s later, of which 1 s counts
	see(gpu.Some(gpu.ClockEvents(0)))

	want := map[string]float64{"sw_power_cap": 4, "sw_thermal_slowdown": 3}
	for _, c := range tr.totals.ClockEvents {
		if c.Seconds.Value != want[c.Reason] || c.Active {
			t.Errorf("%s: %v s, active %v; want %v s", c.Reason, c.Seconds.Value, c.Active, want[c.Reason])
		}
	}
}
