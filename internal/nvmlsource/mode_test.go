package nvmlsource_test

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

func TestSetMIGMode(t *testing.T) {
	n := newNode(t, ", passThrough: true", `  - {model: H100-80GB}
  - {model: A100-40GB}
  - {model: H100-80GB}
  - {model: H100-80GB, mig: true, layout: ["3g.40gb@0"]}
workloads: [{name: w, memory: 1GiB, sm: 3}]
processes: [{gpu: 2, workload: w}]`)

	ids := n.discover()
	for i, tc := range []struct {
		on   bool
		want mig.ModeChange
	}{
		{true, mig.ModeChange{Current: true, Pending: true}},
		{true, mig.ModeChange{Pending: true, Activation: gpu.ErrResetRequired}},
		{true, mig.ModeChange{Pending: true, Activation: gpu.ErrInUse}},
		{false, mig.ModeChange{Current: true, Activation: gpu.ErrInUse}},
	} {
		n.read(ids[i])

		got, err := n.source.Actuator().SetMIGMode(t.Context(), ids[i], tc.on)
		if err != nil {
			t.Errorf("GPU %d: %v", i, err)
		}

		cmptest.Equal(t, "change of GPU "+strconv.Itoa(i), got, tc.want)

		if g := n.read(ids[i]); g.MIG.Enabled != gpu.Some(got.Current) || g.MIG.Pending != gpu.Some(got.Pending) {
			t.Errorf("GPU %d: read %+v", i, g.MIG)
		}

		if g := n.layout(i); g.MIG != gpu.Some(got.Current) || g.Pending != gpu.Some(got.Pending) {
			t.Errorf("GPU %d: layout %+v", i, g)
		}
	}

	n.spy.set("SetMigMode", nvml.ERROR_NO_PERMISSION)

	if _, err := n.source.Actuator().SetMIGMode(t.Context(), ids[0], true); !errors.Is(err, gpu.ErrNoPermission) {
		t.Error(err)
	}

	if _, err := n.source.Actuator().SetMIGMode(t.Context(), "GPU-x", true); !errors.Is(err, gpu.ErrNotFound) {
		t.Error(err)
	}
}

// Our own hold on the GPU is not in the way: while the mode is set, the GPU is in no queue of
// events. Afterwards it is again.
func TestEventsAreWithheldWhileTheModeIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, "", `  - {model: H100-80GB, count: 2}
faults: [{at: 2m, gpu: 0, kind: xid, xid: 74}, {at: 1m, gpu: 1, kind: xid, xid: 31}]`)
		ids := n.discover()
		n.read(ids[0])
		n.spy.do("SetMigMode", func() {
			if n.holds(0) {
				t.Error("the GPU is in a queue of events")
			}

			time.Sleep(5 * time.Second) // the queue is created again in the meantime, without it

			if n.holds(0) || !n.holds(1) {
				t.Errorf("in a queue of events: %v, %v", n.holds(0), n.holds(1))
			}
		})

		if m, err := n.source.Actuator().SetMIGMode(t.Context(), ids[0], true); err != nil || !m.Current {
			t.Fatalf("%+v, %v", m, err)
		}

		n.read(ids[0])

		if !n.holds(0) {
			t.Error("the GPU is not heard any more")
		}

		n.advance(time.Minute)

		if e := n.next(); e.XID != 31 || e.GPU != ids[1] {
			t.Errorf("event %+v", e)
		}

		n.advance(time.Minute)

		if e := n.next(); e.XID != 74 || e.GPU != ids[0] {
			t.Errorf("event %+v", e)
		}

		n.source.Close(t.Context())
	})
}

// What waits in a set when a GPU is to leave it is delivered before the set is replaced.
func TestEventsOfAReplacedSetAreDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, "", `  - {model: H100-80GB, count: 2}
faults: [{at: 1m, gpu: 0, kind: xid, xid: 74}, {at: 1m, gpu: 1, kind: xid, xid: 31}, {at: 1m, gpu: 1, kind: xid, xid: 13}]`)
		ids := n.discover()
		n.read(ids[0])
		n.read(ids[1])
		inside := make(chan struct{})
		leave := make(chan struct{})
		n.spy.do("Wait", func() {
			close(inside)
			<-leave
		})
		<-inside
		changed := make(chan error)
		go func() {
			_, err := n.source.Actuator().SetMIGMode(t.Context(), ids[0], true)
			changed <- err
		}()
		synctest.Wait() // the change waits until the set is freed
		n.advance(time.Minute)
		close(leave)
		must(t, <-changed)
		got := map[uint64]gpu.UUID{}

		for range 3 {
			e := n.next()
			got[e.XID] = e.GPU
		}

		if want := map[uint64]gpu.UUID{74: ids[0], 31: ids[1], 13: ids[1]}; !maps.Equal(got, want) {
			t.Errorf("events %v, want %v", got, want)
		}

		n.source.Close(t.Context())
	})
}

