package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// churnSeconds is how long the node of one seed runs, by its clock.
const churnSeconds = 300

// churnScenario makes up a node whose pods come and go, use nothing of what they hold, and have a
// kubelet that restarts and an API server that is away at times.
func churnScenario(r *rand.Rand) string {
	var s strings.Builder
	s.WriteString(`
version: 1
node: {hostname: churn, driver: "580.95.05", privileged: true, kubernetes: true}
gpus:
  - {model: A100-40GB, mig: true, layout: ["1g.5gb@0", "1g.5gb@1", "2g.10gb@2", "3g.20gb@4"]}
  - {model: A100-40GB}
  - {model: A100-40GB}
pods:
`)
	resources := []string{"nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb", "nvidia.com/mig-3g.20gb"}

	for n := range 40 {
		at := r.IntN(churnSeconds)
		name := fmt.Sprintf("p%d", n)
		resource := resources[r.IntN(len(resources))]
		fmt.Fprintf(&s, "  - {name: %s, at: %ds, for: %ds, ", name, at, 5+r.IntN(120))

		switch r.IntN(5) {
		case 0:
			fmt.Fprintf(&s, "static: true, container: main, resource: %s}\n", resource)
		case 1:
			fmt.Fprintf(&s, "owner: Job/j%d, containers: [{name: load, resource: %s, init: true, for: 2s}, {name: main}]}\n", n,
				resource)
		default:
			fmt.Fprintf(&s, "owner: Job/j%d, container: main, resource: %s}\n", n, resource)
		}
	}

	s.WriteString("faults:\n")

	for range 4 {
		fmt.Fprintf(&s, "  - {at: %ds, for: %ds, kind: kubelet-restart}\n", r.IntN(churnSeconds), r.IntN(10))
	}

	for range 2 {
		fmt.Fprintf(&s, "  - {at: %ds, for: %ds, kind: api-server-down}\n", r.IntN(churnSeconds), 5+r.IntN(60))
	}

	fmt.Fprintf(&s, "  - {at: %ds, for: %ds, kind: checkpoint-invalid}\n", r.IntN(churnSeconds), 1+r.IntN(30))
	fmt.Fprintf(&s, "  - {at: %ds, for: %ds, kind: kubelet-down}\n", r.IntN(churnSeconds), 1+r.IntN(30))

	return s.String()
}

// TestNoHeldDeviceIsReportedFree: over random churn, restarts and outages no device that a live pod
// holds is reported as free, given to another holder, or destroyed by a plan. The devices of plain
// init containers are unknown without the checkpoint.
func TestNoHeldDeviceIsReportedFree(t *testing.T) {
	var plans atomic.Int64
	t.Run("churn", func(t *testing.T) {
		for seed := range uint64(12) {
			t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
				t.Parallel()
				plans.Add(int64(checkChurn(t, seed)))
			})
		}
	})

	if plans.Load() == 0 {
		t.Error("there was not one plan: too little to judge by")
	}
}

// checkChurn holds every second of a random churn against what is true, and returns how many plans
// there were.
func checkChurn(t *testing.T, seed uint64) (plans int) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 2026))

	var flags []string
	if seed%2 > 0 {
		flags = append(flags, "--kubernetes.checkpoint=")
	}

	x := controlledNode(t, churnScenario(r), flags...)
	confirmed := 0

	for second := range churnSeconds {
		advanceBy(t, x, time.Second)
		checkpoint, _ := x.node.states[0]()
		var held []sim.Holding

		for _, h := range simulatedNode(x).Holdings() {
			if h.Present && (checkpoint.Up || !h.Init) {
				held = append(held, h)
			}
		}

		confirmed += checkHolders(t, x.poller.Current(), held)
		if second%5 == 0 {
			plans += tryPlan(t, x, held)
		}

		if t.Failed() {
			t.Fatalf("second %d", second)
		}
	}

	if confirmed < churnSeconds {
		t.Errorf("%d confirmed holders in %d seconds: too little to judge by", confirmed, churnSeconds)
	}

	return plans
}

// checkHolders compares a Snapshot with the truth and returns how many confirmed holders it has.
func checkHolders(t *testing.T, s *gpu.Snapshot, held []sim.Holding) (confirmed int) {
	t.Helper()
	devices := gpu.NewResolver(s.GPUs)

	for _, h := range held {
		ref := gpu.DeviceRef{GPU: h.GPU}
		if h.MIG != "" {
			ref = gpu.DeviceRef{MIG: h.MIG}
		}

		d, match := devices.Resolve(ref)
		if match != gpu.MatchDevice {
			t.Errorf("%+v is not in the Snapshot", h)
			continue
		}

		allocated := s.GPUs[d.GPU].Allocated

		holders := s.GPUs[d.GPU].Holders
		if d.Instance != gpu.Whole {
			ci := s.GPUs[d.GPU].Instances[d.Instance].ComputeInstances[d.Compute]
			allocated = ci.Allocated
			holders = ci.Holders
		}

		if allocated == gpu.Some(false) || s.GPUs[d.GPU].Allocated == gpu.Some(false) {
			t.Errorf("%+v is reported as free; incomplete because %q", h, s.HoldersIncomplete)
		}

		for _, other := range holders {
			if other.Unconfirmed != "" {
				continue
			}

			if confirmed++; other.Pod != h.Pod {
				t.Errorf("%+v is reported as held by %s", h, other.Pod)
			}
		}
	}

	return confirmed
}

