package nvmlsource_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// hang makes the next call of a name hang, and returns what lets it return. NVML must not be shut
// down meanwhile.
func (n *openNode) hang(call string) (letGo func()) {
	var hanging atomic.Bool
	began := make(chan struct{})
	goOn := make(chan struct{})
	n.spy.do(call, func() {
		hanging.Store(true)
		close(began)
		<-goOn
		hanging.Store(false)
	})
	n.spy.do("Shutdown", func() {
		if hanging.Load() {
			n.t.Errorf("nvmlShutdown while %s has not returned", call)
		}
	})
	n.awaits = began
	letGo = sync.OnceFunc(func() { close(goOn) })
	n.t.Cleanup(letGo)

	return letGo
}

// TestReleaseWhileEventCallHangs: however often a release is tried while a call of the event queue
// hangs, NVML is not shut down under it, and afterwards the events of all GPUs are received again.
func TestReleaseWhileEventCallHangs(t *testing.T) {
	for _, call := range []string{"Wait", "RegisterEvents(MIG)"} {
		t.Run(call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { releaseWhileEventCallHangs(t, call) })
		})
	}
}

func releaseWhileEventCallHangs(t *testing.T, call string) {
	n := startOpenNode(t, "", "faults:\n  - {at: 1m, gpu: 0, kind: xid, xid: 74}\n")
	letGo := n.hang(call)
	ids := n.readAll()
	<-n.awaits

	for range 3 {
		if r := n.release(ids[1]); r.Err == nil || !strings.Contains(r.Err.Error(), "have not returned") {
			t.Errorf("release: %+v", r)
		}
	}

	cmptest.Equal(t, "shutdowns", n.spy.taken()["Shutdown"], 0)

	letGo()
	time.Sleep(time.Second) // a wait that was let go lasts as long as any
	cmptest.Equal(t, "GPUs", n.readAll(), ids)
	n.advance(time.Minute)

	for e := n.next(); e.Kind != gpu.EventXID; e = n.next() {
	}

	if r := n.release(ids[1]); r.Err != nil || r.Closed != nil {
		t.Errorf("release: %+v", r)
	}

	cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{0, 2})
	n.close()
}

// TestReleaseAsEventCallReturns: the attempts meet the moment at which the call returns.
func TestReleaseAsEventCallReturns(t *testing.T) {
	for _, call := range []string{"Wait", "RegisterEvents(MIG)"} {
		t.Run(call, func(t *testing.T) {
			n := startOpenNode(t, "", "")
			letGo := n.hang(call)
			ids := n.readAll()
			<-n.awaits

			for range 2 {
				n.release(ids[1])
			}

			var others sync.WaitGroup
			others.Go(letGo)
			r := n.release(ids[1])
			others.Wait()

			for r.Err != nil { // it came too early
				r = n.release(ids[1])
			}

			if r.Closed != nil {
				t.Errorf("release: %+v", r)
			}

			cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{0, 2})
		})
	}
}

// TestChangeWhileReadHangs: while a call is known to hang, a change that is due disturbs nothing,
// however often it is tried.
func TestChangeWhileReadHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startOpenNode(t, "", "")
		ids := n.readAll()
		letGo := n.hang("GetPowerUsage")
		read := make(chan error)
		go func() {
			_, err := n.source.Read(ids[2])
			read <- err
		}()
		<-n.awaits
		time.Sleep(time.Second)

		due := n.source.Release(ids[1], gpu.ReleasedByDriver)
		began := time.Now()

		for range 5 {
			cmptest.Equal(t, "GPUs", n.discover(), ids)
			n.read(ids[0])

			if r := n.release(ids[1]); r.Err == nil {
				t.Errorf("release: %+v", r)
			}
		}

		cmptest.Equal(t, "time taken", time.Since(began), 0)
		cmptest.Equal(t, "pauses", len(n.pauses), 0)
		cmptest.Equal(t, "log lines", strings.Count(n.logged.String(), "NVML is not opened again yet"), 1)

		letGo()

		if err := <-read; err != nil {
			t.Error(err)
		}

		n.advance(time.Minute)

		if r := n.result(due); r.Err != nil || r.Closed != nil {
			t.Errorf("release: %+v", r)
		}

		cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{0, 2})
		n.close()
	})
}

