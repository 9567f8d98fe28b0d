package nvmlsource_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// hang makes the next call of a name hang, and returns what lets it return. NVML must not be shut down meanwhile.
func (n *openNode) hang(call string) (letGo func()) {
	var hanging atomic.Bool
	began, goOn := make(chan struct{}), make(chan struct{})
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

// TestReleaseWhileEventCallHangs: however often a release is tried while a call of the event queue hangs, NVML is not
// shut down under it, and afterwards the events of all GPUs are received again.
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
		if r := n.release(ids[1]); r.Err == nil || !strings.Contains(r.Err.Error(), "has not returned") {
			t.Errorf("release: %+v", r)
		}
	}
	cmptest.Equal(t, "shutdowns", n.spy.taken()["Shutdown"], 0)

	letGo()
	synctest.Wait()
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

			last := n.source.Release(ids[1], gpu.ReleasedByDriver) // is tried again until it succeeds
			var others sync.WaitGroup
			others.Go(letGo)
			if r := n.result(last); r.Err != nil || r.Closed != nil {
				t.Errorf("release: %+v", r)
			}
			others.Wait()
			cmptest.Equal(t, "open GPUs", n.OpenGPUs(), []int{0, 2})
		})
	}
}
