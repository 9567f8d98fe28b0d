package rival

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// ownTime is longer than the driver's reports count as those of an operation that is over.
const ownTime = 5 * time.Second

// build makes the rival give a GPU a layout, whatever it has.
func (h *harness) build(index int, layout tree) {
	h.runToEnd(order{GPU: index, Program: clearAndBuild, Layout: layout})
	synctest.Wait() // the driver reports it
}

// expectRefusal makes a request that must be refused because of what has changed.
func (h *harness) expectRefusal(t *testing.T, r request) {
	t.Helper()
	want := treeOf(t, h.node, 0).String()
	h.makeRequest(r)

	if p := h.last.Refused; p == nil || p.Type != api.StalePlan {
		t.Errorf("%s: %v, want a problem %s", r.Kind, p, api.StalePlan)
	}

	h.expectLayout(t, 0, want)
}

// TestRollbackLeavesWhatWasRebuiltSince: the rival goes to a layout of its own after an operation
// of ours, and back to the very same. That is the rival's: the operation is not rolled back,
// neither by the same process nor by the next.
func TestRollbackLeavesWhatWasRebuiltSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newSameProcess(t, twoGPUs, 1)
		h.startProgram()
		h.makeRequest(fourInstances())
		h.expect(t, api.Succeeded)
		time.Sleep(ownTime)
		ours := treeOf(t, h.node, 0)
		h.build(0, tree{whole(profile3g, 0), whole(profile3g, 4)})
		h.build(0, ours)
		h.expectLayout(t, 0, ours.String())

		back := request{Kind: doRollback, ID: h.judge.ops[0].id}
		h.expectRefusal(t, back)
		h.ours.end()
		h.startProgram()
		h.expectRefusal(t, back)
		h.ours.end()
		h.report(t)
	})
}

// TestRollbackOfOurOwn: without a foreign hand an operation is rolled back, at once and later, and
// with other ones in between.
func TestRollbackOfOurOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newSameProcess(t, twoGPUs, 1)
		h.startProgram()

		for _, later := range []time.Duration{0, time.Second, time.Hour} {
			h.makeRequest(fourInstances())
			h.expect(t, api.Succeeded)
			id := h.judge.ops[len(h.judge.ops)-1].id
			time.Sleep(later)
			h.build(1, tree{whole(profile7g, 0)}) // another GPU
			h.makeRequest(request{Kind: doRollback, ID: id})

			if h.last.Refused != nil {
				t.Errorf("rollback after %s: %v", later, h.last.Refused)
			}

			h.expect(t, api.Succeeded)
			h.expectLayout(t, 0, "{}")
		}

		h.ours.end()
		h.report(t)
	})
}

// TestPlanRefusedAfterRebuild: the rival rebuilds the same layout between a plan of ours and its
// operation.
func TestPlanRefusedAfterRebuild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newSameProcess(t, twoGPUs, 1)
		h.startProgram()
		h.makeRequest(fourInstances())
		time.Sleep(ownTime)
		h.script = func(p point) {
			if p.Kind == planned {
				h.layAnew(0)
				synctest.Wait()
			}
		}
		h.expectRefusal(t, apply("0", map[string]api.DeviceRequest{"7g.40gb": {Count: 1}}))
		h.ours.end()
		h.report(t)
	})
}
