package poll

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestLateReadingOfALostGPU: a reading that returns once its GPU is no longer in the inventory says
// nothing of now. It neither makes the GPU up nor counts as another error.
func TestLateReadingOfALostGPU(t *testing.T) {
	for name, err := range map[string]error{"a reading": nil, "an error": gpu.ErrDriver} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src := newFakeSource(uuidA, uuidB)
				h := newHarness(t, src, nil)
				stop := h.startLoop()
				before := h.pollAfter(time.Second)
				release := make(chan struct{})
				src.set(func() { src.hang[uuidB] = release })
				h.pollAfter(time.Second)
				src.set(func() { src.inv.GPUs, src.errs[uuidB] = foundGPUs(uuidA), err })
				h.pollAfter(time.Second)
				close(release)
				synctest.Wait()

				for range 2 {
					b := findGPU(t, h.pollAfter(time.Second), uuidB)
					cmptest.Equal(t, "up", b.Up, false)
					cmptest.Equal(t, "errors", b.Errors, []gpu.ReadError{{Reading: gpu.ReadingDevice, Err: gpu.ErrLost}})
					cmptest.Equal(t, "last read", b.LastRead, before.Time)

					if n := errorCount(b, gpu.ReadingDevice, gpu.ReasonOther); n != 0 {
						t.Errorf("the late error is counted %v times", n)
					}
				}

				src.set(func() { src.inv.GPUs = foundGPUs(uuidA, uuidB); delete(src.hang, uuidB); delete(src.errs, uuidB) })

				if s := h.pollAfter(time.Second); !findGPU(t, s, uuidB).Up || !findGPU(t, s, uuidB).LastRead.Equal(s.Time) {
					t.Error("a GPU that is found again is not read")
				}

				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestLateReadingHasTheIndexOfNow: the driver enumerates the GPUs anew while a reading is under
// way.
func TestLateReadingHasTheIndexOfNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(uuidA, uuidB)
		h := newHarness(t, src, nil)
		stop := h.startLoop()
		h.pollAfter(time.Second)
		release := make(chan struct{})
		src.set(func() { src.hang[uuidB] = release })
		h.pollAfter(time.Second)
		src.set(func() { src.inv.GPUs = foundGPUs(uuidB, uuidA) })
		close(release)
		synctest.Wait()
		src.set(func() { src.hang[uuidB] = make(chan struct{}) }) // the next reading does not return

		if b := findGPU(t, h.pollAfter(time.Second), uuidB); b.Index != 0 {
			t.Errorf("index %d, want that of the inventory, 0", b.Index)
		}

		src.set(func() { close(src.hang[uuidB]) })

		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestIndexOfALostGPUBecomesFree: the 15 minutes for which a lost GPU is kept start again when its
// index is taken again.
func TestIndexOfALostGPUBecomesFree(t *testing.T) {
	src := newFakeSource(uuidA, uuidB)
	h := newHarness(t, src, nil)
	defer h.startLoop()()
	h.pollAfter(time.Second)
	inventory := func(list ...gpu.FoundGPU) *gpu.Snapshot {
		src.set(func() { src.inv.GPUs = list })
		return h.pollAfter(time.Minute)
	}
	moved := gpu.FoundGPU{Index: 0, UUID: uuidB}
	inventory(moved)
	inventory(gpu.FoundGPU{Index: 1, UUID: uuidB}) // the index of the lost GPU is free

	if s := h.pollAfter(2 * keepDisplaced); len(s.GPUs) != 2 {
		t.Fatalf("while its index is free: %v, want the lost GPU still there", gpuUUIDs(s))
	}

	if s := inventory(moved); len(s.GPUs) != 2 {
		t.Errorf("its index has just been taken: %v, want the lost GPU still there", gpuUUIDs(s))
	}

	if s := h.pollAfter(keepDisplaced); len(s.GPUs) != 1 {
		t.Errorf("%v after its index was taken: %v, want it gone", keepDisplaced, gpuUUIDs(s))
	}
}