// TestRefusedChangePauses: what no operator requests is tried again seldom, and what one requests
// at once.
func TestRefusedChangePauses(t *testing.T) {
	n := startOpenNode(t, "", "")
	ids := n.readAll()
	n.refuses = errors.New("an operation is under way")
	due := n.source.Release(ids[1], gpu.ReleasedByDriver)
	var tries []int

	for range 5 {
		n.advance(59 * time.Second)

		before := len(n.pauses)
		for range 4 {
			n.readAll()
			n.advance(250 * time.Millisecond)
		}

		tries = append(tries, len(n.pauses)-before)
	}

	cmptest.Equal(t, "tries by minute", tries, []int{1, 1, 1, 1, 1})

	before := len(n.pauses)
	if r := n.release(ids[2]); !errors.Is(r.Err, n.refuses) || len(n.pauses) != before+1 {
		t.Errorf("release: %+v, after %d tries", r, len(n.pauses)-before)
	}

	n.refuses = nil
	if r := n.release(ids[2]); r.Err != nil {
		t.Errorf("release: %+v", r)
	}

	if r := n.result(due); r.Err != nil {
		t.Errorf("release that follows an event: %+v", r)
	}

	cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{0})
}

// TestReleaseWithSlowLookups: without persistence mode the lookups attach the GPUs, one after the
// other. Discover says that NVML is closed until they are there, not that GPUs hang.
func TestReleaseWithSlowLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startOpenNode(t, "", "")
		ids := n.readAll()
		attaching := make(chan struct{}, 1)
		var attach func()
		attach = func() {
			n.spy.do("DeviceGetHandleByPciBusId", attach)
			attaching <- struct{}{}
			time.Sleep(1500 * time.Millisecond)
			<-attaching
		}
		attach()

		request := n.source.Release(ids[1], gpu.ReleasedByOperator)
		for {
			inventory, err := n.source.Discover()
			if err == nil {
				cmptest.Equal(t, "missing", len(inventory.Missing), 0)
				cmptest.Equal(t, "GPUs", len(inventory.GPUs), 2)
				break
			}

			if !errors.Is(err, gpu.ErrLibraryClosed) {
				t.Fatal(err)
			}
		}

		if r := <-request; r.Err != nil || r.Closed != nil || r.Took < 3*time.Second {
			t.Errorf("release: %+v", r)
		}

		n.close()
	})
}

// TestReleaseWhileLookupHangs: the other GPUs do not wait for one that hangs for ever.
func TestReleaseWhileLookupHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startOpenNode(t, "", "")
		ids := n.readAll()
		letGo := n.hang("DeviceGetHandleByPciBusId")
		request := n.source.Release(ids[1], gpu.ReleasedByOperator)
		began := time.Now()

		for {
			inventory, err := n.source.Discover()
			if err == nil {
				cmptest.Equal(t, "GPUs", len(inventory.GPUs), 1)
				cmptest.Equal(t, "missing", len(inventory.Missing), 1)
				break
			}
		}

		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("no GPU was listed for %s", took)
		}

		if r := <-request; r.Err != nil || r.Closed != nil {
			t.Errorf("release: %+v", r)
		}

		letGo()
		synctest.Wait()
		cmptest.Equal(t, "GPUs", n.discover(), []gpu.UUID{ids[0], ids[2]})
		n.close()
	})
}

// TestReleaseThatCannotCloseAgain: a lookup opens the released GPU, and another one hangs, so that NVML
// cannot be shut down again. The answer and the log do not say that it is closed: the other GPUs are
// read, and the GPU is closed once the call has returned.
func TestReleaseThatCannotCloseAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startOpenNode(t, ", lookupOpens: all", "")
		ids := n.readAll()
		letGo := n.hang("DeviceGetHandleByPciBusId")

		request := n.source.Release(ids[1], gpu.ReleasedByOperator)
		for range 30 { // the lookup is given up after 20 s
			if n.source.Discover(); len(request) > 0 {
				break
			}
		}

		cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{0, 1, 2})

		r := n.result(request)
		if r.Err != nil || r.Closed != nil || r.StillOpen == nil ||
			!strings.Contains(r.StillOpen.Error(), "/dev/nvidia1") {
			t.Errorf("release: %+v", r)
		}

		if log := n.logged.String(); strings.Contains(log, "NVML stays closed") ||
			!strings.Contains(log, "NVML may have a released GPU open") {
			t.Errorf("log: %s", log)
		}

		inventory, err := n.source.Discover()
		if err != nil || len(inventory.GPUs) != 1 || len(inventory.Released) != 1 {
			t.Errorf("Discover: %+v, %v", inventory, err)
		}

		n.read(inventory.GPUs[0].UUID)

		letGo()
		synctest.Wait()
		n.spy.set("DeviceGetHandleByPciBusId", nvml.ERROR_UNKNOWN) // opens no GPU any more
		n.advance(time.Minute)
		n.readAll()
		cmptest.Equal(t, "open GPUs", len(n.OpenGPUs()), 0)
		n.close()
	})
}
