package nvmlsource_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestHealthEvents: a GPU that is unavailable and another recovery action come as events of their
// own. Of the XID 79 of an idle GPU there is no other.
func TestHealthEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, strings.Replace(xidScenario, "xid: 74}", "xid: 79, recovery: reset}", 1)+
			"  - {at: 2m, gpu: 0, kind: xid, xid: 74}\n")
		ids := n.discover()
		g := n.read(ids[0])
		cmptest.Equal(t, "reported", [2]bool{g.ReportsUnavailable, g.ReportsRecovery}, [2]bool{true, true})
		n.advance(2 * time.Minute)
		n.next()

		for _, want := range []gpu.EventKind{gpu.EventUnavailable, gpu.EventRecoveryAction, gpu.EventXID} {
			e := n.next()
			cmptest.Equal(t, "kind", e.Kind, want)
			cmptest.Equal(t, "GPU", e.GPU, ids[0])

			if e.Kind == gpu.EventXID {
				cmptest.Equal(t, "XID", e.XID, 74)
			}
		}

		n.source.Close(t.Context())
	})
}

// TestLibrariesWithoutHealthEvents: whatever a library without these events answers, XIDs are
// received, and nothing is an error.
func TestLibrariesWithoutHealthEvents(t *testing.T) {
	for _, ret := range []nvml.Return{nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_UNKNOWN} {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t, xidScenario)
			n.spy.set("RegisterEvents(Unavailable)", ret)
			n.spy.set("RegisterEvents(Recovery)", ret)
			ids := n.discover()

			for range 8 { // the driver's set breaks with ERROR_UNKNOWN, for each GPU and kind
				time.Sleep(time.Second)
				n.read(ids[0])
				n.read(ids[1])
			}

			n.spy.taken()

			for range 10 {
				n.advance(5 * time.Second)
				time.Sleep(time.Second)

				for _, id := range ids {
					g := n.read(id)
					cmptest.Equal(t, "reported", [2]bool{g.ReportsUnavailable, g.ReportsRecovery}, [2]bool{})

					if g.NoXIDs || len(g.Errors) > 0 {
						t.Fatalf("%v: no XIDs %v, errors %v", ret, g.NoXIDs, g.Errors)
					}
				}
			}

			if calls := n.spy.taken(); calls["EventSetCreate"] > 0 || calls["RegisterEvents(Unavailable)"] > 0 {
				t.Errorf("%v: tried again at once: %v", ret, calls)
			}

			n.advance(time.Minute)

			for e := n.next(); e.Kind != gpu.EventXID; e = n.next() {
				if e.Kind != gpu.EventsLost {
					t.Errorf("%v: event %+v", ret, e)
				}
			}

			n.source.Close(t.Context())
		})
	}
}

// TestOldDriverHasNoHealthEvents: drivers before 565 do not know them.
func TestOldDriverHasNoHealthEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, strings.Replace(xidScenario, "580.95.05", "560.35.03", 1))
		g := n.read(n.discover()[0])
		cmptest.Equal(t, "reported", [2]bool{g.ReportsUnavailable, g.ReportsRecovery}, [2]bool{})
		cmptest.Equal(t, "errors", g.Errors, nil)
		n.source.Close(t.Context())
	})
}
