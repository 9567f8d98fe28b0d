package sim

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestSingleStrategy: the device plugin offers what the node has only if that is of one kind.
func TestSingleStrategy(t *testing.T) {
	for _, c := range []struct {
		about, gpus, refusal string
		offered              int
	}{
		{"whole GPUs", "[{model: H100-80GB, count: 2}]", "", 2},
		{"one profile", `[{model: H100-80GB, count: 2, mig: true, layout: ["3g.40gb@0", "3g.40gb@4"]}]`, "", 4},
		{"two profiles", `[{model: H100-80GB, mig: true, layout: ["3g.40gb@4", "1g.10gb@0"]}]`,
			"more than one MIG device type", 0},
		{"two kinds of compute instances", `[{model: H100-80GB, mig: true, layout: [{gi: "3g.40gb@4", ci: [1c, 2c]}]}]`,
			"more than one MIG device type", 0},
		{"two modes", `[{model: H100-80GB, mig: true, layout: ["3g.40gb@4"]}, {model: H100-80GB}]`,
			"the same migEnabled value", 0},
		{"an empty GPU", `[{model: H100-80GB, mig: true, layout: ["3g.40gb@4"]}, {model: H100-80GB, mig: true}]`,
			"was not configured correctly", 0},
	} {
		n := start(t, "version: 1\nnode: {strategy: single}\ngpus: "+c.gpus+"\npods: [{name: p, resource: nvidia.com/gpu}]\n")

		offered := 0
		for _, d := range n.Allocatable() {
			if offered += len(d.IDs); d.Resource != "nvidia.com/gpu" {
				t.Errorf("%s: offers %s", c.about, d.Resource)
			}
		}

		cmptest.Equal(t, c.about+": devices", offered, c.offered)

		if recorded(n, "offers nothing") == (c.refusal == "") || !recorded(n, c.refusal) {
			t.Errorf("%s: %v, want %q, and to offer nothing only then", c.about, n.Records(), c.refusal)
		}

		if refused := recorded(n, "refused: no free device of nvidia.com/gpu"); refused != (c.offered == 0) {
			t.Errorf("%s: the pod is refused: %t", c.about, refused)
		}
	}
}

// TestSingleStrategyWhileANodeIsCut: pods keep their devices; others wait until all GPUs are alike
// again.
func TestSingleStrategyWhileANodeIsCut(t *testing.T) {
	n := start(t, `
version: 1
node: {strategy: single}
gpus: [{model: A100-40GB, count: 2}]
pods:
- {name: stays, resource: nvidia.com/gpu, device: "1", for: 1m}
- {name: comes, resource: nvidia.com/gpu, waits: true, at: 10s}
`)
	partition := func(index int) {
		t.Helper()

		if err := n.SetMIGMode(index, true); err != nil {
			t.Fatal(err)
		}

		gi, err := n.CreateGPUInstance(index, 9, gpu.Opt[int]{})
		if err == nil {
			_, err = n.CreateComputeInstance(index, gi, 3)
		}

		if err != nil {
			t.Fatal(err)
		}
	}
	partition(0)
	advance(t, n, 30*time.Second)

	if _, uid := device(n, "comes"); uid != "" || len(n.Allocatable()) != 0 {
		t.Errorf("a mixed node offers %v", n.Allocatable())
	}

	if _, uid := device(n, "stays"); uid == "" {
		t.Error("the pod has lost its GPU")
	}

	advance(t, n, 31*time.Second)
	partition(1)
	advance(t, n, time.Second)

	if slice, _ := device(n, "comes"); slice == "" || !recorded(n, "offers devices again") {
		t.Errorf("records %v", n.Records())
	}
}
