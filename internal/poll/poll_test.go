package poll

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestHungGPUCostsOnlyItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(uuidA, uuidB)
		h := newHarness(t, src, nil)
		stop := h.startLoop()
		h.pollAfter(time.Second)
		release := make(chan struct{})
		src.set(func() { src.hang[uuidB] = release })

		s := h.pollAfter(time.Second)
		if b := findGPU(t, s, uuidB); !b.Up || !b.Readings.PowerWatts.Present() {
			t.Errorf("1 s into a hang: up %v, power %v; want the last reading still there", b.Up, b.Readings.PowerWatts)
		}

		s = h.pollAfter(3 * time.Second)
		if b := findGPU(t, s, uuidB); !b.Up || !b.Readings.PowerWatts.Present() {
			t.Error("before the timeout a slow GPU counts as down or has lost its readings")
		}

		s = h.pollAfter(2 * time.Second)
		if b := findGPU(t, s, uuidB); b.Readings.PowerWatts.Present() {
			t.Error("readings of a GPU that is down outlive stale-after")
		}

		a := findGPU(t, s, uuidA)

		b := findGPU(t, s, uuidB)
		if b.Up || !errors.Is(b.Errors[0].Err, gpu.ErrTimeout) {
			t.Errorf("past the timeout: up %v, errors %v; want down by ErrTimeout", b.Up, b.Errors)
		}

		if !a.Up || !a.LastRead.Equal(s.Time) {
			t.Errorf("the other GPU: up %v, last read %v at %v; want fresh", a.Up, a.LastRead, s.Time)
		}

		if s.HungCalls != 1 {
			t.Errorf("hung calls %d, want 1", s.HungCalls)
		}

		s = h.pollAfter(10 * time.Second)

		if n := src.reads[uuidB]; n != 3 {
			t.Errorf("%d reads of the hung GPU, want 3: two good ones and the one that hangs", n)
		}

		if n := errorCount(findGPU(t, s, uuidB), gpu.ReadingDevice, gpu.ReasonTimeout); n != 1 {
			t.Errorf("timeouts counted %v, want 1 per hang", n)
		}

		src.set(func() { delete(src.hang, uuidB) })
		close(release)
		synctest.Wait()
		s = h.pollAfter(time.Second)
		b = findGPU(t, s, uuidB)
		cmptest.Equal(t, "up after the hang", b.Up, true)
		cmptest.Equal(t, "last read after the hang", b.LastRead, s.Time)
		cmptest.Equal(t, "hung calls after the hang", s.HungCalls, 0)

		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func errorCount(g *gpu.GPU, reading gpu.Reading, reason gpu.Reason) float64 {
	for _, e := range g.Totals.ReadErrors {
		if e.Reading == reading && e.Reason == reason {
			return e.Value
		}
	}

	return 0
}

// TestMIGChangeWakesTheLoop: an event calls for a poll at once, also one that comes in the middle
// of a poll.
func TestMIGChangeWakesTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(uuidA)
		h := newHarness(t, src, func(o *Options) { o.Interval = time.Hour })
		stop := h.startLoop()
		synctest.Wait()
		release := make(chan struct{})
		src.set(func() { src.hang[uuidA] = release })
		src.events <- gpu.Event{Kind: gpu.EventMIGChange, GPU: uuidA}
		synctest.Wait() // the poll that it called for is under way
		src.events <- gpu.Event{Kind: gpu.EventMIGChange, GPU: uuidA}
		src.set(func() { delete(src.hang, uuidA) })
		close(release)
		synctest.Wait()

		if got := h.Current().Generation; got != 3 {
			t.Errorf("generation %d, want 3: the first, and one for each event", got)
		}

		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestSlowReadingsAreServed: a GPU whose readings take longer than an interval, or than
