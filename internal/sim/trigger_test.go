package sim

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestFaultsThatBeginWithACall(t *testing.T) {
	n := faulty(t, "  - {at: 5s, for: 10s, gpu: 1, kind: lost, during: energy}\n")
	ask := func(reading gpu.Reading, want error) {
		t.Helper()

		if _, err := n.Read(1, reading); !errors.Is(err, want) {
			t.Errorf("%s: %s: %v, want %v", n.Now().Format(time.TimeOnly), reading, err, want)
		}
	}
	ask(gpu.ReadingEnergy, nil) // before its time
	advance(t, n, 5*time.Second)
	ask(gpu.ReadingPower, nil)

	if _, err := n.Read(0, gpu.ReadingEnergy); err != nil {
		t.Errorf("another GPU: %v", err)
	}

	ask(gpu.ReadingPower, nil)
	ask(gpu.ReadingEnergy, gpu.ErrLost)
	ask(gpu.ReadingPower, gpu.ErrLost)
	advance(t, n, 10*time.Second)
	ask(gpu.ReadingEnergy, nil)
}

func TestLayoutChangeInTheMiddleOfAReading(t *testing.T) {
	n := start(t, `
version: 1
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@0", "3g.20gb@4"]}]
faults: [{at: 10s, gpu: 0, kind: external-reconfigure, during: memory, layout: ["7g.40gb@0"]}]
`)

	instances := func(reading gpu.Reading) int {
		s, err := n.Read(0, reading)
		if err != nil {
			t.Fatal(err)
		}

		return len(s.Instances)
	}
	if got := instances(gpu.ReadingMemory); got != 2 {
		t.Errorf("%d instances before its time", got)
	}

	advance(t, n, 10500*time.Millisecond)

	joules := state(t, n, 0).Joules
	if got := instances(gpu.ReadingMIG); got != 2 {
		t.Errorf("%d instances before the call", got)
	}

	if got := instances(gpu.ReadingMemory); got != 1 {
		t.Errorf("%d instances in the call", got)
	}

	if got := state(t, n, 0).Joules; got != joules {
		t.Errorf("energy went from %g to %g J while time stood still", joules, got)
	}

	if _, err := n.CreateGPUInstance(0, 9, gpu.None[int]()); !errors.Is(err, gpu.ErrInsufficientResources) {
		t.Errorf("creation beside 7g: %v", err)
	}
}

func TestDestroyLies(t *testing.T) {
	n := start(t, a100+"faults: [{at: 1s, for: 1s, gpu: 0, kind: destroy-lies}]\n")

	id, err := n.CreateGPUInstance(0, 9, gpu.None[int]())
	if err != nil {
		t.Fatal(err)
	}

	ci, err := n.CreateComputeInstance(0, id, 3)
	if err != nil {
		t.Fatal(err)
	}

	advance(t, n, time.Second)

	if err := n.DestroyComputeInstance(0, id, ci); err != nil {
		t.Errorf("destroy: %v", err)
	}

	if i, ok := find(t, n, id); !ok || len(i.ComputeInstances) != 1 {
		t.Errorf("the compute instance is gone: %+v", i)
	}

	if err := n.DestroyGPUInstance(0, id); !errors.Is(err, gpu.ErrInUse) {
		t.Errorf("destroy a GPU instance in use: %v", err)
	}

	advance(t, n, time.Second)

	if err := errors.Join(n.DestroyComputeInstance(0, id, ci), n.DestroyGPUInstance(0, id)); err != nil {
		t.Errorf("after the fault: %v", err)
	}

	if i, ok := find(t, n, id); ok {
		t.Errorf("still there: %+v", i)
	}
}

func find(t *testing.T, n *Node, id gpu.InstanceID) (*Instance, bool) {
	t.Helper()
	s := state(t, n, 0)

	return s.Instance(id)
}

// TestEventsLost: a queue fails once, without what was in it, and can be used on; AwaitHandled waits for
// its owner.
func TestEventsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := faulty(t, "  - {at: 1s, gpu: 0, kind: xid, xid: 13}\n  - {at: 1s, kind: events-lost}\n  - {at: 3s, gpu: 0, "+
			"kind: xid, xid: 14}\n")
		q := n.Subscribe()
		defer q.Close()

		if err := q.Watch(0, gpu.EventXID); err != nil {
			t.Fatal(err)
		}

		next := func(want error) Event {
			t.Helper()

			e, err := q.Next(time.Second)
			if !errors.Is(err, want) {
				t.Errorf("got %+v, %v; want %v", e, err, want)
			}

			return e
		}
		next(gpu.ErrTimeout)
		next(gpu.ErrTimeout)
		advance(t, n, 2*time.Second)
		settled := make(chan struct{})
		go func() {
			n.AwaitHandled(t.Context())
			close(settled)
		}()
		next(gpu.ErrDriver)
		next(gpu.ErrTimeout)
		synctest.Wait()

		select {
		case <-settled:
			t.Error("AwaitHandled returned before the queue was known to work")
		default:
		}

		next(gpu.ErrTimeout)
		<-settled
		advance(t, n, time.Second)

		if e := next(nil); e.XID != 14 {
			t.Errorf("XID %d, want 14", e.XID)
		}
	})
}

func TestKubeletFaults(t *testing.T) {
	n := faulty(t, "  - {at: 1s, for: 1s, kind: kubelet-down}\n  - {at: 2s, for: 1s, kind: kubelet-slow, delay: 3s}\n"+
		"  - {at: 3s, kind: kubelet-restart}\n  - {at: 4s, kind: kubelet-restart}\n")
	for i, want := range []KubeletState{{}, {Down: true}, {Delay: 3 * time.Second, Restarts: 1}, {Restarts: 2},
		{Restarts: 3}} {
		if got := n.Kubelet(); got != want {
			t.Errorf("after %d s: %+v, want %+v", i, got, want)
		}

		advance(t, n, time.Second)
	}
}

// TestClockJump: the node's clock is wrong for a while; what happens on it goes by the right time.
func TestClockJump(t *testing.T) {
	n := faulty(t, "  - {at: 1s, for: 2s, kind: clock-jump, by: 1h}\n  - {at: 2s, for: 1s, kind: clock-jump, by: -3h}\n")

	for i, jump := range []time.Duration{0, time.Hour, -2 * time.Hour, 0} {
		passed := time.Duration(i) * time.Second
		if got, want := n.Now(), StepStart().Add(passed+jump); !got.Equal(want) {
			t.Errorf("after %s: %s, want %s", passed, got, want)
		}

		if s := state(t, n, 0); !s.Time.Equal(StepStart().Add(passed)) {
			t.Errorf("after %s the state is of %s", passed, s.Time)
		}

		advance(t, n, time.Second)
	}
}
