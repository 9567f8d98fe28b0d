package sim

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestEventsBeforeWatchAreLost(t *testing.T) {
	n := faulty(t, "  - {at: 1s, gpu: 0, kind: xid, xid: 13}\n")
	q := n.Subscribe()
	defer q.Close()
	advance(t, n, 2*time.Second)

	if err := q.Watch(0, gpu.EventXID); err != nil {
		t.Fatal(err)
	}

	if e, err := q.Next(0); !errors.Is(err, gpu.ErrTimeout) {
		t.Errorf("got %+v, %v", e, err)
	}
}

func TestOnlyWatchedKindsArrive(t *testing.T) {
	n := start(t, a100+"faults: [{at: 1s, gpu: 0, kind: xid, xid: 13}]\n")
	q := n.Subscribe()
	defer q.Close()

	if err := q.Watch(0, gpu.EventMIGChange); err != nil {
		t.Fatal(err)
	}

	advance(t, n, 2*time.Second)

	if _, err := n.CreateGPUInstance(0, 9, gpu.None[int]()); err != nil {
		t.Fatal(err)
	}

	e, err := q.Next(0)
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "kind of the event", e.Kind, gpu.EventMIGChange)
	cmptest.Equal(t, "its GPU instance", e.Instance, gpu.Some(gpu.InstanceID(2)))
}

// TestEventsOfInstancesNeedRights: everybody may watch, but of a GPU with instances only clients
// with rights get events, changes of the layout included.
func TestEventsOfInstancesNeedRights(t *testing.T) {
	n := start(t, "version: 1\nnode: {privileged: false}\n"+`
gpus: [{model: A100-40GB}, {model: A100-40GB, mig: true}, {model: A100-40GB, mig: true, layout: ["3g.20gb@0"]}]
faults:
  - {at: 1s, gpu: 0, kind: xid, xid: 13}
  - {at: 1s, gpu: 1, kind: xid, xid: 31}
  - {at: 1s, gpu: 2, kind: xid, xid: 43}
  - {at: 2s, gpu: 2, kind: external-reconfigure, layout: ["7g.40gb@0"]}
`)
	q := n.Subscribe()
	defer q.Close()

	for index := range 3 {
		for _, kind := range []gpu.EventKind{gpu.EventXID, gpu.EventMIGChange} {
			if err := q.Watch(index, kind); err != nil {
				t.Fatalf("GPU %d: %v", index, err)
			}
		}
	}

	advance(t, n, 3*time.Second)

	for _, want := range []uint64{13, 31} {
		e, err := q.Next(0)
		if err != nil {
			t.Fatal(err)
		}

		cmptest.Equal(t, "XID", e.XID, want)
	}

	for { // while it is repartitioned, the GPU is without instances for a moment
		e, err := q.Next(0)
		if errors.Is(err, gpu.ErrTimeout) {
			break
		}

		if err != nil || e.Kind == gpu.EventXID {
			t.Fatalf("got %+v, %v", e, err)
		}
	}
}

func TestNextIsWoken(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, n *Node, q *Subscription)
		want error
	}{
		{"by an event", func(t *testing.T, n *Node, _ *Subscription) { advance(t, n, time.Minute) }, nil},
		{"by the node's end", func(_ *testing.T, n *Node, _ *Subscription) { n.Close() }, ErrClosed},
		{"by its own end", func(_ *testing.T, _ *Node, q *Subscription) { q.Close() }, ErrClosed},
		{"by time", func(*testing.T, *Node, *Subscription) { time.Sleep(2 * time.Hour) }, gpu.ErrTimeout},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := faulty(t, "  - {at: 1m, gpu: 0, kind: xid, xid: 13}\n")

				q := n.Subscribe()
				if err := q.Watch(0, gpu.EventXID); err != nil {
					t.Fatal(err)
				}

				done := make(chan error, 1)
				go func() {
					_, err := q.Next(time.Hour)
					done <- err
				}()
				synctest.Wait()
				tc.do(t, n, q)

				if err := <-done; !errors.Is(err, tc.want) {
					t.Errorf("got %v, want %v", err, tc.want)
				}
			})
		})
	}
}

// On a running clock an event of the scenario arrives when it is due, though the node is not
// called.
func TestNextWakesForThePlan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := Parse("test.yaml",
			[]byte("version: 1\ngpus: [{model: A30}]\nfaults: [{at: 10m, gpu: 0, kind: xid, xid: 13}]\n"))
		if err != nil {
			t.Fatal(err)
		}

		n, err := New(s, NewClock(ClockX60))
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		q := n.Subscribe()
		defer q.Close()

		if err := q.Watch(0, gpu.EventXID); err != nil {
			t.Fatal(err)
		}

		begin := time.Now()

		if _, err := q.Next(time.Hour); err != nil {
			t.Fatal(err)
		}

		if took := time.Since(begin); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("took %s, want the ten seconds that ten minutes take", took)
		}
	})
}

// TestSettleWaitsForWhoeverTakesEvents: it returns when every event has been taken and its taker
// asks for the next.
func TestSettleWaitsForWhoeverTakesEvents(t *testing.T) {
	n := start(t, `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: false, privileged: true}
seed: 1
gpus: [{model: A30, count: 1}]
faults: [{at: 1s, gpu: 0, kind: xid, xid: 13}, {at: 1s, gpu: 0, kind: xid, xid: 48}]
`)
	n.AwaitHandled(t.Context()) // there is no reader

	s := n.Subscribe()
	if err := s.Watch(0, gpu.EventXID); err != nil {
		t.Fatal(err)
	}

	done := make(chan int, 1)
	handled := make(chan int, 8)
	go func() {
		count := 0

		for {
			if _, err := s.Next(time.Minute); err != nil {
				done <- count
				return
			}

			count++
			handled <- count
		}
	}()

	if err := n.Advance(2 * time.Second); err != nil {
		t.Fatal(err)
	}

	n.AwaitHandled(t.Context())

	if len(handled) != 2 {
		t.Errorf("%d events were handled when AwaitHandled returned, want 2", len(handled))
	}

	s.Close()

	if count := <-done; count != 2 {
		t.Errorf("%d events, want 2", count)
	}
}
