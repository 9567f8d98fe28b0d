package poll

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestLayoutGenerations(t *testing.T) {
	tr := newTracked(uuidA, time.Time{})
	see := func(g gpu.GPU) gpu.GPU {
		tr.absorb(g, tr.last.LastRead.Add(time.Second))
		return tr.last
	}
	g := see(migGPU())
	if g.MIG.LayoutGeneration != 1 || g.Instances[0].Generation != 1 || tr.totals.LayoutChanges.Value != 0 {
		t.Errorf("first layout: generation %d, changes %v", g.MIG.LayoutGeneration, tr.totals.LayoutChanges.Value)
	}
	g = see(migGPU())
	if g.MIG.LayoutGeneration != 1 || tr.totals.LayoutChanges.Value != 0 {
		t.Errorf("same layout: generation %d, changes %v", g.MIG.LayoutGeneration, tr.totals.LayoutChanges.Value)
	}
	steps := []struct {
		name   string
		change func(*gpu.GPU)
		kept   bool // the GPU instance with id 1 keeps its generation
	}{
		{"compute instance gone", func(g *gpu.GPU) { g.Instances[0].Computes = g.Instances[0].Computes[:1] }, true},
		{"compute instance with the same id and another UUID", func(g *gpu.GPU) {
			g.Instances[0].Computes[0].UUID = "MIG-8"
			g.Instances[0].Computes = g.Instances[0].Computes[:1]
		}, true},
		{"id 1 stands elsewhere", func(g *gpu.GPU) { g.Instances[1].Placement = gpu.Some(gpu.Placement{Start: 6, Size: 2}) }, false},
		{"nothing left", func(g *gpu.GPU) { g.Instances = nil }, false},
	}
	for i, s := range steps {
		next := migGPU()
		s.change(&next)
		before := instanceGeneration(tr.last, 1)
		g = see(next)
		if want := uint64(i + 2); g.MIG.LayoutGeneration != want || tr.totals.LayoutChanges.Value != float64(i+1) {
			t.Errorf("%s: generation %d, changes %v; want %d and %d", s.name, g.MIG.LayoutGeneration, tr.totals.LayoutChanges.Value, want, i+1)
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
	var w wrapped
	if got := w.add(gpu.None[uint64](), 0, at); got.Present() {
		t.Errorf("never read: %v", got)
	}
	total := 0.0
	for _, step := range []struct {
		raw  gpu.Opt[uint64]
		grow float64
	}{
		{gpu.Some(uint64(1000)), 0}, // begins at 0 whatever the driver has counted before
		{gpu.Some(uint64(1500)), 500},
		{gpu.None[uint64](), 0}, // one failed reading
		{gpu.Some(uint64(1<<32 - 1)), 1<<32 - 1501},
		{gpu.Some(uint64(9)), 10}, // wrapped at 32 bits
		{gpu.Some(uint64(1 << 40)), 1<<40 - 9},
		{gpu.Some(uint64(7)), 7}, // too far for a wrap: began anew
	} {
		total += step.grow
		if got := w.add(step.raw, time.Second, at).Or(gpu.Counter{}); got.Value != total || !got.Since.Equal(at) {
			t.Errorf("after %v: %+v, want %v", step.raw, got, total)
		}
	}
}

func TestClockEventSeconds(t *testing.T) {
	tr := newTracked(uuidA, time.Time{})
	at := time.Unix(100, 0)
	see := func(events gpu.Opt[gpu.ClockEvents]) {
		tr.absorb(gpu.GPU{Readings: gpu.Readings{ClockEvents: events}}, at)
		at = at.Add(2 * time.Second)
	}
	see(gpu.None[gpu.ClockEvents]())
	if tr.totals.ClockEvents != nil {
		t.Errorf("a GPU that tells no clock events has %v", tr.totals.ClockEvents)
	}
	see(gpu.Some(gpu.ClockEvents(0x4)))
	see(gpu.Some(gpu.ClockEvents(0x4 | 0x20)))
	see(gpu.Some(gpu.ClockEvents(0)))
	want := map[string]float64{"sw_power_cap": 4, "sw_thermal_slowdown": 2}
	for _, c := range tr.totals.ClockEvents {
		if c.Seconds.Value != want[c.Reason] || c.Active {
			t.Errorf("%s: %v s, active %v; want %v s", c.Reason, c.Seconds.Value, c.Active, want[c.Reason])
		}
	}
}
