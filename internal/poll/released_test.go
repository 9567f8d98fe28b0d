package poll

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestReleasedGPU: a GPU that was let go of is released, not down, and the others keep their last
// readings while the driver's library is closed, until those are stale.
func TestReleasedGPU(t *testing.T) {
	src := newFakeSource(uuidA, uuidB)
	h := newHarness(t, src, nil)
	stop := h.startLoop()
	defer stop()
	h.pollAfter(time.Second)

	released := gpu.ReleasedGPU{FoundGPU: gpu.FoundGPU{Index: 0, UUID: uuidA}, Release: gpu.Release{Cause: "operator"}}
	src.set(func() {
		src.inv = gpu.Inventory{Released: []gpu.ReleasedGPU{released}}
		src.invErr = fmt.Errorf("%w: a reason", gpu.ErrLibraryClosed)
	})
	s := h.pollAfter(time.Second)

	a := &s.GPUs[0]
	b := &s.GPUs[1]

	if a.Up || !a.Released.Present() || len(a.Errors) > 0 || a.Readings.PowerWatts.Present() {
		t.Errorf("the released GPU: %+v", a)
	}

	if !b.Up || !b.Readings.PowerWatts.Present() || !s.Sources[0].Up {
		t.Errorf("the other GPU: %+v, sources %+v", b, s.Sources)
	}

	s = h.pollAfter(h.opts.StaleAfter)

	b = &s.GPUs[1]
	if b.Up || b.Readings.PowerWatts.Present() || s.Sources[0].Up || b.Released.Present() {
		t.Errorf("the other GPU once it is stale: %+v, sources %+v", b, s.Sources)
	}

	src.set(func() {
		src.inv = gpu.Inventory{GPUs: foundGPUs(uuidA, uuidB)}
		src.invErr = nil
	})

	s = h.pollAfter(time.Second)
	for i := range s.GPUs {
		if g := &s.GPUs[i]; !g.Up || g.Released.Present() || g.Totals.ReadErrors[0].Value != 0 {
			t.Errorf("opened again: %+v", g)
		}
	}
}

// TestClosedLibraryFollowsThePace: while readings are stretched to 5 s, the last ones stay for
// three of those intervals after the driver's library was closed.
func TestClosedLibraryFollowsThePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(uuidA)
		h, stop := stretchedLoop(t, src, log.NewNopLogger())

		src.set(func() { src.invErr = fmt.Errorf("%w: a reason", gpu.ErrLibraryClosed) })
		kept := 0

		for range 30 {
			time.Sleep(time.Second)
			synctest.Wait()

			if s := h.Current(); s.GPUs[0].Up && s.Sources[0].Up {
				kept++
			}
		}

		if kept < 9 || kept > 20 {
			t.Errorf("the GPU is up for %d s after the library was closed, want 9 to 20", kept)
		}

		if h.Current().GPUs[0].Readings.PowerWatts.Present() {
			t.Error("expected no readings after 30 s")
		}

		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestHoldersOfReleasedGPU: the pods of a released MIG GPU keep its devices by its last layout,
// although that is not shown; without a holder we do not know whether a released GPU is free.
func TestHoldersOfReleasedGPU(t *testing.T) {
	src := newFakeSource(uuidA, uuidB)
	src.gpus[uuidA] = migGPU()
	pods := &fakePods{list: gpu.Assignments{List: []gpu.Assignment{
		newAssignment(gpu.DeviceRef{MIG: "MIG-3"}, "held", 1),
		newAssignment(legacyRef(2, 0), "part", 1),
	}}}
	logged := &logLines{text: "not on this node"}
	h := newHarness(t, src, func(o *Options) { o.Pods, o.Logger = pods, logged })
	stop := h.startLoop()
	defer stop()
	s := h.pollAfter(time.Second)
	cmptest.Equal(t, "allocated before", s.GPUs[0].Allocated, gpu.Some(true))

	if useOf(&s.GPUs[0], "held", gpu.Some(gpu.InstanceID(1)), gpu.Some(gpu.ComputeID(0))) == nil {
		t.Fatalf("uses before: %+v", s.GPUs[0].Containers)
	}

	released := make([]gpu.ReleasedGPU, 2)
	for i, found := range foundGPUs(uuidA, uuidB) {
		released[i] = gpu.ReleasedGPU{FoundGPU: found, Release: gpu.Release{Cause: gpu.ReleasedByOperator}}
	}

	src.set(func() { src.inv = gpu.Inventory{Released: released} })

	for range 3 {
		s = h.pollAfter(time.Second)
		a := &s.GPUs[0]
		b := &s.GPUs[1]
		cmptest.Equal(t, "allocated", a.Allocated, gpu.Some(true))
		cmptest.Equal(t, "instances", len(a.Instances), 0)
		cmptest.Equal(t, "MIG mode", a.MIG.Enabled, gpu.None[bool]())
		cmptest.Equal(t, "unmatched", len(s.Unmatched), 0)
		cmptest.Equal(t, "allocated, without a pod", b.Allocated, gpu.None[bool]())

		if useOf(a, "held", gpu.Some(gpu.InstanceID(1)), gpu.Some(gpu.ComputeID(0))) == nil {
			t.Errorf("the pod's holding has ended: %+v", a.Containers)
		}
	}

	pods.list.List = append(pods.list.List, newAssignment(legacyRef(9, 0), "new layout", 2),
		newAssignment(gpu.DeviceRef{MIG: "MIG-gone"}, "gone", 2))

	s = h.pollAfter(time.Second)
	if len(s.Unmatched) != 1 || s.Unmatched[0].Holder.Pod != "gone" {
		t.Errorf("unmatched: %+v, want that of another GPU alone", s.Unmatched)
	}

	cmptest.Equal(t, "messages", logged.count.Load(), int64(1))
}

// TestReleasedGPUWithoutDriver: a GPU stays released, and becomes so, while the driver does not
// answer or is unloaded.
func TestReleasedGPUWithoutDriver(t *testing.T) {
	released := gpu.ReleasedGPU{FoundGPU: gpu.FoundGPU{Index: 0, UUID: uuidA}, Release: gpu.Release{Cause: "operator"}}
	for _, err := range []error{gpu.ErrDriver, gpu.ErrNoDriver} {
		src := newFakeSource(uuidA, uuidB)
		h := newHarness(t, src, nil)
		stop := h.startLoop()
		h.pollAfter(time.Second)

		src.set(func() { src.inv, src.invErr = gpu.Inventory{Released: []gpu.ReleasedGPU{released}}, err })

		for range 3 {
			s := h.pollAfter(time.Second)

			a := &s.GPUs[0]

			b := &s.GPUs[1]
			if !a.Released.Present() || len(a.Errors) > 0 || s.Sources[0].Up {
				t.Errorf("%v: the released GPU: %+v, sources %+v", err, a, s.Sources)
			}

			cmptest.Equal(t, "released: the other GPU", b.Released.Present(), false)
		}

		src.set(func() { src.inv, src.invErr = gpu.Inventory{}, err })

		if s := h.pollAfter(time.Second); s.GPUs[0].Released.Present() || s.GPUs[0].Up {
			t.Errorf("%v: not released any more, without an answer: %+v", err, s.GPUs[0])
		}

		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}
