package promtest

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// advisorPolls lets the advisor take steps of five minutes for observation without a gap.
const advisorPolls = "--poll.interval=5m"

// gpusOf returns the GPUs that an alert fires for.
func (r *ruler) gpusOf(name string) string {
	var gpus []string
	for _, a := range r.firingNow(name) {
		gpus = append(gpus, a.Labels.Get("gpu"))
	}
	slices.Sort(gpus)
	return strings.Join(gpus, " ")
}

// TestAdvisorBesideThePlainRule: on the shipped story of underused GPUs the plain rule speaks after two days, the advisor after seven. They agree on five
// GPUs. The plain rule alone names GPU 4, for which a slice could not keep up, as the advisor says. The advisor alone names
// GPU 5, which the plain rule leaves to GpuAllocatedIdle. Both fall silent when the pods end.
func TestAdvisorBesideThePlainRule(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../testdata/scenarios/h100-underused.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const until = 176 * time.Hour
	scenario := string(text)
	for _, pod := range []string{"classifier", "embedder", "reranker", "small-llm", "medium-llm", "notebook", "speech"} {
		scenario = strings.Replace(scenario, "nvidia.com/gpu, workload: "+pod+"}", "nvidia.com/gpu, workload: "+pod+", for: "+until.String()+"}", 1)
	}
	n := newRollout(t, scenario, advisorPolls)
	n.start("gpu-node-1:9401", "mig-exporter-a")
	for _, c := range []struct {
		at             time.Duration
		plain, advisor string
	}{
		{44 * time.Hour, "", ""},
		{56 * time.Hour, "0 1 2 3 4 6", ""},
		{164 * time.Hour, "0 1 2 3 4 6", ""},
		{172 * time.Hour, "0 1 2 3 4 6", "0 1 2 3 5 6"},
	} {
		n.runLong(c.at)
		if got := n.gpusOf("GpuUnderused"); got != c.plain {
			t.Errorf("after %s: GpuUnderused fires for GPUs %q, want %q", c.at, got, c.plain)
		}
		if got := n.gpusOf("GpuRightsizingCandidate"); got != c.advisor {
			t.Errorf("after %s: GpuRightsizingCandidate fires for GPUs %q, want %q", c.at, got, c.advisor)
		}
	}
	for _, a := range n.firingNow("GpuUnderused") {
		advice := "The right-sizing advisor advises against a slice, with the reason busy."
		if got := strings.Contains(a.Annotations.Get("description"), advice); got != (a.Labels.Get("gpu") == "4") {
			t.Errorf("GPU %s: %s", a.Labels.Get("gpu"), a.Annotations.Get("description"))
		}
	}
	n.runLong(until + 8*time.Hour)
	n.expectStory("GpuUnderused", "GpuAllocatedIdle", "GpuRightsizingCandidate")
	n.expectSummary("GpuRightsizingCandidate",
		"GPU 0 of gpu-node-1:9401 is larger than its work needs: 3g.40gb would do and set 54.55% of its SMs free (held by vision/classifier-0).")
}

// sized has slices that are too small, an idle one and free ones.
const sized = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: true, privileged: true}
seed: 1
gpus:
  - {model: H100-80GB, mig: true, layout: ["3g.40gb@0", "2g.20gb@4", "1g.10gb@6"]}
  - {model: H100-80GB, mig: true, layout: ["3g.40gb@0", "1g.10gb@4", "1g.10gb@6"]}
workloads:
  - {name: greedy, memory: 4GiB, sm: 132, dram: 0.3, tensor: 0.3}
  - {name: full, memory: 9600MiB, sm: 4}
  - {name: notebook, memory: 600MiB}
pods:
  - {namespace: ml, name: greedy-0, resource: nvidia.com/mig-2g.20gb, device: "0/2g.20gb@4", workload: greedy, for: 12h}
  - {namespace: ml, name: full-0, resource: nvidia.com/mig-1g.10gb, device: "0/1g.10gb@6", workload: full, for: 12h}
  - {namespace: ml, name: idle-0, resource: nvidia.com/mig-3g.40gb, device: "1/3g.40gb@0", workload: notebook, for: 12h}
`

// TestAdvisorOnSlices: slices that are too small and idle ones are told within four hours, free ones never.
func TestAdvisorOnSlices(t *testing.T) {
	t.Parallel()
	n := newRollout(t, sized, advisorPolls)
	n.start("gpu-node-1:9401", "mig-exporter-a")
	n.runLong(4 * time.Hour)
	for name, want := range map[string]string{"MigSliceRightsizingGrow": "0 0", "MigSliceRightsizingIdle": "1"} {
		if got := n.gpusOf(name); got != want {
			t.Errorf("%s fires for slices of GPUs %q, want %q", name, got, want)
		}
	}
	n.runLong(16 * time.Hour)
	n.expectStory("MigSliceRightsizingGrow", "MigSliceRightsizingIdle",
		"MigSliceSaturated", "MigSliceMemoryNearlyFull", "MigSliceAllocatedIdle")
}
