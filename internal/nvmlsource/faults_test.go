package nvmlsource_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestNotSupportedForAWhile: a driver that has just been loaded may say so of what it has.
func TestNotSupportedForAWhile(t *testing.T) {
	n := newNode(t, "", whole)
	id := n.discover()[0]
	n.spy.set("GetPowerUsage", nvml.ERROR_NOT_SUPPORTED)
	n.read(id)
	n.spy.set("GetPowerUsage", nvml.SUCCESS)
	n.spy.taken()

	for range 9 {
		n.advance(time.Minute)

		if g := n.read(id); g.Readings.PowerWatts.Present() {
			t.Fatal("it was asked again within ten minutes")
		}
	}

	if asked := n.spy.taken()["GetPowerUsage"]; asked != 0 {
		t.Errorf("asked %d times", asked)
	}

	n.advance(time.Minute)

	if g := n.read(id); !g.Readings.PowerWatts.Present() {
		t.Error("it was not asked again after ten minutes")
	}
}

// TestLayoutChangeAsksAgainWhatWasNotSupported: it may have been asked while the driver was at it.
// What is made again here is as before, so that only the event shows it.
func TestLayoutChangeAsksAgainWhatWasNotSupported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, "", `  - {model: A100-40GB, mig: true, layout: ["3g.20gb@0"]}`)
		id := n.discover()[0]
		n.spy.set("GetPowerUsage", nvml.ERROR_NOT_SUPPORTED)
		gi := n.read(id).Instances[0]
		n.spy.set("GetPowerUsage", nvml.SUCCESS)

		if err := errors.Join(n.DestroyComputeInstance(0, gi.ID, 0), n.DestroyGPUInstance(0, gi.ID)); err != nil {
			t.Fatal(err)
		}

		made, err := n.CreateGPUInstance(0, 9, gpu.Some(0))
		if err != nil || made != gi.ID {
			t.Fatalf("GPU instance %d, %v", made, err)
		}

		if _, err := n.CreateComputeInstance(0, made, 3); err != nil {
			t.Fatal(err)
		}

		n.next()
		synctest.Wait()

		if g := n.read(id); !g.Readings.PowerWatts.Present() {
			t.Error("it was not asked again after a layout change")
		}

		n.source.Close(t.Context())
	})
}

// TestDenialsAreToldOnce: what is denied is asked again once a minute; to be denied again is no new
// failure, until it was granted in between. With the memory of the whole GPU its events are denied.
func TestDenialsAreToldOnce(t *testing.T) {
	n := newNode(t, "", twoCIs)
	id := n.discover()[0]
	failures := func() int {
		count := 0

		for _, e := range n.read(id).Errors {
			if errors.Is(e.Err, gpu.ErrNoPermission) && !e.Remembered {
				count++
			}
		}

		return count
	}

	for i, step := range []struct {
		ret  nvml.Return
		want int
	}{
		{nvml.SUCCESS, 0},
		{nvml.ERROR_NO_PERMISSION, 2},
		{nvml.ERROR_NO_PERMISSION, 0},
		{nvml.ERROR_NO_PERMISSION, 0},
		{nvml.SUCCESS, 0},
		{nvml.ERROR_NO_PERMISSION, 2},
	} {
		n.spy.set("GetMemoryInfo", step.ret)
		n.spy.taken()

		if got := failures(); got != step.want {
			t.Errorf("step %d: %d failures, want %d", i, got, step.want)
		}

		if asked := n.spy.taken()["GetMemoryInfo"]; asked != 1 {
			t.Errorf("step %d: asked %d times", i, asked)
		}

		n.advance(time.Minute)
	}
}

const eightAndAHang = `
version: 1
node: {hostname: n1, driver: "580.95.05", cuda: "13.0"}
gpus: [{model: A100-40GB, count: 8}]
faults: [{for: 1m, gpu: 3, kind: hang}, {at: 2m, gpu: 3, kind: xid, xid: 31}]
`

// TestDiscoverWithAGPUThatHangs: the others are found without it, one call waits for it, and it is
// found when it answers.
func TestDiscoverWithAGPUThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, eightAndAHang)
		discover := func() gpu.Inventory {
			inventory, err := n.source.Discover()
			if err != nil {
				t.Fatal(err)
			}

			return inventory
		}

		for i := range 5 {
			began := time.Now()

			inventory := discover()
			if len(inventory.GPUs) != 7 {
				t.Fatalf("inventory %+v", inventory)
			}

			cmptest.Equal(t, "missing GPUs", inventory.Missing, []gpu.MissingGPU{{Index: 3, Hung: true, Err: gpu.ErrTimeout}})

			if took := time.Since(began); (took != 0) != (i == 0) {
				t.Errorf("Discover %d took %s", i, took)
			}
		}

		if asked := n.spy.taken()["DeviceGetHandleByIndex"]; asked != 8 {
			t.Errorf("%d lookups, want 8", asked)
		}

		n.advance(time.Minute)
		synctest.Wait()

		if inventory := discover(); len(inventory.GPUs) != 8 || len(inventory.Missing) != 0 {
			t.Errorf("after the hang: %+v", inventory)
		}

		n.advance(time.Minute)

		if e := n.next(); e.Kind != gpu.EventXID || e.XID != 31 {
			t.Errorf("event %+v", e)
		}

		if err := n.source.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

