package sim

import (
	"reflect"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestDescriptionsAreOfNow: what is described once for all calls of a step is what another
// description would say, whatever happens in the scenarios.
func TestDescriptionsAreOfNow(t *testing.T) {
	for _, name := range shippedNames(t) {
		t.Run(name, func(t *testing.T) {
			n := shipped(t, name)
			for range 150 {
				checkDescriptions(t, n)

				if err := n.Advance(700 * time.Millisecond); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestDescriptionsFollowChanges: a change shows in the next call, also one that is undone or that a
// client makes to another GPU.
func TestDescriptionsFollowChanges(t *testing.T) {
	n := start(t, `
version: 1
node: {kubernetes: false}
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@0", "3g.20gb@4"]}, {model: A100-40GB}]
workloads: [{name: w, memory: 4GiB, sm: 20}]
processes: [{device: "0/3g.20gb@4", workload: w, at: 2s, for: 2s}]
`)
	change := func(name string, err error) {
		t.Helper()
		t.Logf("%s: %v", name, err)
		checkDescriptions(t, n)
	}

	checkDescriptions(t, n)
	change("destroy a compute instance", n.DestroyComputeInstance(0, 1, 0))
	change("destroy its GPU instance", n.DestroyGPUInstance(0, 1))
	change("destroy what is not there", n.DestroyGPUInstance(0, 1))
	id, err := n.CreateGPUInstance(0, 19, gpu.Opt[int]{})
	change("create a GPU instance", err)
	_, err = n.CreateComputeInstance(0, id, 1)
	change("create a compute instance", err)

	for range 4 {
		change("a second later", n.Advance(time.Second))
	}

	change("set the MIG mode", n.SetMIGMode(1, true))
	change("reset", n.Reset(1))
	change("reboot", n.Reboot())
}

// checkDescriptions reads every GPU, and compares what all calls of this step get with another
// description.
func checkDescriptions(t *testing.T, n *Node) {
	t.Helper()

	for index := range n.Count() {
		if _, err := n.Read(index, gpu.ReadingInventory); err != nil {
			continue // a fault, whose answer has no state
		}

		n.lockAndCatchUp()

		g := n.gpus[index]
		if got := n.state(g, n.stateTime); !reflect.DeepEqual(*g.described, *n.describe(g)) {
			t.Errorf("GPU %d at %s: calls get an old description, %+v", index, n.stateTime.Sub(n.start), got)
		}

		n.mu.Unlock()
	}
}
