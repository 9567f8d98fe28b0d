package poll

import (
	"fmt"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestReleasedGPU: a GPU that was let go of is released, not down, and the others keep their last readings while the
// driver's library is closed, until those are stale.
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
	a, b := &s.GPUs[0], &s.GPUs[1]
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
		src.inv, src.invErr = gpu.Inventory{GPUs: foundGPUs(uuidA, uuidB)}, nil
	})
	s = h.pollAfter(time.Second)
	for i := range s.GPUs {
		if g := &s.GPUs[i]; !g.Up || g.Released.Present() || g.Totals.ReadErrors[0].Value != 0 {
			t.Errorf("opened again: %+v", g)
		}
	}
}
