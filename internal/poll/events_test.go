package poll

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// eventHarness is a loop that polls once, and then only after events: two GPUs, of which B has the
// instance 1.
type eventHarness struct {
	*harness
	src *fakeSource
}

// withEvents runs a test on such a loop.
func withEvents(t *testing.T, change func(*Options), test func(*eventHarness)) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(uuidA, uuidB)
		src.gpus[uuidB] = layoutGPU(100, 1)
		h := newHarness(t, src, func(o *Options) {
			o.Interval = time.Hour
			if change != nil {
				change(o)
			}
		})
		stop := h.startLoop()
		synctest.Wait()

		test(&eventHarness{harness: h, src: src})

		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// layoutGPU is B as a reading finds it, with instances of these ids, and so much energy used so
// far.
func layoutGPU(joules float64, ids ...gpu.InstanceID) gpu.GPU {
	g := gpu.GPU{
		Facts: gpu.Facts{UUID: uuidB, Index: 1, Minor: gpu.Some(1), SMs: gpu.Some(98)},
		MIG:   gpu.MIGState{Enabled: gpu.Some(true), Pending: gpu.Some(true)},
		Readings: gpu.Readings{PowerWatts: gpu.Some(100.0), EnergyJoules: gpu.Some(joules),
			Processes: gpu.Some([]gpu.Process{}), ClockEvents: gpu.Some(gpu.ClockEventReasons()[0].Bit)},
	}
	for _, id := range ids {
		g.Instances = append(g.Instances, gpu.GPUInstance{
			ID: id, Device: gpu.Device{Up: true}, Profile: "1g.5gb", SMs: gpu.Some(14),
			Placement: gpu.Some(gpu.Placement{Start: int(id), Size: 1}), Memory: gpu.Memory{Used: gpu.Some(uint64(7))},
			ComputeInstances: []gpu.ComputeInstance{{Device: gpu.Device{Up: true}, UUID: gpu.MIGUUID("MIG-" + string(rune('0'+id)))}},
		})
	}

	return g
}

// send sends an event a second later, and returns the Snapshot after what it has brought about.
func (h *eventHarness) send(e gpu.Event) *gpu.Snapshot {
	h.clock.advance(time.Second)
	h.src.events <- e
	synctest.Wait()

	return h.Current()
}

// changeLayout gives B other instances, and returns the Snapshot after the event.
func (h *eventHarness) changeLayout(joules float64, ids ...gpu.InstanceID) *gpu.Snapshot {
	h.src.set(func() { h.src.gpus[uuidB] = layoutGPU(joules, ids...) })
	return h.send(gpu.Event{Kind: gpu.EventMIGChange, GPU: uuidB})
}

// TestMIGEventReadsOneLayout: no other GPU is read, nor the readings of the one that the event is
// of: what stays has those of the last poll, and what is new has none.
func TestMIGEventReadsOneLayout(t *testing.T) {
	withEvents(t, nil, func(h *eventHarness) {
		first := h.Current()
		s := h.changeLayout(150, 1, 2)

		cmptest.Equal(t, "readings of A", h.src.reads[uuidA], 1)
		cmptest.Equal(t, "readings of B", h.src.reads[uuidB], 1)
		cmptest.Equal(t, "readings of the layout of A", h.src.layouts[uuidA], 0)
		cmptest.Equal(t, "readings of the layout of B", h.src.layouts[uuidB], 1)
		cmptest.Equal(t, "lookups of the GPUs", h.src.discover, 1)

		cmptest.Equal(t, "between polls", s.BetweenPolls, true)
		cmptest.Equal(t, "between polls at first", first.BetweenPolls, false)
		cmptest.Equal(t, "A", *findGPU(t, s, uuidA), *findGPU(t, first, uuidA))

		b := findGPU(t, s, uuidB)
		cmptest.Equal(t, "last reading of B", b.LastRead, first.Time)
		cmptest.Equal(t, "energy of B", b.Readings.EnergyJoules, gpu.Some(100.0))
		cmptest.Equal(t, "layout changes", b.Totals.LayoutChanges.Value, 1)
		cmptest.Equal(t, "instances", len(b.Instances), 2)
		cmptest.Equal(t, "instance that stays", b.Instances[0], findGPU(t, first, uuidB).Instances[0])

		created := b.Instances[1]
		cmptest.Equal(t, "new instance is up", created.Up, true)
		cmptest.Equal(t, "memory of the new instance", created.Memory, gpu.Memory{})
		cmptest.Equal(t, "last reading of the new instance", created.LastRead, time.Time{})
		cmptest.Equal(t, "new instance since", created.Since, s.Time)

		s = h.pollAfter(time.Second)
		cmptest.Equal(t, "between polls at last", s.BetweenPolls, false)
		b = findGPU(t, s, uuidB)
		cmptest.Equal(t, "memory of the instance after a poll", b.Instances[1].Memory.Used, gpu.Some(uint64(7)))
		cmptest.Equal(t, "its generation", b.Instances[1].Generation, created.Generation)
	})
}