// While a set is replaced the other GPUs are in none. If that takes long, since the registration of
// one hangs, events count as lost; if not, they don't.
func TestEventsWhileASetIsReplaced(t *testing.T) {
	for took, lost := range map[time.Duration]bool{nvmlsource.MaxSetGap / 2: false, 5 * nvmlsource.MaxSetGap: true} {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, "", `  - {model: H100-80GB, count: 2}
faults: [{at: 1m, gpu: 1, kind: xid, xid: 31}]`)
			ids := n.discover()
			n.read(ids[0])
			n.read(ids[1])
			n.spy.do("RegisterEvents(XID)", func() { time.Sleep(took) })

			if _, err := n.source.Actuator().SetMIGMode(t.Context(), ids[0], true); err != nil {
				t.Fatal(err)
			}

			time.Sleep(10 * nvmlsource.MaxSetGap)

			if lost {
				if e := n.next(); e.Kind != gpu.EventsLost {
					t.Errorf("event %+v", e)
				}
			}

			n.advance(time.Minute)

			if e := n.next(); e.XID != 31 || e.GPU != ids[1] {
				t.Errorf("registering took %v: event %+v", took, e)
			}

			n.source.Close(t.Context())
		})
	}
}

// A Read during the change leaves the GPU out of the queue of events. The next one puts it in
// again, when that is not yet the turn of what is read seldom.
func TestEventsComeBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, "", "  - {model: A100-40GB}\n")
		id := n.discover()[0]
		n.read(id)
		n.spy.do("SetMigMode", func() {
			time.Sleep(5 * time.Second)                   // the queue is created again in the meantime, without it
			n.spy.do("GetMigMode", func() { n.read(id) }) // to look what became of it
		})

		if _, err := n.source.Actuator().SetMIGMode(t.Context(), id, true); err != nil || n.holds(0) {
			t.Fatalf("%v, in a queue of events: %v", err, n.holds(0))
		}

		n.read(id)

		if !n.holds(0) {
			t.Error("the GPU is not heard any more")
		}

		n.source.Close(t.Context())
	})
}

// For a GPU without MIG, or one that does not answer, nothing is given up.
func TestNoMIGModeToSet(t *testing.T) {
	n := newNode(t, "", "  - {model: H100-80GB}\n")
	id := n.discover()[0]
	n.read(id)

	for ret, want := range map[nvml.Return]error{nvml.ERROR_NOT_SUPPORTED: gpu.ErrNotSupported,
		nvml.ERROR_GPU_IS_LOST: gpu.ErrLost} {
		n.spy.set("GetMigMode", ret)
		n.spy.taken()
		_, err := n.source.Actuator().SetMIGMode(t.Context(), id, true)
		cmptest.Equal(t, "error", err, want)
		cmptest.Equal(t, "changes of the mode", n.spy.taken()["SetMigMode"], 0)
		cmptest.Equal(t, "the GPU is in a queue of events", n.holds(0), true)
	}
}

// holds reports whether a GPU is in a queue of events that was not freed.
func (n *node) holds(index int) bool {
	n.spy.mu.Lock()
	defer n.spy.mu.Unlock()

	for set := range n.spy.sets {
		if set.members[n.spy.devices[index]] {
			return true
		}
	}

	return false
}

// Profiling goes on after the mode was set, with windows that are all of the new mode.
func TestSamplesAfterTheModeIsSet(t *testing.T) {
	n := profiledNode(t, "version: 1\nnode: {kubernetes: false}\ngpus:\n  - {model: H100-80GB}\n")

	id := n.discover()[0]
	if g := n.poll(id); !g.Activity.SM.Present() {
		t.Fatal("no activity before")
	}

	if _, err := n.source.Actuator().SetMIGMode(t.Context(), id, true); err != nil {
		t.Fatal(err)
	}

	n.advance(time.Second)

	if g := n.read(id); g.Activity != (gpu.Activity{}) || g.MIG.Enabled != gpu.Some(true) {
		t.Errorf("activity of a window across the change: %+v", g.Activity)
	}

	n.AwaitHandled(t.Context())
	n.poll(id)

	if g := n.poll(id); !g.Activity.SM.Present() {
		t.Errorf("no activity afterwards: %+v", g.Errors)
	}
}

// Where a Read of the GPU hangs, its mode is not changed, not even when the Read returns.
func TestSetMIGModeBesideAReadThatHangs(t *testing.T) {
	n := newNode(t, "", "  - {model: H100-80GB}\n")
	id := n.discover()[0]
	hangs := make(chan struct{})
	release := make(chan struct{})
	n.spy.do("GetPowerUsage", func() {
		close(hangs)
		<-release
	})
	read := make(chan error, 1)
	go func() {
		_, err := n.source.Read(id)
		read <- err
	}()
	<-hangs
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() {
		_, err := n.source.Actuator().SetMIGMode(ctx, id, true)
		asked <- err
	}()
	cancel()

	if err := <-asked; !errors.Is(err, gpu.ErrTimeout) {
		t.Error(err)
	}

	close(release)
	must(t, <-read)
	must(t, n.source.Close(t.Context())) // waits for what was given up

	if calls := n.spy.taken()["SetMigMode"]; calls != 0 || n.source.Actuator().HungCalls() != 0 {
		t.Errorf("%d calls, %d hang", calls, n.source.Actuator().HungCalls())
	}
}