// stale-after, is slow, not dead.
func TestSlowReadingsAreServed(t *testing.T) {
	for _, polls := range []int{1, 2, 4} {
		t.Run(fmt.Sprintf("%d polls", polls), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src := newFakeSource(uuidA)
				h := newHarness(t, src, nil)
				stop := h.startLoop()
				h.pollAfter(time.Second)

				for range 3 {
					release := make(chan struct{})
					src.set(func() { src.hang[uuidA] = release })

					for range polls {
						s := h.pollAfter(time.Second)
						if g := findGPU(t, s, uuidA); !g.Up || !g.Readings.PowerWatts.Present() {
							t.Errorf("up %v, power %v while a slow reading is under way", g.Up, g.Readings.PowerWatts)
						}
					}

					src.set(func() { delete(src.hang, uuidA) })
					close(release)
					synctest.Wait()
				}

				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestFirstReadingUnderWay: until it ends nothing is known of the GPU, not even that it is down.
func TestFirstReadingUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(uuidA)
		release := make(chan struct{})
		src.hang[uuidA] = release
		h := newHarness(t, src, nil)

		stop := h.startLoop()
		if s := h.pollAfter(time.Second); len(s.GPUs) != 0 {
			t.Errorf("GPUs %+v during the first reading, want none", s.GPUs)
		}

		if s := h.pollAfter(5 * time.Second); len(s.GPUs) != 1 || s.GPUs[0].Up {
			t.Errorf("GPUs %+v past the timeout, want one that is down", s.GPUs)
		}

		close(release)
		synctest.Wait()

		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A GPU whose XIDs the driver does not report has no count of them, not even 0.
func TestXIDsThatAreNotReported(t *testing.T) {
	src := newFakeSource(uuidA)
	src.gpus[uuidA] = gpu.GPU{Facts: gpu.Facts{UUID: uuidA, NoXIDs: true}}
	h := newHarness(t, src, nil)
	defer h.startLoop()()

	if s := h.pollAfter(time.Second); !s.GPUs[0].Totals.XIDs.Since.IsZero() {
		t.Errorf("XIDs %+v", s.GPUs[0].Totals.XIDs)
	}

	src.set(func() { src.gpus[uuidA] = gpu.GPU{Facts: gpu.Facts{UUID: uuidA}} })

	if s := h.pollAfter(time.Second); s.GPUs[0].Totals.XIDs.Since.IsZero() {
		t.Error("there is no count once they are")
	}
}

func TestDriverStumbles(t *testing.T) {
	src := newFakeSource(uuidA)
	h := newHarness(t, src, nil)
	defer h.startLoop()()
	h.pollAfter(time.Second)
	src.set(func() { src.invErr = fmt.Errorf("nvmlDeviceGetCount: %w", gpu.ErrDriver) })
	s := h.pollAfter(time.Second)
	cmptest.Equal(t, "source is up", s.Sources[0].Up, false)
	cmptest.Equal(t, "source is stale", s.Sources[0].Stale, true)
	cmptest.Equal(t, "GPU is up", s.GPUs[0].Up, true)
	cmptest.Equal(t, "driver is known", s.Driver.Present(), true)
}

func TestStoppingEndsWhileAReadHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(uuidA, uuidB)
		release := make(chan struct{})
		src.hang[uuidA], src.hang[uuidB] = release, release
		h := newHarness(t, src, func(o *Options) { o.Grace = time.Minute })
		stop := h.startLoop()
		synctest.Wait()
		began := time.Now()

		if err := stop(); err != nil {
			t.Error(err)
		}

		// The cycle under way is cut short, and all calls together are waited for once.
		if took := time.Since(began); took != maxJoin {
			t.Errorf("stopping took %v, want %v", took, maxJoin)
		}

		close(release)
	})
}

