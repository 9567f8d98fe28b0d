package migctl

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/fleet"
)

// TestFleetReadsAllNodesOfAnOwner: of replicas on several nodes the one that needs most decides for
// all, and the answer names its node.
func TestFleetReadsAllNodesOfAnOwner(t *testing.T) {
	const gib = 1 << 30
	narrow := fakeGPU{busy: 0.2, sms: 0.016, dram: 0.01, memory: 6 * gib}
	larger := fakeGPU{busy: 0.2, sms: 0.016, dram: 0.01, memory: 15 * gib}

	wide := fakeGPU{busy: 0.05, sms: 0.049, dram: 0.02, memory: 9 * gib}
	for about, c := range map[string]struct {
		replicas []fakeGPU // one on each node
		profile  string
		names    string
	}{
		"alike":          {[]fakeGPU{narrow, narrow}, "1g.10gb", ""},
		"one is larger":  {[]fakeGPU{narrow, narrow, larger}, "1g.20gb", "the one on node node-2 needs 1g.20gb"},
		"one must stay":  {[]fakeGPU{narrow, wide, narrow}, "", "the one on node node-1 stays whole"},
		"it is of a job": {[]fakeGPU{narrow, narrow}, "", "by its owner PyTorchJob/a"},
	} {
		owner := "Deployment/a"
		if about == "it is of a job" {
			owner = "PyTorchJob/a"
		}

		var gpus []fakeGPU

		for i, g := range c.replicas {
			g.uuid, g.node, g.cluster, g.model = fmt.Sprintf("GPU-0000000%d-1", i), fmt.Sprintf("node-%d", i), "a", "NVIDIA H100 80GB HBM3"
			g.namespace, g.pod, g.owner = "web", fmt.Sprintf("a-%d", i), owner
			gpus = append(gpus, g)
		}

		url := fakePrometheus(t, gpus...)
		got := runner{}.run(t, defaultAddress, "fleet", "--prometheus.url="+url, "--time=2026-01-08T00:00:00Z", "-o", "json")

		var report fleet.Report
		if err := json.Unmarshal([]byte(got.out), &report); err != nil {
			t.Fatal(err)
		}

		for i := range report.GPUs {
			cmptest.Equal(t, fmt.Sprintf("%s: profile on %s", about, report.GPUs[i].Node), report.GPUs[i].Profile, c.profile)
		}

		cmptest.HasTexts(t, report.GPUs[0].Explanation, c.names)
	}
}