// tryPlan asks for the first GPU as one instance and returns how many plans it got, 0 or 1.
func tryPlan(t *testing.T, x *exporter, held []sim.Holding) int {
	t.Helper()
	root := control.Actor{Name: "uid:0", Rights: control.Rights{Read: true, Plan: true}}

	plan, err := x.control.engine.Plan(t.Context(), root, api.PlanRequest{Spec: api.Spec{
		GPUs: []api.Selector{"0"}, Devices: map[string]api.DeviceRequest{"7g.40gb": {Count: 1}},
	}})
	if err != nil {
		return 0
	}

	first := x.poller.Current().GPUs[0].UUID

	if at := slices.IndexFunc(held, func(h sim.Holding) bool { return h.GPU == first }); at >= 0 {
		t.Errorf("plan %s destroys what %+v holds: %+v", plan.ID, held[at], plan)
	}

	return 1
}

// TestARestartedKubeletEndsNoPod: the kubelet restarts while the API server is away. Its list lacks
// pods for minutes; nothing that they hold is reported as free, no plan destroys it, and an
// operator's confirmation settles it.
func TestARestartedKubeletEndsNoPod(t *testing.T) {
	x := controlledNode(t, `
version: 1
node: {hostname: outage, driver: "580.95.05", privileged: true, kubernetes: true}
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@4", "3g.20gb@0"]}]
pods:
  - {name: train, owner: Job/train, container: main, resource: nvidia.com/mig-3g.20gb}
  - {name: agent, static: true, container: main, resource: nvidia.com/mig-3g.20gb}
faults:
  - {at: 10s, for: 96s, kind: api-server-down}
  - {at: 15s, kind: kubelet-restart}
`, "--kubernetes.checkpoint=")
	advanceBy(t, x, 5*time.Second)
	advanceBy(t, x, 5*time.Second)
	allocated := func() (yes, no, unknown int) {
		for _, gi := range x.poller.Current().GPUs[0].Instances {
			switch v, known := gi.Allocated.Get(); {
			case !known:
				unknown++
			case v:
				yes++
			default:
				no++
			}
		}

		return yes, no, unknown
	}
	expectAllocated := func(when string) {
		t.Helper()
		yes, no, unknown := allocated()
		cmptest.Equal(t, when+", devices (allocated, not allocated, unknown)", [3]int{yes, no, unknown}, [3]int{2, 0, 0})
	}
	expectAllocated("before the restart")
	advanceBy(t, x, 5*time.Second)

	for second := range 130 {
		yes, no, unknown := allocated()

		want := 0
		if second >= 2 {
			want = 1 // the static pod
		}

		if second < 128 {
			cmptest.Equal(t, fmt.Sprintf("devices not allocated %d s after the restart", second), no, 0)
			cmptest.Equal(t, fmt.Sprintf("devices allocated or unknown %d s after the restart", second), yes+unknown, 2)

			if yes < want {
				t.Errorf("%d s after the restart %d devices are allocated, want %d or more", second, yes, want)
			}
		}

		if plans := tryPlan(t, x, simulatedNode(x).Holdings()); plans != 0 {
			t.Fatalf("%d s after the restart there is a plan", second)
		}

		advanceBy(t, x, time.Second)
	}

	for range 10 {
		advanceBy(t, x, time.Second)
	}

	expectAllocated("once the API server is back")
}

// controlledNode starts a node with partition control, as run does, and polls it once. Operations
// wait until control is ready.
func controlledNode(t *testing.T, text string, flags ...string) *exporter {
	t.Helper()

	return controlledNodeOn(t, log.NewNopLogger(), func(*node) {}, text, flags...)
}

// controlledNodeOn is controlledNode with a log, on a node that a test has changed.
func controlledNodeOn(
	t *testing.T, logger log.Logger, change func(*node), text string, flags ...string,
) *exporter {
	t.Helper()

	dir, err := os.MkdirTemp("", "ctl-") //nolint:usetesting // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { os.RemoveAll(dir) })

	scenario := filepath.Join(dir, "scenario.yaml")
	if err := os.WriteFile(scenario, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	x := startOn(t, logger, change, append([]string{"--sim.clock=step", "--sim.scenario=" + scenario,
		"--control.enabled", "--control.mode=apply", "--control.socket=" + filepath.Join(dir, "c.sock"),
		"--control.state-dir=" + filepath.Join(dir, "state")}, flags...)...)
	pollOnce(t, x)

	return x
}