// TestMIGEventCountsNothingTwice: time and energy between two readings count once, however many
// events came between.
func TestMIGEventCountsNothingTwice(t *testing.T) {
	withEvents(t, nil, func(h *eventHarness) {
		h.pollAfter(time.Second)

		for range 3 {
			h.changeLayout(100, 1, 2)
			h.changeLayout(100, 1)
		}

		h.src.set(func() { h.src.gpus[uuidB] = layoutGPU(170, 1) })
		b := findGPU(t, h.pollAfter(time.Second), uuidB)

		energy := b.Totals.EnergyUnallocatedJoules.Or(gpu.Counter{}).Value
		for _, gi := range b.Instances {
			energy += gi.EnergyJoules.Or(gpu.Counter{}).Value
		}

		cmptest.Equal(t, "energy used", energy, 70)
		cmptest.Equal(t, "seconds of the clock event", b.Totals.ClockEvents[0].Seconds.Value, 1+3) // StaleAfter at most
		cmptest.Equal(t, "layout changes", b.Totals.LayoutChanges.Value, 6)
	})
}

// TestEventsReadEverything: an event reads all GPUs if it may be of any, or its GPU doesn't answer
// or isn't known.
func TestEventsReadEverything(t *testing.T) {
	for name, e := range map[string]gpu.Event{
		"lost events": {Kind: gpu.EventsLost},
		"unknown GPU": {Kind: gpu.EventMIGChange},
		"a GPU down":  {Kind: gpu.EventMIGChange, GPU: uuidA},
	} {
		t.Run(name, func(t *testing.T) {
			withEvents(t, nil, func(h *eventHarness) {
				h.src.set(func() { h.src.errs[uuidA] = gpu.ErrResetRequired })
				h.pollAfter(time.Second)
				s := h.send(e)
				cmptest.Equal(t, "readings of B", h.src.reads[uuidB], 3)
				cmptest.Equal(t, "between polls", s.BetweenPolls, false)
			})
		})
	}
}

// TestXIDReadsNothing: an XID is counted, and no driver is called for it.
func TestXIDReadsNothing(t *testing.T) {
	withEvents(t, nil, func(h *eventHarness) {
		before := h.Current().Generation
		s := h.send(gpu.Event{Kind: gpu.EventXID, GPU: uuidB, XID: 79})
		cmptest.Equal(t, "generation", s.Generation, before)
		cmptest.Equal(t, "XIDs after a poll", findGPU(t, h.pollAfter(time.Second), uuidB).Totals.XIDs.Value, 1)
	})
}

// TestLayoutThatCannotBeRead: the GPU is down if it doesn't answer, and keeps its instances if they
// cannot be listed.
func TestLayoutThatCannotBeRead(t *testing.T) {
	withEvents(t, nil, func(h *eventHarness) {
		failure := gpu.ReadError{Reading: gpu.ReadingMIG, Err: gpu.ErrDriver}
		h.src.set(func() { h.src.layoutErrs = []gpu.ReadError{failure} })
		b := findGPU(t, h.changeLayout(100), uuidB)
		cmptest.Equal(t, "instances", len(b.Instances), 1)
		cmptest.Equal(t, "layout changes", b.Totals.LayoutChanges.Value, 0)
		cmptest.Equal(t, "errors", errorCount(b, gpu.ReadingMIG, gpu.ReasonOther), 1)

		h.src.set(func() { h.src.errs[uuidB] = gpu.ErrLost })
		b = findGPU(t, h.changeLayout(100), uuidB)
		cmptest.Equal(t, "up", b.Up, false)
		cmptest.Equal(t, "instances of the lost GPU", len(b.Instances), 1)
	})
}