func TestFailedReadingKeepsTheOthers(t *testing.T) {
	src := newFakeSource(uuidA, uuidB)
	h := newHarness(t, src, nil)
	defer h.startLoop()()
	h.pollAfter(time.Second)
	src.set(func() { src.errs[uuidB] = fmt.Errorf("nvmlDeviceGetMigMode: %w", gpu.ErrLost) })
	s := h.pollAfter(time.Second)
	b := findGPU(t, s, uuidB)
	cmptest.Equal(t, "lost GPU is up", b.Up, false)
	cmptest.Equal(t, "lost GPU has its last power", b.Readings.PowerWatts.Present(), true)
	cmptest.Equal(t, "lost GPU was read now", b.LastRead.Equal(s.Time), false)

	if !findGPU(t, s, uuidA).Up {
		t.Error("the other GPU went down too")
	}

	s = h.pollAfter(3 * time.Second)
	if findGPU(t, s, uuidB).Readings.PowerWatts.Present() {
		t.Error("stale readings are still served")
	}

	src.set(func() { src.inv.GPUs = foundGPUs(uuidA) })

	s = h.pollAfter(time.Second)
	if findGPU(t, s, uuidB).Up {
		t.Error("a GPU that vanished counts as up")
	}

	src.set(func() { src.inv.GPUs = foundGPUs(uuidA, uuidB); delete(src.errs, uuidB) })

	s = h.pollAfter(time.Second)
	if !findGPU(t, s, uuidB).Up {
		t.Error("a GPU that came back is still down")
	}
}

func TestMissingGPUIsServedByIndex(t *testing.T) {
	src := newFakeSource(uuidA)
	src.inv.Missing = []gpu.MissingGPU{{Index: 1, Err: gpu.ErrLost}}
	h := newHarness(t, src, nil)
	defer h.startLoop()()
	s := h.pollAfter(time.Second)
	cmptest.Equal(t, "GPUs, with the missing one", gpuUUIDs(s), []gpu.UUID{uuidA, ""})
	cmptest.Equal(t, "missing GPU's index", s.GPUs[1].Index, 1)
	cmptest.Equal(t, "missing GPU is up", s.GPUs[1].Up, false)
	cmptest.Equal(t, "missing GPU's errors", s.GPUs[1].Errors,
		[]gpu.ReadError{{Reading: gpu.ReadingDevice, Err: gpu.ErrLost}})

	if before := errorCount(&s.GPUs[1], gpu.ReadingDevice, gpu.ReasonLost); before == 0 {
		t.Error("its errors are not counted")
	}

	src.set(func() {
		src.inv = gpu.Inventory{GPUs: foundGPUs(uuidA, uuidB)}
		src.gpus[uuidB] = gpu.GPU{Facts: gpu.Facts{UUID: uuidB, Index: 1}}
	})
	s = h.pollAfter(time.Second)
	cmptest.Equal(t, "GPUs once it is found", gpuUUIDs(s), []gpu.UUID{uuidA, uuidB})
	cmptest.Equal(t, "found GPU is up", findGPU(t, s, uuidB).Up, true)
}

func TestDriverArrivesLate(t *testing.T) {
	src := newFakeSource()
	src.invErr = fmt.Errorf("libnvidia-ml.so.1: %w", gpu.ErrNoDriver)
	h := newHarness(t, src, nil)
	defer h.startLoop()()
	s := h.pollAfter(time.Second)
	cmptest.Equal(t, "GPUs without a driver", gpuUUIDs(s), nil)
	cmptest.Equal(t, "source without a driver", s.Sources[0], gpu.SourceState{Name: gpu.SourceNVML, Err: gpu.ErrNoDriver})
	cmptest.Equal(t, "driver", s.Driver, gpu.None[gpu.Driver]())
	src.set(func() {
		src.invErr = nil
		src.inv.GPUs = foundGPUs(uuidA)
		src.gpus[uuidA] = gpu.GPU{Facts: gpu.Facts{UUID: uuidA}}
	})
	s = h.pollAfter(time.Second)
	cmptest.Equal(t, "GPUs with the driver", gpuUUIDs(s), []gpu.UUID{uuidA})
	cmptest.Equal(t, "GPU is up", findGPU(t, s, uuidA).Up, true)
	cmptest.Equal(t, "source is up", s.Sources[0].Up, true)
	src.set(func() { src.invErr = gpu.ErrNoDriver })

	s = h.pollAfter(time.Second)
	if len(s.GPUs) != 1 || s.GPUs[0].Up {
		t.Errorf("driver unloaded: %+v; want the GPU known and down", s.GPUs)
	}
}