const hangAndLoss = `
version: 1
node: {hostname: n1, driver: "580.95.05", cuda: "13.0"}
gpus: [{model: A100-40GB, count: 3}]
faults:
  - {at: 1m, for: 2m, gpu: 1, kind: hang}
  - {at: 90s, kind: events-lost}
  - {at: 2m, gpu: 2, kind: xid, xid: 13}
  - {at: 4m, gpu: 1, kind: xid, xid: 31}
`

// TestEventsOfTheOthersWhileAGPUHangs: a queue that is created again while a GPU hangs works for
// the others, and for that one when it answers again.
func TestEventsOfTheOthersWhileAGPUHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, hangAndLoss)
		ids := n.discover()
		time.Sleep(time.Second)
		n.advance(90 * time.Second)

		if e := n.next(); e.Kind != gpu.EventsLost {
			t.Fatalf("event %+v", e)
		}

		n.advance(30 * time.Second)

		if e := n.next(); e.GPU != ids[2] || e.XID != 13 {
			t.Errorf("event %+v", e)
		}

		if _, err := n.source.Discover(); err != nil {
			t.Error(err)
		}

		n.advance(time.Minute)
		synctest.Wait()
		n.advance(time.Minute)

		if e := n.next(); e.GPU != ids[1] || e.XID != 31 {
			t.Errorf("event %+v", e)
		}

		if err := n.source.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestQueueIsFreedOnce: also the one that a call was stuck in when it was given up.
func TestQueueIsFreedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, `
version: 1
node: {hostname: n1, driver: "580.95.05", cuda: "13.0"}
gpus: [{model: A100-40GB, count: 2}]
faults: [{at: 1m, for: 10m, gpu: 1, kind: hang}, {at: 2m, kind: events-lost}, {at: 3m, kind: events-lost}]
`)
		n.discover()
		time.Sleep(time.Second)

		for range 3 {
			n.advance(time.Minute)
			time.Sleep(5 * time.Second)
		}

		calls := n.spy.taken()
		if made, freed := calls["EventSetCreate"], calls["Free"]; made != 3 || freed != 1 {
			t.Errorf("while a call hangs: %d queues made, %d freed; want 3 and 1: one is in use, one in the call", made, freed)
		}

		n.advance(10 * time.Minute)
		synctest.Wait()

		if freed := n.spy.taken()["Free"]; freed != 1 {
			t.Errorf("after the hang: %d queues freed, want 1", freed)
		}

		if err := n.source.Close(t.Context()); err != nil {
			t.Error(err)
		}

		if freed := n.spy.taken()["Free"]; freed != 1 {
			t.Errorf("at the end: %d queues freed, want 1", freed)
		}
	})
}

// A queue that hangs while it is made holds up neither Discover, once there was one, nor readings,
// nor the end.
func TestQueueThatHangsWhileItIsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, "", whole)
		id := n.discover()[0]
		n.read(id)
		n.spy.taken()
		answers := make(chan struct{})
		n.spy.do("EventSetCreate", func() { <-answers })
		n.spy.set("Wait", nvml.ERROR_UNKNOWN)
		time.Sleep(time.Second)
		n.spy.set("Wait", nvml.SUCCESS)

		if n.spy.taken()["EventSetCreate"] != 1 {
			t.Error("no queue is being made")
		}

		began := time.Now()
		n.advance(20 * time.Second)
		n.discover()
		n.read(id)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		if err := n.source.Close(ctx); !errors.Is(err, gpu.ErrTimeout) {
			t.Errorf("closing: %v", err)
		}

		if took := time.Since(began); took != time.Second {
			t.Errorf("reading and closing took %s", took)
		}

		close(answers)
		synctest.Wait()

		if made := n.spy.taken(); made["Free"] != 1 {
			t.Errorf("the queue that came late is freed %d times", made["Free"])
		}
	})
}

// However long a driver is away, events are received soon after it is back.
func TestEventsAfterALongTimeWithoutDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, xidScenario)
		n.discover()
		n.spy.set("DeviceGetCount", nvml.ERROR_UNINITIALIZED)
		n.spy.set("Wait", nvml.ERROR_UNINITIALIZED)

		if _, err := n.source.Discover(); !errors.Is(err, gpu.ErrNoDriver) {
			t.Fatal(err)
		}

		time.Sleep(10 * time.Minute)
		n.spy.set("DeviceGetCount", nvml.SUCCESS)
		n.spy.set("Wait", nvml.SUCCESS)
		n.discover()
		time.Sleep(time.Second)
		n.advance(time.Minute)

		for _, want := range []gpu.EventKind{gpu.EventsLost, gpu.EventXID} {
			if e := n.next(); e.Kind != want {
				t.Errorf("event %+v, want kind %v", e, want)
			}
		}

		n.source.Close(t.Context())
	})
}

// Close in the middle of the first Discover: the queue that is not waited on yet is freed, before
// NVML is shut down.
func TestQueueIsFreedThoughItWasNeverUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, "", whole)
		closed := make(chan error, 1)
		n.spy.do("RegisterEvents(XID)", func() {
			go func() { closed <- n.source.Close(t.Context()) }()
			synctest.Wait()
		})
		n.discover()

		if err := <-closed; err != nil {
			t.Error(err)
		}

		calls := n.spy.taken()
		for call, times := range map[string]int{"EventSetCreate": 1, "Free": 1, "Wait": 0, "Shutdown": 1} {
			cmptest.Equal(t, "calls of "+call, calls[call], times)
		}
	})
}
