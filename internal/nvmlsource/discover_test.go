package nvmlsource_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestDriverThatArrivesLate(t *testing.T) {
	n := newNode(t, "", whole)
	n.spy.set("Init", nvml.ERROR_LIBRARY_NOT_FOUND)

	n.spy.loadErr = errors.New("libnvidia-ml.so.1: cannot open shared object file")
	for range 2 {
		_, err := n.source.Discover()
		if !errors.Is(err, gpu.ErrNoDriver) || !strings.Contains(err.Error(), "libnvidia-ml.so.1: cannot open") {
			t.Fatalf("error %v", err)
		}
	}

	n.spy.loadErr = nil
	n.spy.set("Init", nvml.ERROR_DRIVER_NOT_LOADED)

	if _, err := n.source.Discover(); !errors.Is(err, gpu.ErrNoDriver) {
		t.Fatalf("error %v", err)
	}

	n.spy.set("Init", nvml.SUCCESS)

	inventory, err := n.source.Discover()
	if err != nil || len(inventory.GPUs) != 1 {
		t.Fatalf("inventory %+v, error %v", inventory, err)
	}

	if want := (gpu.Driver{Version: "580.95.05", NVML: "13.580.95.05", CUDA: "13.0"}); inventory.Driver != want {
		t.Errorf("driver %+v, want %+v", inventory.Driver, want)
	}

	n.spy.taken()
	n.discover()

	if calls := n.spy.taken(); calls["Init"] != 0 {
		t.Error("NVML is initialised twice")
	}
}

// NVML counts its initialisations: one that succeeded is not repeated because what came after it
// failed.
func TestInitOnceThoughTheVersionFails(t *testing.T) {
	n := newNode(t, "", whole)
	n.spy.set("SystemGetDriverVersion", nvml.ERROR_GPU_IS_LOST)

	for range 3 {
		if _, err := n.source.Discover(); !errors.Is(err, gpu.ErrLost) {
			t.Errorf("error %v", err)
		}
	}

	n.spy.set("SystemGetDriverVersion", nvml.SUCCESS)

	inventory, err := n.source.Discover()
	if err != nil || inventory.Driver.Version != "580.95.05" {
		t.Errorf("inventory %+v, error %v", inventory, err)
	}

	if calls := n.spy.taken()["Init"]; calls != 1 {
		t.Errorf("NVML is initialised %d times", calls)
	}
}

func TestDriverThatGoesAway(t *testing.T) {
	n := newNode(t, "", whole)
	id := n.discover()[0]
	n.spy.set("DeviceGetCount", nvml.ERROR_UNINITIALIZED)

	if _, err := n.source.Discover(); !errors.Is(err, gpu.ErrNoDriver) {
		t.Fatalf("error %v", err)
	}

	if _, err := n.source.Read(id); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("reading by a void handle: %v", err)
	}

	n.spy.set("DeviceGetCount", nvml.SUCCESS)
	n.read(n.discover()[0])
}

func TestVersionMismatch(t *testing.T) {
	for _, call := range []string{"Init", "DeviceGetCount", "DeviceGetHandleByIndex"} {
		n := newNode(t, "", whole)
		n.spy.set(call, nvml.ERROR_LIB_RM_VERSION_MISMATCH)

		if _, err := n.source.Discover(); !errors.Is(err, gpu.ErrVersionMismatch) {
			t.Errorf("%s: error %v", call, err)
		}
	}

	n := newNode(t, "", whole)
	id := n.discover()[0]
	n.spy.set("GetMemoryInfo", nvml.ERROR_LIB_RM_VERSION_MISMATCH)

	if _, err := n.source.Read(id); !errors.Is(err, gpu.ErrVersionMismatch) {
		t.Errorf("read: error %v", err)
	}
}

func TestGPUWithoutHandleIsMissing(t *testing.T) {
	n := startNode(t, `
version: 1
node: {hostname: n1, driver: "580.95.05", cuda: "13.0"}
gpus: [{model: A100-40GB, count: 3}]
faults: [{at: 0s, for: 1m, gpu: 1, kind: lost}]
`)

	inventory, err := n.source.Discover()
	if err != nil || len(inventory.GPUs) != 2 {
		t.Fatalf("inventory %+v, error %v", inventory, err)
	}

	cmptest.Equal(t, "missing GPUs", inventory.Missing, []gpu.MissingGPU{{Index: 1, Err: gpu.ErrLost}})
	n.advance(2 * time.Minute)
	n.spy.taken()

	ids := n.discover()
	if len(ids) != 3 || n.read(ids[1]).Index != 1 {
		t.Errorf("GPUs %v", ids)
	}

	if calls := n.spy.taken()["DeviceGetHandleByIndex"]; calls != 1 {
		t.Errorf("%d handles looked up, want only the missing one's", calls)
	}
}

