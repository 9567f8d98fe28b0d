package nvmlsource_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const xidScenario = `
version: 1
node: {hostname: n1, driver: "580.95.05", cuda: "13.0"}
gpus:
` + whole + "\n" + twoCIs + `
faults:
  - {at: 1m, gpu: 1, kind: xid, xid: 13, gi: 1, ci: 1}
  - {at: 2m, gpu: 0, kind: xid, xid: 74}
`

// next returns the next event; all goroutines are in the caller's bubble.
func (n *node) next() gpu.Event {
	n.t.Helper()

	select {
	case e := <-n.source.Events():
		return e
	case <-time.After(5 * time.Minute):
		n.t.Fatal("no event")
		return gpu.Event{}
	}
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, xidScenario)
		ids := n.discover()
		n.advance(time.Minute)
		want := gpu.Event{
			Kind: gpu.EventXID, GPU: ids[1], Instance: gpu.Some(gpu.InstanceID(1)), Compute: gpu.Some(gpu.ComputeID(1)),
			XID: 13, Time: n.Now(),
		}
		cmptest.Equal(t, "event", n.next(), want)
		n.advance(time.Minute)
		cmptest.Equal(t, "event", n.next(), gpu.Event{Kind: gpu.EventXID, GPU: ids[0], XID: 74, Time: n.Now()})

		g := n.read(ids[1])
		if err := n.DestroyGPUInstance(1, g.Instances[1].ID); err != nil {
			t.Fatal(err)
		}

		if e := n.next(); e.Kind != gpu.EventMIGChange || e.GPU != ids[1] {
			t.Errorf("event %+v", e)
		}

		n.source.Close(t.Context())
	})
}

// An event names its GPU by the handle: one that has fallen off the bus cannot be asked for its
// UUID.
func TestEventOfALostGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, xidScenario)
		ids := n.discover()
		n.spy.set("GetUUID", nvml.ERROR_GPU_IS_LOST)
		n.advance(2 * time.Minute)
		n.next()

		if e := n.next(); e.GPU != ids[0] {
			t.Errorf("event %+v, want GPU %s", e, ids[0])
		}

		n.source.Close(t.Context())
	})
}

// Where a GPU does not report MIG changes, XIDs are still received.
func TestKindsOfEventsAreRegisteredOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, xidScenario)
		n.spy.set("RegisterEvents(MIG)", nvml.ERROR_NOT_SUPPORTED)
		n.discover()

		if calls := n.spy.taken(); calls["RegisterEvents(XID)"] != 2 || calls["RegisterEvents(MIG)"] != 2 {
			t.Errorf("calls: %v", calls)
		}

		n.advance(time.Minute)

		if e := n.next(); e.Kind != gpu.EventXID {
			t.Errorf("event %+v", e)
		}

		n.source.Close(t.Context())
	})
}

func TestFailedQueueIsSetUpAnewAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, xidScenario)
		ids := n.discover()
		n.spy.set("Wait", nvml.ERROR_UNKNOWN)
		n.spy.set("EventSetCreate", nvml.ERROR_UNKNOWN)
		time.Sleep(time.Minute)

		if e := len(n.source.Events()); e != 0 {
			t.Errorf("%d events while the queue is broken", e)
		}

		if tries := n.spy.taken()["EventSetCreate"]; tries < 5 || tries > 10 {
			t.Errorf("%d tries in a minute, want a backoff", tries)
		}

		n.spy.set("Wait", nvml.SUCCESS)
		n.spy.set("EventSetCreate", nvml.SUCCESS)

		if e := n.next(); e.Kind != gpu.EventsLost {
			t.Errorf("event %+v", e)
		}

		n.advance(time.Minute)

		if e := n.next(); e.Kind != gpu.EventXID || e.GPU != ids[1] {
			t.Errorf("event %+v", e)
		}

		n.source.Close(t.Context())

		if calls := n.spy.taken(); calls["EventSetCreate"] != calls["Free"] {
			t.Errorf("event sets left over: %v", calls)
		}
	})
}

// A set is undefined after a registration that failed with UNKNOWN; the other GPUs go on in a new
// one.
func TestGPUThatSpoilsTheSetIsLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, xidScenario)
		n.spy.set("RegisterEvents(XID)", nvml.ERROR_UNKNOWN)
		ids := n.discover() // spoils with the first GPU
		n.spy.set("RegisterEvents(XID)", nvml.SUCCESS)

		if e := n.next(); e.Kind != gpu.EventsLost {
			t.Errorf("event %+v", e)
		}

		n.advance(2 * time.Minute)

		if e := n.next(); e.XID != 13 {
			t.Errorf("event %+v", e)
		}

		synctest.Wait()

		if left := len(n.source.Events()); left != 0 {
			t.Errorf("%d more events", left)
		}

		n.spy.taken()
		n.spy.set("GetMemoryInfo", nvml.ERROR_GPU_IS_LOST)

		if _, err := n.source.Read(ids[0]); err == nil {
			t.Error("no error")
		}

		n.spy.set("GetMemoryInfo", nvml.SUCCESS)
		n.discover()

		if calls := n.spy.taken()["RegisterEvents(XID)"]; calls != 0 {
			t.Errorf("registered %d times when it was found again", calls)
		}

		n.source.Close(t.Context())
	})
}