// TestMIGModeEventReadsTheWholeGPU: the source reads everything if the mode has changed, and that
// is a reading.
func TestMIGModeEventReadsTheWholeGPU(t *testing.T) {
	withEvents(t, nil, func(h *eventHarness) {
		h.src.set(func() { h.src.whole = true })
		s := h.changeLayout(150, 2)
		b := findGPU(t, s, uuidB)
		cmptest.Equal(t, "last reading", b.LastRead, s.Time)
		cmptest.Equal(t, "memory", b.Instances[0].Memory.Used, gpu.Some(uint64(7)))
		cmptest.Equal(t, "index", b.Index, 1)
		cmptest.Equal(t, "readings of A", h.src.reads[uuidA], 1)
	})
}

// TestLateLayoutIsNoReading: a reading of the layout that outlasts its cycle is recorded in a later
// one, as a layout.
func TestLateLayoutIsNoReading(t *testing.T) {
	withEvents(t, func(o *Options) { o.Timeout = time.Hour }, func(h *eventHarness) {
		release := make(chan struct{})
		first := h.Current()
		h.src.set(func() { h.src.hang[uuidB] = release })
		h.changeLayout(150, 1, 2)
		time.Sleep(h.opts.Grace)
		synctest.Wait()
		cmptest.Equal(t, "instances", len(findGPU(t, h.Current(), uuidB).Instances), 1)

		close(release)
		synctest.Wait()
		h.src.set(func() { h.src.hang[uuidB] = make(chan struct{}) }) // of the poll, whose reading doesn't return
		b := findGPU(t, h.pollAfter(time.Second), uuidB)
		cmptest.Equal(t, "instances after a poll", len(b.Instances), 2)
		cmptest.Equal(t, "last reading", b.LastRead, first.Time)
		h.src.set(func() { close(h.src.hang[uuidB]) })
	})
}

// TestHoldersOfANewInstanceAreUnknown: the list of holders is older than the instance, so that its
// absence there doesn't make it free; nor is it the holder's of the instance that had its name
// before.
func TestHoldersOfANewInstanceAreUnknown(t *testing.T) {
	pods := &fakePods{list: gpu.Assignments{List: []gpu.Assignment{newAssignment(gpu.DeviceRef{MIG: "MIG-1"}, "p", 1)}}}
	jobs := &fakeJobs{jobs: gpu.Jobs{
		{Index: 1}: nil,
		{Index: 1, Instance: gpu.Some(gpu.InstanceID(1))}: {"1"}, {Index: 1, Instance: gpu.Some(gpu.InstanceID(2))}: {"2"},
	}}
	withEvents(t, func(o *Options) { o.Pods, o.Jobs = pods, jobs }, func(h *eventHarness) {
		first := findGPU(t, h.pollAfter(time.Second), uuidB)
		cmptest.Equal(t, "instance of the pod", first.Instances[0].Allocated, gpu.Some(true))

		b := findGPU(t, h.changeLayout(100, 1, 2), uuidB)
		cmptest.Equal(t, "instance that stays", b.Instances[0].Allocated, gpu.Some(true))
		cmptest.Equal(t, "holders of the instance that stays", b.Instances[0].Holders, first.Instances[0].Holders)
		cmptest.Equal(t, "jobs of the instance that stays", b.Instances[0].Jobs, []string{"1"})
		cmptest.Equal(t, "new instance", b.Instances[1].Allocated, gpu.None[bool]())
		cmptest.Equal(t, "new compute instance", b.Instances[1].ComputeInstances[0].Allocated, gpu.None[bool]())
		cmptest.Equal(t, "jobs of the new instance", len(b.Instances[1].Jobs), 0)
		cmptest.Equal(t, "jobs of the new instance are unknown", b.Instances[1].JobsUnknown, true)

		h.changeLayout(100) // and the same again, with the same names
		b = findGPU(t, h.changeLayout(100, 1), uuidB)
		cmptest.Equal(t, "instance with the name of the pod's", b.Instances[0].Allocated, gpu.None[bool]())
		cmptest.Equal(t, "its holders", len(b.Instances[0].Holders), 0)

		b = findGPU(t, h.pollAfter(time.Second), uuidB)
		cmptest.Equal(t, "instance after a poll", b.Instances[0].Allocated, gpu.Some(true))
		b = findGPU(t, h.changeLayout(100, 1, 2), uuidB)
		cmptest.Equal(t, "GPU", b.Allocated, gpu.Some(true))
		b = findGPU(t, h.pollAfter(time.Second), uuidB)
		cmptest.Equal(t, "new instance after a poll", b.Instances[1].Allocated, gpu.Some(false))
	})
}

