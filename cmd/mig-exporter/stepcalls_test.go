package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// mostStepCalls is how many driver calls a step of partition control may cost the node.
const mostStepCalls = 150

// denseModel and denseLayout make the GPU with the most instances, each of which costs calls.
const (
	denseModel  = "H100-80GB"
	denseLayout = `["1g.10gb@0", "1g.10gb@1", "1g.10gb@2", "1g.10gb@3", "1g.10gb@4", "1g.10gb@5", "1g.10gb@6"]`
)

// stepNode is a node whose clock is real and whose loop polls only when an event or a request wakes
// it.
type stepNode struct {
	testing.TB
	*exporter

	gpu      gpu.UUID // the last one
	expected []mig.Instance
}

// newStepNode starts the program on a node of GPUs that all have one layout, which nothing uses.
func newStepNode(tb testing.TB, model, layout string, gpus int) *stepNode {
	tb.Helper()

	dir, err := os.MkdirTemp("", "ctl-") //nolint:usetesting // the path of a socket has to be short
	if err != nil {
		tb.Fatal(err)
	}

	tb.Cleanup(func() { os.RemoveAll(dir) })
	scenario := filepath.Join(dir, "scenario.yaml")

	text := fmt.Sprintf("version: 1\nnode: {hostname: steps, driver: \"580.95.05\", privileged: true}\ngpus:\n"+
		"  - {model: %s, count: %d, mig: true, layout: %s}\n", model, gpus, layout)
	if err := os.WriteFile(scenario, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}

	n := &stepNode{TB: tb, exporter: startInProcess(tb, "--sim.scenario="+scenario, "--poll.interval=1h",
		"--control.enabled", "--control.mode=apply", "--control.socket="+filepath.Join(dir, "c.sock"),
		"--control.state-dir="+filepath.Join(dir, "state"))}
	n.waitFor(func(s *gpu.Snapshot) bool { return s != nil && len(s.GPUs) == gpus })
	n.gpu = n.poller.Current().GPUs[gpus-1].UUID

	list, failed, err := n.source.Actuator().Layouts(tb.Context(), n.gpu)
	if err != nil || len(failed) > 0 {
		tb.Fatal(failed, err)
	}

	n.expected = list[0].Instances

	return n
}

// waitFor blocks until a published Snapshot is as wanted.
func (n *stepNode) waitFor(wanted func(*gpu.Snapshot) bool) {
	n.Helper()

	for !wanted(n.poller.Current()) {
		if err := n.poller.Poll(context.Background(), func() error { return errAnswered }); !errors.Is(err, errAnswered) {
			n.Fatal(err)
		}
	}
}

// calls makes a step and returns the driver calls of the whole program until a Snapshot shows it:
// those before a destruction, for what runs on the GPU, and those that the event of the change
// brings about included.
func (n *stepNode) calls(s mig.Step) uint64 {
	n.Helper()

	before := n.source.DriverCalls()

	generation := n.poller.Current().Generation
	if s.Op == mig.DestroyCompute || s.Op == mig.DestroyInstance {
		if _, err := n.source.Actuator().Processes(n.Context(), s.GPU); err != nil {
			n.Fatal(err)
		}
	}

	out, err := n.source.Actuator().PerformStep(n.Context(), s, n.expected)
	if err != nil {
		n.Fatal(err)
	}

	n.expected = out.Instances
	n.waitFor(func(s *gpu.Snapshot) bool { return s.Generation > generation })

	return n.source.DriverCalls() - before
}

// eachStep takes the first GPU instance of the GPU away and creates it again, with its first
// compute instance, and calls count with the driver calls of each step.
func (n *stepNode) eachStep(count func(op mig.StepOp, calls uint64)) {
	n.Helper()
	first := n.expected[0]
	s := mig.Step{GPU: n.gpu, ProfileID: first.ProfileID, Profile: first.Profile, Placement: first.Placement}
	computeInstances := mig.ComputePlacements(first)

	step := func(op mig.StepOp, at gpu.Opt[gpu.Placement]) {
		s.Op = op
		s.Compute = at
		count(op, n.calls(s))
	}
	for _, at := range computeInstances {
		step(mig.DestroyCompute, gpu.Some(at))
	}

	step(mig.DestroyInstance, gpu.None[gpu.Placement]())
	step(mig.CreateInstance, gpu.None[gpu.Placement]())

	for _, at := range computeInstances {
		step(mig.CreateCompute, gpu.Some(at))
	}
}

// TestAStepCostsTheNodeFewCalls: a step reads the GPU that it changes, and so does what its event
// wakes: what it costs doesn't depend on how many GPUs the node has.
func TestAStepCostsTheNodeFewCalls(t *testing.T) {
	t.Parallel()

	for _, test := range []struct{ model, layout string }{
		{denseModel, denseLayout},
		{"A100-40GB", `["1g.5gb@0", "1g.5gb@1", "1g.5gb@2", "1g.5gb@3", "1g.5gb@4", "1g.5gb@5", "1g.5gb@6"]`},
		{"H100-80GB", `["3g.40gb@0", "3g.40gb@4"]`},
		{"RTX-PRO-6000", `["1g.24gb@0", "1g.24gb@3", "1g.24gb@6", "1g.24gb@9"]`},
	} {
		var alone []uint64

		for _, gpus := range []int{1, 8, 16} {
			n := newStepNode(t, test.model, test.layout, gpus)
			var all []uint64
			n.eachStep(func(op mig.StepOp, calls uint64) {
				t.Logf("%s, %d GPUs: %s: %d", test.model, gpus, op, calls)

				all = append(all, calls)
				if calls > mostStepCalls {
					t.Errorf("%s of %s, one of %d GPUs: %d driver calls, want at most %d", op, test.model, gpus, calls,
						mostStepCalls)
				}
			})

			if alone == nil {
				alone = all
			} else if fmt.Sprint(all) != fmt.Sprint(alone) {
				t.Errorf("steps on one of %d GPUs: %v driver calls, want %v as on a node of one", gpus, all, alone)
			}
		}
	}
}