func TestEventsThatNobodyReadsAreDroppedAndSaidSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, "", "  - {model: A100-40GB, mig: true}")
		n.discover()

		for range 300 {
			id, err := n.CreateGPUInstance(0, 19, gpu.None[int]())
			if err != nil {
				t.Fatal(err)
			}

			if err := n.DestroyGPUInstance(0, id); err != nil {
				t.Fatal(err)
			}
		}

		synctest.Wait()

		full := len(n.source.Events())
		if full != cap(n.source.Events()) {
			t.Fatalf("%d events kept, want %d", full, cap(n.source.Events()))
		}

		for range full {
			n.next()
		}

		if e := n.next(); e.Kind != gpu.EventsLost {
			t.Errorf("event %+v", e)
		}

		n.source.Close(t.Context())
	})
}

// A GPU whose readings fail again and again, behind the same handle, stays in the set: NVML is not
// asked to register it twice, and nothing is kept of it.
func TestGPUFoundAgainIsNotRegisteredTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, xidScenario)
		ids := n.discover()
		n.spy.taken()

		for range 50 {
			n.spy.set("GetMemoryInfo", nvml.ERROR_GPU_IS_LOST)

			if _, err := n.source.Read(ids[0]); err == nil {
				t.Fatal("no error")
			}

			n.spy.set("GetMemoryInfo", nvml.SUCCESS)
			n.discover()
			n.read(ids[0])
		}

		if calls := n.spy.taken(); calls["RegisterEvents(XID)"] != 0 || calls["EventSetCreate"] != 0 {
			t.Errorf("calls: %v", calls)
		}

		n.advance(2 * time.Minute)
		n.next()

		if e := n.next(); e.GPU != ids[0] || e.XID != 74 {
			t.Errorf("event %+v", e)
		}

		n.source.Close(t.Context())
	})
}

// A GPU that is lost makes every wait fail on a set that it is in. The others go on without it,
// until it is read well.
func TestOthersAreHeardWhileAGPUIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, xidScenario)
		ids := n.discover()
		n.spy.fall(n.spy.devices[0])

		for range 5 { // it is found behind its handle and fails its readings
			n.spy.set("GetMemoryInfo", nvml.ERROR_GPU_IS_LOST)

			if _, err := n.source.Read(ids[0]); err == nil {
				t.Fatal("no error")
			}

			n.spy.set("GetMemoryInfo", nvml.SUCCESS)
			time.Sleep(time.Second)
			n.discover()
		}

		if e := n.next(); e.Kind != gpu.EventsLost {
			t.Errorf("event %+v", e)
		}

		n.advance(time.Minute)

		if e := n.next(); e.GPU != ids[1] || e.XID != 13 {
			t.Errorf("event %+v", e)
		}

		n.spy.fall(nil)
		n.read(ids[0])
		n.advance(time.Minute)

		if e := n.next(); e.GPU != ids[0] || e.XID != 74 {
			t.Errorf("event %+v", e)
		}

		n.source.Close(t.Context())
	})
}

// A registration that fails is an error of the GPU, is in the log once, and is tried again with the
// slow tier.
func TestFailedRegistrationIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, xidScenario)
		n.spy.set("RegisterEvents(XID)", nvml.ERROR_NO_PERMISSION)
		id := n.discover()[1]
		failures := 0

		for i := range 4 {
			g := n.read(id)
			for _, e := range g.Errors {
				if !e.Remembered {
					failures++
				}
			}

			if !errors.Is(errorOf(g.Errors, gpu.ReadingEvents), gpu.ErrNoPermission) || !g.NoXIDs {
				t.Errorf("reading %d: errors %v, no XIDs %v", i, g.Errors, g.NoXIDs)
			}

			n.advance(5 * time.Second)
		}

		calls := n.spy.taken()
		if calls["RegisterEvents(XID)"] != 3 || calls["RegisterEvents(MIG)"] != 2 {
			t.Errorf("calls: %v, want both GPUs asked and one of them again", calls)
		}

		if failures != 2 {
			t.Errorf("%d failures counted, want one for each try", failures)
		}

		if lines := strings.Count(n.logged.String(), "cannot receive XIDs"); lines != 2 {
			t.Errorf("logged %d times, want once for each GPU:\n%s", lines, n.logged)
		}

		n.spy.set("RegisterEvents(XID)", nvml.SUCCESS)
		n.advance(15 * time.Second)

		if g := n.read(id); g.NoXIDs || len(g.Errors) != 0 {
			t.Errorf("no XIDs %v, errors %v", g.NoXIDs, g.Errors)
		}

		n.advance(time.Minute)

		if e := n.next(); e.GPU != id || e.XID != 13 {
			t.Errorf("event %+v", e)
		}

		n.source.Close(t.Context())
	})
}

// Where a driver does not offer XIDs, there is no error, and no count of them.
func TestXIDsThatAreNotSupported(t *testing.T) {
	for _, call := range []string{"RegisterEvents(XID)", "EventSetCreate"} {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t, xidScenario)
			n.spy.set(call, nvml.ERROR_NOT_SUPPORTED)

			id := n.discover()[0]
			if g := n.read(id); !g.NoXIDs || len(g.Errors) != 0 {
				t.Errorf("%s: no XIDs %v, errors %v", call, g.NoXIDs, g.Errors)
			}

			n.source.Close(t.Context())
		})
	}
}