// TestGPUsThatWereNotReadYet: a Snapshot names the GPUs that the driver lists and that it doesn't
// have yet.
func TestGPUsThatWereNotReadYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(uuidA, uuidB)
		release := make(chan struct{})
		src.hang[uuidB] = release
		src.inv.Missing = []gpu.MissingGPU{{Index: 2, Err: gpu.ErrTimeout, Hung: true}}
		h := newHarness(t, src, nil)
		stop := h.startLoop()
		s := h.pollAfter(time.Second)
		cmptest.Equal(t, "GPUs", len(s.GPUs), 1)
		cmptest.Equal(t, "GPUs that were not read", s.Unread, []int{1, 2})

		close(release)
		src.set(func() { delete(src.hang, uuidB) })
		synctest.Wait()
		s = h.pollAfter(5 * time.Second)
		cmptest.Equal(t, "GPUs at last", len(s.GPUs), 3)
		cmptest.Equal(t, "GPUs that were not read at last", s.Unread, nil)

		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestPollGPUs: a caller can have some GPUs read, with their readings.
func TestPollGPUs(t *testing.T) {
	withEvents(t, nil, func(h *eventHarness) {
		h.src.set(func() { h.src.gpus[uuidB] = layoutGPU(100, 1, 2) })

		if err := h.PollGPUs(h.t.Context(), uuidB); err != nil {
			t.Fatal(err)
		}

		b := findGPU(t, h.Current(), uuidB)
		cmptest.Equal(t, "instances", len(b.Instances), 2)
		cmptest.Equal(t, "memory of the new one", b.Instances[1].Memory.Used, gpu.Some(uint64(7)))
		cmptest.Equal(t, "between polls", h.Current().BetweenPolls, true)
		cmptest.Equal(t, "readings of B", h.src.reads[uuidB], 2)
		cmptest.Equal(t, "readings of A", h.src.reads[uuidA], 1)
	})
}

// TestEventAfterALateReading: a reading that outlasted its cycle and has ended since doesn't stand
// in the way of the layout, which is read after it.
func TestEventAfterALateReading(t *testing.T) {
	withEvents(t, func(o *Options) { o.Timeout = time.Hour }, func(h *eventHarness) {
		release := make(chan struct{})
		h.src.set(func() { h.src.hang[uuidB] = release })
		late := h.pollAfter(time.Second).Time
		close(release)
		h.src.set(func() { delete(h.src.hang, uuidB) })
		synctest.Wait()

		b := findGPU(t, h.changeLayout(150, 1, 2), uuidB)
		cmptest.Equal(t, "instances", len(b.Instances), 2)
		cmptest.Equal(t, "last reading", b.LastRead, late)

		h.src.set(func() { h.src.hang[uuidB] = make(chan struct{}) })
		h.pollAfter(time.Second)
		h.src.set(func() {
			h.src.errs[uuidB] = gpu.ErrLost
			close(h.src.hang[uuidB])
			delete(h.src.hang, uuidB)
		})
		synctest.Wait()
		b = findGPU(t, h.changeLayout(150, 1), uuidB)
		cmptest.Equal(t, "up", b.Up, false)
		cmptest.Equal(t, "readings of the layout", h.src.layouts[uuidB], 1)
	})
}

// TestUnmatchedBetweenPolls: the list of holders is older than the destruction of a device that it
// has: the pod may have ended in between. Only a poll says that the device of a pod is gone.
func TestUnmatchedBetweenPolls(t *testing.T) {
	pods := &fakePods{list: gpu.Assignments{List: []gpu.Assignment{
		withID(newAssignment(gpu.DeviceRef{MIG: "MIG-1"}, "p", 1), "MIG-1"),
		withID(newAssignment(gpu.DeviceRef{MIG: "MIG-9"}, "q", 1), "MIG-9"),
	}}}
	withEvents(t, func(o *Options) { o.Pods = pods }, func(h *eventHarness) {
		unmatched := func(s *gpu.Snapshot) (pods []string) {
			for _, a := range s.Unmatched {
				pods = append(pods, a.Holder.Pod)
			}

			return pods
		}
		cmptest.Equal(t, "unmatched at first", unmatched(h.pollAfter(time.Second)), []string{"q"})
		cmptest.Equal(t, "unmatched between polls", unmatched(h.changeLayout(100, 2)), []string{"q"})
		cmptest.Equal(t, "unmatched after a poll", unmatched(h.pollAfter(time.Second)), []string{"p", "q"})
	})
}