func TestGPULostAndBack(t *testing.T) {
	n := startNode(t, `
version: 1
node: {hostname: n1, driver: "580.95.05", cuda: "13.0"}
gpus: [{model: A100-40GB, count: 2}]
faults: [{at: 1m, for: 1m, gpu: 1, kind: lost}, {at: 3m, for: 1m, gpu: 0, kind: reset-required}]
`)
	ids := n.discover()
	n.read(ids[1])
	n.advance(time.Minute)

	if _, err := n.source.Read(ids[1]); !errors.Is(err, gpu.ErrLost) {
		t.Fatalf("error %v", err)
	}

	n.read(ids[0])

	inventory, err := n.source.Discover()
	if err != nil || len(inventory.GPUs) != 1 {
		t.Fatalf("inventory %+v, error %v", inventory, err)
	}

	cmptest.Equal(t, "missing GPUs", len(inventory.Missing), 1)

	if _, err := n.source.Read(ids[1]); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("reading a GPU that is not listed: %v", err)
	}

	n.advance(time.Minute)

	if back := n.discover(); len(back) != 2 || back[1] != ids[1] {
		t.Fatalf("GPUs %v, want %v", back, ids)
	}

	n.read(ids[1])
	n.advance(time.Minute)

	if _, err := n.source.Read(ids[0]); !errors.Is(err, gpu.ErrResetRequired) {
		t.Errorf("error %v", err)
	}
}

// A handle that the driver does not know any more shows at the first question whose only argument
// it is.
func TestStaleHandleIsLookedUpAgain(t *testing.T) {
	for _, call := range []string{"GetMigMode", "GetMemoryInfo"} { // memory is not read if it is denied
		n := newNode(t, "", whole)
		id := n.discover()[0]
		n.spy.set(call, nvml.ERROR_INVALID_ARGUMENT)

		if _, err := n.source.Read(id); !errors.Is(err, gpu.ErrInvalidArgument) {
			t.Fatalf("%s: error %v", call, err)
		}

		n.spy.set(call, nvml.SUCCESS)
		n.spy.taken()
		n.discover()

		if n.spy.taken()["DeviceGetHandleByIndex"] != 1 {
			t.Errorf("%s: the handle is not looked up again", call)
		}

		n.read(id)
	}
}

// A read that hangs in the driver holds up neither discovery nor other GPUs, and Close gives up on
// it.
func TestHungRead(t *testing.T) {
	n := newNode(t, "", twoWhole)
	ids := n.discover()
	hung := make(chan struct{})
	release := make(chan struct{})
	done := make(chan error)
	n.spy.do("GetPowerUsage", func() { close(hung); <-release })
	go func() {
		_, err := n.source.Read(ids[0])
		done <- err
	}()
	<-hung
	n.read(ids[1])
	n.spy.set("DeviceGetHandleByIndex", nvml.ERROR_GPU_IS_LOST)

	if again := n.discover(); len(again) != 2 {
		t.Errorf("GPUs %v", again)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	if err := n.source.Close(ctx); !errors.Is(err, gpu.ErrTimeout) {
		t.Errorf("close: %v", err)
	}

	if _, err := n.source.Discover(); err == nil {
		t.Error("discovery after Close")
	}

	close(release)

	if err := <-done; err != nil {
		t.Errorf("the read that hung: %v", err)
	}

	if n.spy.taken()["Shutdown"] != 0 {
		t.Error("NVML is shut down under a running call")
	}
}

func TestCloseShutsDownOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, "", whole)
		n.discover()

		for range 2 {
			if err := n.source.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}

		calls := n.spy.taken()
		if calls["Shutdown"] != 1 || calls["Free"] != 1 {
			t.Errorf("calls: %v", calls)
		}

		never := newNode(t, "", whole)
		if err := never.source.Close(t.Context()); err != nil || never.spy.taken()["Shutdown"] != 0 {
			t.Errorf("closing what was never initialised: %v", err)
		}
	})
}

func TestConcurrentReadsAndDiscoveries(t *testing.T) {
	n := newNode(t, "", "  - {model: A100-40GB, count: 2}\n"+twoCIs+"\n"+twoCIs)
	ids := n.discover()

	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			for range 20 {
				if g, err := n.source.Read(id); err != nil || g.UUID != id {
					t.Errorf("read %s: %v", id, err)
				}
			}
		})
	}

	wg.Go(func() {
		for range 20 {
			if _, err := n.source.Discover(); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
}

// Where a driver numbers its GPUs anew, and a lookup finds one that is known by another index, that
// index is looked up again.
func TestGPUsThatChangePlaces(t *testing.T) {
	n := startNode(t, `
version: 1
node: {hostname: n1, driver: "580.95.05", cuda: "13.0"}
gpus: [{model: A100-40GB, count: 2}]
`)
	ids := n.discover()
	n.spy.set("GetMemoryInfo", nvml.ERROR_GPU_IS_LOST)

	if _, err := n.source.Read(ids[0]); !errors.Is(err, gpu.ErrLost) {
		t.Fatal(err)
	}

	n.spy.set("GetMemoryInfo", nvml.SUCCESS)
	n.spy.swapped = map[int]int{0: 1, 1: 0}
	n.discover()

	for range 2 {
		cmptest.Equal(t, "GPUs in their new order", n.discover(), []gpu.UUID{ids[1], ids[0]})
	}

	if first, second := n.read(ids[0]), n.read(ids[1]); first.Index != 1 || second.Index != 0 {
		t.Errorf("indexes %d and %d", first.Index, second.Index)
	}
}