func TestVersionMismatchEndsTheLoop(t *testing.T) {
	for _, where := range []string{"discover", "read"} {
		t.Run(where, func(t *testing.T) {
			src := newFakeSource(uuidA)

			mismatch := fmt.Errorf("nvmlInit: %w", gpu.ErrVersionMismatch)
			if where == "discover" {
				src.invErr = mismatch
			} else {
				src.errs[uuidA] = mismatch
			}

			h := newHarness(t, src, nil)
			if err := h.Run(t.Context()); !errors.Is(err, gpu.ErrVersionMismatch) {
				t.Errorf("Run returned %v, want ErrVersionMismatch", err)
			}

			if err := h.Poll(t.Context(), nil); !errors.Is(err, ErrStopped) {
				t.Errorf("Poll after the end returned %v", err)
			}
		})
	}
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(uuidA)
		g := src.gpus[uuidA]
		g.Instances = []gpu.GPUInstance{{ID: 3}}
		src.gpus[uuidA] = g
		h := newHarness(t, src, nil)
		stop := h.startLoop()

		first := h.pollAfter(time.Second)
		if xids := first.GPUs[0].Totals.XIDs; xids.Value != 0 || xids.Since.IsZero() {
			t.Errorf("XIDs at the start: %+v, want 0 with a start time", xids)
		}

		at := h.clock.Now()
		src.events <- gpu.Event{Kind: gpu.EventXID, GPU: uuidA, XID: 43, Time: at}
		src.events <- gpu.Event{Kind: gpu.EventXID, GPU: uuidA, XID: 13, Instance: gpu.Some(gpu.InstanceID(3)), Time: at}
		src.events <- gpu.Event{Kind: gpu.EventXID, GPU: uuidA, XID: 43, Time: at}
		s := h.pollAfter(time.Second)
		tot := s.GPUs[0].Totals
		cmptest.Equal(t, "all XIDs", tot.XIDs.Value, 3)
		cmptest.Equal(t, "counts by XID", tot.XIDErrors, []gpu.XIDCount{
			{XID: 13, Counter: gpu.Counter{Value: 1, Since: at}, Last: at},
			{XID: 43, Counter: gpu.Counter{Value: 2, Since: at}, Last: at},
		})

		if gi := s.GPUs[0].Instances[0]; len(gi.XIDErrors) != 1 || gi.XIDErrors[0].XID != 13 {
			t.Errorf("XIDs of the GPU instance: %+v", gi.XIDErrors)
		}

		src.events <- gpu.Event{Kind: gpu.EventsLost, Time: at}

		s = h.pollAfter(time.Second)
		if n := errorCount(&s.GPUs[0], gpu.ReadingEvents, gpu.ReasonOther); n != 1 {
			t.Errorf("lost events counted %v times, want once", n)
		}

		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestPublishedSnapshotsStayAsTheyAre(t *testing.T) {
	src := newFakeSource(uuidA)
	src.set(func() { src.gpus[uuidA] = migGPU() })
	pods := &fakePods{list: gpu.Assignments{List: []gpu.Assignment{newAssignment(gpu.DeviceRef{MIG: "MIG-1"}, "p", 1)}}}
	h := newHarness(t, src, func(o *Options) { o.Pods = pods })
	defer h.startLoop()()
	s := h.pollAfter(time.Second)
	holder := s.GPUs[0].Instances[0].ComputeInstances[0].Holders[0]
	saved := *s
	saved.GPUs = append([]gpu.GPU(nil), s.GPUs...)
	saved.GPUs[0].Instances = cloneInstances(s.GPUs[0].Instances)
	src.events <- gpu.Event{Kind: gpu.EventXID, GPU: uuidA, XID: 79, Time: h.clock.Now()}
	pods.list = gpu.Assignments{}
	src.set(func() { src.errs[uuidA] = gpu.ErrLost })

	for range 5 {
		h.pollAfter(time.Second)
	}

	if !reflect.DeepEqual(saved, *s) || !reflect.DeepEqual(s.GPUs[0].Instances[0].ComputeInstances[0].Holders[0], holder) {
		t.Errorf("a published Snapshot changed:\n%+v\n%+v", saved, *s)
	}
}
