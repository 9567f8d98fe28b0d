package poll

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// jumps are what the clock does from one poll to the next.
var jumps = []time.Duration{
	time.Second, time.Hour, time.Second, -time.Hour, time.Second, -24 * time.Hour, time.Second, 24 * time.Hour,
	-time.Nanosecond, time.Second,
}

// busyGPU is a MIG GPU after n polls: its counters grow.
func busyGPU(n int) gpu.GPU {
	g := migGPU()
	g.Readings.EnergyJoules = gpu.Some(1000 + 200*float64(n))
	g.Readings.ClockEvents = gpu.Some(gpu.ClockEvents(4))
	g.Readings.PCIe.ReceiveBytes = gpu.Some(uint64(1000 * n))
	g.Instances[0].Processes = gpu.Some(1)

	return g
}

// growingTotals are the running totals of a GPU that may only grow.
func growingTotals(g *gpu.GPU) []float64 {
	list := []float64{g.Totals.PCIeReceive.Or(gpu.Counter{}).Value,
		g.Totals.EnergyUnallocatedJoules.Or(gpu.Counter{}).Value}
	for _, r := range g.Totals.ClockEvents {
		list = append(list, r.Seconds.Value)
	}

	for i := range g.Instances {
		list = append(list, g.Instances[i].EnergyJoules.Or(gpu.Counter{}).Value)
	}

	return list
}

func TestClockThatJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(uuidA)
		pods := &fakePods{list: gpu.Assignments{List: []gpu.Assignment{
			{Device: gpu.DeviceRef{MIG: "MIG-3"},
				Holder: gpu.Holder{Container: gpu.Container{Pod: "p"}, Sharing: gpu.SharingExclusive}},
		}}}
		h := newHarness(t, src, func(o *Options) { o.Pods = pods })
		src.gpus[uuidA] = busyGPU(0)
		stop := h.startLoop()
		var before []float64

		for n, jump := range jumps {
			src.set(func() { src.gpus[uuidA] = busyGPU(n + 1) })
			s := h.pollAfter(jump)
			g := findGPU(t, s, uuidA)
			at := fmt.Sprintf("step %d, after %s", n, jump)
			cmptest.Equal(t, at+": up", g.Up, true)
			cmptest.Equal(t, at+": last read", g.LastRead, s.Time)
			cmptest.Equal(t, at+": power", g.Readings.PowerWatts, busyGPU(0).Readings.PowerWatts)

			for _, source := range s.Sources {
				cmptest.Equal(t, at+": source", source, gpu.SourceState{Name: source.Name, Up: true, LastSuccess: s.Time})
			}

			if holders := g.Instances[1].ComputeInstances[0].Holders; len(holders) != 1 {
				t.Errorf("%d: after %s: holders %+v", n, jump, holders)
			}

			now := growingTotals(g)
			for i := range before {
				if now[i] < before[i] {
					t.Errorf("%d: after %s: counter %d went from %g to %g", n, jump, i, before[i], now[i])
				}
			}

			before = now

			if g.Totals.LayoutChanges.Value != 0 {
				t.Errorf("%d: after %s: the layout changed", n, jump)
			}
		}

		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestClockSetBackInAnOutage: what does not answer comes of age as if the clock had gone on.
func TestClockSetBackInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(uuidA, uuidB)
		pods := &fakePods{list: gpu.Assignments{List: []gpu.Assignment{
			{Device: gpu.DeviceRef{GPU: uuidA},
				Holder: gpu.Holder{Container: gpu.Container{Pod: "p"}, Sharing: gpu.SharingExclusive}},
		}}}
		h := newHarness(t, src, func(o *Options) { o.Pods = pods })
		stop := h.startLoop()
		h.pollAfter(time.Second)
		release := make(chan struct{})
		src.set(func() { src.hang[uuidB] = release })
		pods.err = gpu.ErrUnavailable
		h.pollAfter(time.Second)
		s := h.pollAfter(-time.Hour)
		b := findGPU(t, s, uuidB)
		cmptest.Equal(t, "at the jump: up", b.Up, true)
		cmptest.Equal(t, "at the jump: last read in the future", b.LastRead.After(s.Time), false)
		cmptest.Equal(t, "at the jump: number of holders", len(findGPU(t, s, uuidA).Holders), 1)
		s = h.pollAfter(5 * time.Second)
		b = findGPU(t, s, uuidB)
		cmptest.Equal(t, "past the timeout: up", b.Up, false)
		cmptest.Equal(t, "past the timeout: power", b.Readings.PowerWatts, gpu.None[float64]())
		cmptest.Equal(t, "past the timeout: hung calls", s.HungCalls, 1)

		if a := findGPU(t, s, uuidA); !a.Up || len(a.Holders) != 1 {
			t.Errorf("past the timeout: the other GPU is up %v, held by %v", a.Up, a.Holders)
		}

		pods.unconfirmed = true

		s = h.pollAfter(h.opts.PodsStaleAfter)
		if a := findGPU(t, s, uuidA); len(a.Holders) != 1 || a.Holders[0].Unconfirmed == "" {
			t.Errorf("past stale-after: held by %v, want it unconfirmed", a.Holders)
		}

		src.set(func() { delete(src.hang, uuidB) })
		close(release)
		synctest.Wait()

		s = h.pollAfter(time.Second)
		if b := findGPU(t, s, uuidB); !b.Up || !b.LastRead.Equal(s.Time) {
			t.Errorf("after the hang: up %v, last read %s at %s", b.Up, b.LastRead, s.Time)
		}

		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestLookupThatHangs: a GPU whose handle the driver does not give in time counts as down after the
// timeout, once.
func TestLookupThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(uuidA)
		src.inv.Missing = []gpu.MissingGPU{{Index: 1, Err: gpu.ErrTimeout, Hung: true}}
		h := newHarness(t, src, nil)
		stop := h.startLoop()

		s := h.pollAfter(4 * time.Second)
		if len(s.GPUs) != 1 || s.HungCalls != 0 {
			t.Errorf("before the timeout: %d GPUs, %d hung calls", len(s.GPUs), s.HungCalls)
		}

		for range 3 {
			s = h.pollAfter(time.Second)
			if len(s.GPUs) != 2 {
				t.Fatalf("after the timeout: %d GPUs, want 2", len(s.GPUs))
			}

			cmptest.Equal(t, "after the timeout: up", s.GPUs[1].Up, false)
			cmptest.Equal(t, "after the timeout: errors", s.GPUs[1].Errors,
				[]gpu.ReadError{{Reading: gpu.ReadingDevice, Err: gpu.ErrTimeout}})
			cmptest.Equal(t, "after the timeout: hung calls", s.HungCalls, 1)

			if n := errorCount(&s.GPUs[1], gpu.ReadingDevice, gpu.ReasonTimeout); n != 1 {
				t.Errorf("%g timeouts", n)
			}
		}

		src.set(func() {
			src.inv = gpu.Inventory{Driver: src.inv.Driver, GPUs: foundGPUs(uuidA, uuidB)}
			src.gpus[uuidB] = gpu.GPU{Facts: gpu.Facts{UUID: uuidB, Index: 1}}
		})
		s = h.pollAfter(time.Second)
		cmptest.Equal(t, "GPUs that are found at last", gpuUUIDs(s), []gpu.UUID{uuidA, uuidB})
		cmptest.Equal(t, "found at last: up", findGPU(t, s, uuidB).Up, true)
		cmptest.Equal(t, "found at last: hung calls", s.HungCalls, 0)

		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
