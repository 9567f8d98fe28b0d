package rival

import (
	"testing"
	"testing/synctest"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// twoGPUs has an empty GPU, and one with an instance.
const twoGPUs = `
version: 1
node: {hostname: rival, driver: "580.95.05", privileged: true}
gpus:
  - {model: A100-40GB, mig: true, layout: []}
  - {model: A100-40GB, mig: true, layout: ["1g.5gb@0"]}
`

// eachWay runs a test with both sides in one process, and again with processes of their own.
func eachWay(t *testing.T, text string, run func(t *testing.T, h *harness)) {
	t.Run("one process", func(t *testing.T) {
		t.Parallel()
		var h *harness
		synctest.Test(t, func(t *testing.T) {
			h = newSameProcess(t, text, 1)
			run(t, h)
			h.ours.end()
		})
		h.report(t)
	})
	t.Run("processes", func(t *testing.T) {
		t.Parallel()
		h := newProcesses(t, text, 1)
		run(t, h)
		h.ours.end()
		h.report(t)
	})
}

func apply(gpu api.Selector, devices map[string]api.DeviceRequest) request {
	return request{Kind: doApply, Spec: api.Spec{GPUs: []api.Selector{gpu}, Devices: devices}}
}

func fourInstances() request {
	return apply("0", map[string]api.DeviceRequest{"1g.5gb": {Count: 2}, "2g.10gb": {Count: 1}, "3g.20gb": {Count: 1}})
}

// layAnew makes the rival give a GPU the same GPU instances that exist there now, with one compute
// instance each.
func (h *harness) layAnew(index int) {
	layout := tree{}
	for _, g := range treeOf(h.t, h.node, index) {
		layout = append(layout, whole(g.Profile, g.Start))
	}

	h.runToEnd(order{GPU: index, Program: clearAndBuild, Layout: layout})
}

// expect compares the state of the latest operation, and that the node is free.
func (h *harness) expect(t *testing.T, state api.OperationState) {
	t.Helper()

	if len(h.judge.ops) == 0 {
		t.Fatal("there is no operation")
	}

	if op := h.judge.ops[len(h.judge.ops)-1]; op.state != state {
		t.Errorf("operation %s is %s, want %s", op.id, op.state, state)
	}
}

// expectLayout compares the current layout with the one that the rival has created.
func (h *harness) expectLayout(t *testing.T, index int, want string) {
	t.Helper()

	if got := treeOf(t, h.node, index).String(); got != want {
		t.Errorf("GPU %d has %s, and the rival had made %s", index, got, want)
	}
}

// degrade applies four instances to the first GPU of which the last compute instance cannot be
// created, nor anything undone.
func (h *harness) degrade(t *testing.T) {
	t.Helper()
	h.startProgram()
	h.chance = chance{failAt: 8, failures: 1000}
	h.makeRequest(fourInstances())
	h.chance = chance{}
	h.expect(t, api.Degraded)

	if n := len(treeOf(t, h.node, 0)); n != 4 {
		t.Fatalf("%d instances are left of the operation, want 4", n)
	}
}

// TestRestartLeavesLayoutMadeWhileDegraded: the rival lays out a GPU anew on which an operation is
// degraded, and our program starts again. The four instances are at places where the operation had
// created some; they are not its own.
func TestRestartLeavesLayoutMadeWhileDegraded(t *testing.T) {
	eachWay(t, twoGPUs, func(t *testing.T, h *harness) {
		h.degrade(t)
		h.layAnew(0)
		want := treeOf(t, h.node, 0).String()
		h.ours.end()
		h.startProgram()
		h.expectLayout(t, 0, want)
		h.expect(t, api.Interrupted)
	})
}

// TestRetryLeavesLayoutMadeWhileDegraded: so does an operator who asks for the rollback again.
func TestRetryLeavesLayoutMadeWhileDegraded(t *testing.T) {
	eachWay(t, twoGPUs, func(t *testing.T, h *harness) {
		h.degrade(t)
		h.layAnew(0)
		want := treeOf(t, h.node, 0).String()
		h.makeRequest(request{Kind: doRollback, ID: h.judge.ops[0].id})
		h.expectLayout(t, 0, want)
		h.expect(t, api.Interrupted)
	})
}

// TestRollbackLeavesLayoutMadeMeanwhile: the rival lays out the GPU while an operation is half
// done. The rollback must neither destroy what it has made at places of the operation, nor say that
// the layout is as it was before.
func TestRollbackLeavesLayoutMadeMeanwhile(t *testing.T) {
	eachWay(t, twoGPUs, func(t *testing.T, h *harness) {
		var want string
		changes := 0
		h.script = func(p point) {
			if p.changes() && !p.After {
				if changes++; changes == 7 {
					current := treeOf(t, h.node, 0)
					layout := tree{whole(current[0].Profile, current[0].Start), whole(current[1].Profile, current[1].Start)}
					h.runToEnd(order{GPU: 0, Program: clearAndBuild, Layout: layout})
					want = treeOf(t, h.node, 0).String()
				}
			}
		}
		h.startProgram()
		h.makeRequest(fourInstances())
		h.expectLayout(t, 0, want)
		h.expect(t, api.Interrupted)
	})
}

// TestFirstStepFindsItsInstanceGone: another client destroys what the first step was about to
// destroy. Nothing was changed by us: the operation fails for that reason, puts nothing into what
// is left, and keeps no GPU from being changed.
func TestFirstStepFindsItsInstanceGone(t *testing.T) {
	for name, o := range map[string]order{
		"and its GPU instance":     {GPU: 1, Program: clearAndBuild, Layout: tree{}},
		"but for its GPU instance": {GPU: 1, Program: destroyOne},
	} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, twoGPUs, func(t *testing.T, h *harness) {
				var want string
				h.script = func(p point) {
					if p.Kind == destroyCI && !p.After && want == "" {
						h.runToEnd(o)
						want = treeOf(t, h.node, 1).String()
					}
				}
				h.startProgram()
				h.makeRequest(apply("1", map[string]api.DeviceRequest{"7g.40gb": {Count: 1}}))
				h.expectLayout(t, 1, want)
				h.expect(t, api.Failed)

				if e := h.last.Operations.Operations[0].Error; e == nil || e.Type != api.LayoutChanged {
					t.Errorf("the operation failed with %v, want a problem %s", e, api.LayoutChanged)
				}

				if h.last.Operations.State != "idle" || len(h.last.Operations.Blocked) > 0 {
					t.Errorf("the node is %s, blocked are %v", h.last.Operations.State, h.last.Operations.Blocked)
				}

				h.makeRequest(fourInstances())
				h.expect(t, api.Succeeded)
			})
		})
	}
}

// TestSimulatedClientTakesFirstInstance is the same with the simulated node's own fault in the
// place of the rival.
func TestSimulatedClientTakesFirstInstance(t *testing.T) {
	for name, left := range map[string]string{"nothing left": `[]`, "GPU instance left": `[{gi: "1g.5gb@0", ci: []}]`} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newSameProcess(t,
					twoGPUs+"faults: [{kind: external-reconfigure, gpu: 1, on: destroy-ci, layout: "+left+"}]\n", 1)
				h.startProgram()
				h.makeRequest(apply("1", map[string]api.DeviceRequest{"7g.40gb": {Count: 1}}))
				h.expect(t, api.Failed)
				want := map[string]string{"nothing left": "{}", "GPU instance left": "{19@0:1[]}"}[name]
				h.expectLayout(t, 1, want)

				if h.last.Operations.State != "idle" {
					t.Errorf("the node is %s", h.last.Operations.State)
				}

				h.ours.end()
			})
		})
	}
}
