package promtest

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/rules"
)

// ruledNode is the program on a simulated node, scraped, with the shipped rules evaluated once a
// minute.
type ruledNode struct {
	*scrapedNode
	*ruler
	target *scrapeTarget
	format Format
}

func startRuledNode(t *testing.T, scenario string, args ...string) *ruledNode {
	t.Helper()
	n := startNode(t, scenario, args...)

	families := ruledFamilies(t)
	delete(families, "mig_exporter_simulated_clock") // it is also Prometheus' clock here, so that a jump is a fault

	return &ruledNode{
		scrapedNode: n, ruler: newRuler(t, n.db, scraped(), rules.EngineQueryFunc(n.promql, n.db)),
		format: Text,
		target: &scrapeTarget{engine: n.Prometheus, target: target{
			keep: families, labels: labels.FromStrings("instance", "gpu-node-1:9401", "job", "mig-exporter"),
		}},
	}
}

// run steps the node until it has run for that long, with a scrape at each step.
func (n *ruledNode) run(until, step time.Duration) {
	n.scrapedNode.t.Helper()

	for n.elapsed < until {
		n.elapsed += step
		n.request(http.MethodPost, "/-/sim/advance?by="+step.String())
		n.target.scrape(n.scrapedNode.t, n.now(), n.format, n.requestAs(n.format))

		if n.elapsed%time.Minute == 0 {
			n.eval(n.now())
		}
	}
}

// requestAs scrapes in a format: histograms are native in protobuf, and not there in text but for
// that of the polls.
func (n *ruledNode) requestAs(format Format) []byte {
	n.scrapedNode.t.Helper()

	if format == Text {
		return n.request(http.MethodGet, "/metrics")
	}

	req, err := http.NewRequestWithContext(n.scrapedNode.t.Context(), http.MethodGet, n.url+"/metrics", nil)
	if err != nil {
		n.scrapedNode.t.Fatal(err)
	}

	req.Header.Set("Accept", string(format))

	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		n.scrapedNode.t.Fatal(err)
	}
	defer resp.Body.Close()

	body, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/vnd.google.protobuf") {
		n.scrapedNode.t.Fatal(resp.Header.Get("Content-Type"), err)
	}

	return body
}

// TestRulesOnChaos: of the shipped chaos, whose faults last for seconds, only what stays for a
// while or must not be missed is alerted.
func TestRulesOnChaos(t *testing.T) {
	t.Parallel()
	scenario := strings.ReplaceAll(chaos(t), "workload: slice}", "workload: slice, for: 40m}")
	n := startRuledNode(t, scenario, "--poll.timeout=1s")
	n.run(80*time.Minute, 30*time.Second)
	n.expectStory("GpuReadErrors", "GpuEccUncorrectable", "GpuXidMemory", "MigEventsLost", "GpuXidApplication",
		"GpuRecoveryActionChanged", "MigDeviceGone", "MigReadsTimedOut")
	n.expectSummary("GpuXidMemory",
		"XID 94 on GPU 6 instance 4 of gpu-node-1:9401: memory errors were contained (held by prod/slice-3).")
	// The pod of GPU 7 ends at 9:05 and has a successor at 9:07; the XID was at 7:10.
	n.expectSummary("GpuXidApplication",
		"XID 31 on GPU 7 of gpu-node-1:9401: the application failed (held by batch/short-0).")
}

// outages has faults that last.
const outages = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: true, privileged: true}
seed: 1
gpus:
  - {model: H100-80GB, count: 6}
  - {model: H100-80GB, mig: true, layout: ["3g.40gb@0", "3g.40gb@4"]}
workloads:
  - {name: train, memory: 60GiB, sm: 100, dram: 0.3, tensor: 0.3}
  - {name: slice, memory: 9GiB, sm: 24, dram: 0.3, tensor: 0.3}
pods:
  - {namespace: ml, name: lost-0, resource: nvidia.com/gpu, device: "1", workload: train}
  - {namespace: ml, name: idle-0, resource: nvidia.com/gpu, device: "2", for: 55m}
  - {namespace: ml, name: idle-1, resource: nvidia.com/gpu, device: "4", at: 95m}
  - {namespace: ml, name: hung-0, resource: nvidia.com/gpu, device: "5", workload: train}
  - {namespace: ml, name: ecc-0, resource: nvidia.com/gpu, device: "3", workload: train, for: 630s}
  - {namespace: ml, name: ecc-1, resource: nvidia.com/gpu, device: "3", workload: train, at: 632s}
  - {namespace: ml, name: bug-0, resource: nvidia.com/mig-3g.40gb, device: "6/3g.40gb@0", workload: slice, for: 10m10s}
  - {namespace: ml, name: bug-1, resource: nvidia.com/mig-3g.40gb, device: "6/3g.40gb@0", workload: slice, at: 10m12s}
faults:
  - {at: 5m, for: 10m, gpu: 1, kind: lost}
  - {at: 10m5s, for: 10m, gpu: 3, kind: xid, xid: 95, recovery: reset}
  - {at: 10m5s, gpu: 6, kind: xid, xid: 13, gi: 1, ci: 0}
  - {at: 10m5s, gpu: 4, kind: xid, xid: 79}
  - {at: 10m5s, gpu: 2, kind: xid, xid: 154}
  - {at: 20m, for: 30m, kind: kubelet-down}
  - {at: 60m, for: 10m, kind: clock-jump, by: -1h}
  - {at: 90m, for: 10m, gpu: 5, kind: hang}
  - {at: 105m, for: 22m, kind: api-server-down}
  - {at: 105m, kind: kubelet-restart}
`

// TestRulesOnOutages: a GPU that is lost, XIDs that end pods inside one scrape interval, a kubelet
// that is down, a wrong clock, a GPU that hangs, and a kubelet that is started while the API server
// does not answer, so that its list is not complete, each for as long as it takes.
func TestRulesOnOutages(t *testing.T) {
	t.Parallel()
	n := startRuledNode(t, outages, "--poll.timeout=100ms", "--xid.kernel-log") // GPU 4 is idle
	n.run(140*time.Minute, 30*time.Second)
	n.expectStory("GpuDown", "GpuReadErrors", "GpuXidHardware", "GpuEccUncorrectable", "GpuRecoveryActionRequired",
		"GpuXidApplication", "GpuXidNode", "GpuUnavailable", "GpuRecoveryActionChanged",
		"GpuXidOther", "MigSourceDown", "MigHolderUnconfirmed", "MigAllocationUnknown", "MigSnapshotStale",
		"MigDriverCallHung")
	n.expectSummary("GpuDown", "GPU 1 of gpu-node-1:9401 does not answer; it last did 9m 30s ago (held by ml/lost-0).")
	n.expectSummary("GpuXidHardware", "XID 95 on GPU 3 of gpu-node-1:9401: the GPU needs a reset (held by ml/ecc-0).")
	n.expectSummary("GpuXidApplication",
		"XID 13 on GPU 6 instance 1 of gpu-node-1:9401: the application failed (held by ml/bug-0).")
	n.expectSummary("MigAllocationUnknown", "It is not known which containers hold devices of gpu-node-1:9401 (GPUs: 2).")
	n.expectSummary("MigHolderUnconfirmed", "It is not known whether ml/idle-1 still holds GPU 4 of gpu-node-1:9401.")

	for _, name := range []string{"MigAllocationUnknown", "MigHolderUnconfirmed"} {
		if f := n.fired[name]; f != nil && f.first < 100*time.Minute {
			t.Errorf("%s fires after %s, beside MigSourceDown", name, f.first)
		}
	}
}

// TestRulesOnA30: the shipped A30, whose greedy pod saturates its slice until it ends and whose MIG
// mode waits for a reset, and a pod that fills the memory of its slice. The node restarts in the
// end.
func TestRulesOnA30(t *testing.T) {
	t.Parallel()
	scenario := strings.NewReplacer(
		"workload: greedy}", "workload: greedy, for: 2h}",
		"workload: tracker}", "workload: full, for: 1h}",
		"workload: detector}", "workload: detector, for: 3h}",
		"pods:\n", "  - {name: full, memory: 11700MiB, sm: 20}\npods:\n",
	).Replace(readFile(t, "../../testdata/scenarios/a30.yaml")) + "faults: [{kind: reboot, at: 3h}]\n"
	n := startRuledNode(t, scenario, "--dcgm.address=embedded")
	n.run(4*time.Hour, 30*time.Second)
	n.expectStory("MigSliceSaturated", "MigModePending", "MigSliceMemoryNearlyFull")
	n.expectSummary("MigModePending", "MIG of GPU 1 of gpu-node-1:9401 waits for a reset to switch on.")
}

// idlers are devices that are held and not used: a GPU and a slice by one pod, a GPU by pods that
// follow each other inside one scrape interval, a GPU by two at a time; and a layout that wastes a
// compute slice: with 1g.10gb at 0 another one would fit. Another program repartitions that GPU in
// the end.
const idlers = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: true, privileged: true}
seed: 1
gpus:
  - {model: H100-80GB}
  - {model: H100-80GB}
  - {model: H100-80GB, sharing: {kind: time-slicing, replicas: 2, rename: true}}
  - {model: H100-80GB, mig: true, layout: ["1g.20gb@0", "1g.20gb@2", "1g.20gb@4", "1g.10gb@6"]}
workloads:
  - {name: notebook, memory: 600MiB}
  - {name: burst, memory: 600MiB, sm: {steps: [{at: 0s, value: 30}, {at: 1m, value: 0}], repeat: 10m}}
pods:
  - {namespace: ml, name: idle-0, resource: nvidia.com/gpu, device: "0", workload: notebook, for: 150m}
  - {namespace: ml, name: hand-0, resource: nvidia.com/gpu, device: "1", workload: notebook, for: 2998s}
  - {namespace: ml, name: hand-1, resource: nvidia.com/gpu, device: "1", workload: notebook, at: 3000s, for: 2998s}
  - {namespace: ml, name: hand-2, resource: nvidia.com/gpu, device: "1", workload: notebook, at: 6000s, for: 2998s}
  - {namespace: ml, name: share-0, resource: nvidia.com/gpu.shared, device: "2", workload: notebook, for: 150m}
  - {namespace: ml, name: share-1, resource: nvidia.com/gpu.shared, device: "2", workload: notebook, for: 150m}
  - {namespace: ml, name: slice-0, resource: nvidia.com/mig-1g.20gb, device: "3/1g.20gb@0", workload: notebook, for: 150m}
  - {namespace: ml, name: burst-0, resource: nvidia.com/mig-1g.20gb, device: "3/1g.20gb@2", workload: burst, for: 150m}
faults:
  - {at: 170m, gpu: 3, kind: external-reconfigure, layout: ["3g.40gb@0", "3g.40gb@4"]}
`

// TestRulesOnIdlers: who holds an idle device for an hour is named; a device that pods hand to each
// other raises no alert.
func TestRulesOnIdlers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startRuledNode(t, idlers, "--control.enabled", "--control.socket="+filepath.Join(dir, "c.sock"),
		"--control.state-dir="+dir)
	n.run(5*time.Hour, 30*time.Second)
	n.expectStory("GpuAllocatedIdle", "MigSliceAllocatedIdle", "MigSlicesStranded", "MigLayoutChangedOutside")
	n.expectSummary("GpuAllocatedIdle",
		"GPU 0 of gpu-node-1:9401 is allocated and idle, at most 0% busy (held by ml/idle-0).")
	n.expectSummary("GpuAllocatedIdle",
		"GPU 2 of gpu-node-1:9401 is allocated and idle, at most 0% busy (held by ml/share-0 ml/share-1).")
	n.expectSummary("MigSliceAllocatedIdle",
		"1g.20gb (instance 3) on GPU 3 of gpu-node-1:9401 is allocated and idle, at most 0% busy (held by ml/slice-0).")
}

// TestRulesOnUnderused: the shipped story of underused GPUs without an advisor, for three days.
// Pods are named with the GPU; the one that has its GPU for a notebook is idle, the kernels of the
// last one are wide, and all of them end.
func TestRulesOnUnderused(t *testing.T) {
	t.Parallel()

	scenario := readFile(t, "../../testdata/scenarios/h100-underused.yaml")
	for _, pod := range []string{"classifier", "embedder", "reranker", "small-llm", "medium-llm", "notebook", "speech"} {
		scenario = strings.Replace(scenario, "nvidia.com/gpu, workload: "+pod+"}",
			"nvidia.com/gpu, workload: "+pod+", for: 60h}", 1)
	}

	n := newRollout(t, scenario, "--no-advise.enabled")
	n.start("gpu-node-1:9401", "mig-exporter-a")
	n.runLong(44 * time.Hour)

	if got := n.gpusOf("GpuUnderused"); got != "0 1 2" {
		t.Errorf("GpuUnderused fires for GPUs %q, want 0 1 2", got)
	}

	n.runLong(64 * time.Hour)
	n.expectStory("GpuUnderused", "GpuAllocatedIdle")
	n.expectSummary("GpuUnderused",
		"GPU 0 of gpu-node-1:9401 looks larger than its work needs, by five-minute means alone: 6.818% of its SMs are active "+
			"on average (held by vision/classifier-0).")
	n.expectSummary("GpuUnderused", "GPU 2 of gpu-node-1:9401 looks larger than its work needs, by five-minute means alone: "+
		"15.15% of its SMs are active on average (held by search/reranker-0).")
}

// TestRulesOverHandOvers: while devices of all levels change hands inside one scrape interval no
// rule fails and none fires, with native histograms and without.
func TestRulesOverHandOvers(t *testing.T) {
	t.Parallel()

	for _, format := range []Format{Text, Protobuf} {
		n := startRuledNode(t, handOvers())
		n.format = format
		n.target.keep = nil
		n.run(16*time.Minute, 30*time.Second)
		n.expectStory()

		holders, err := n.EvalAt(`count(count by (pod) (
			max_over_time(mig:holder:info{sole="true"}[20m])))`, n.now())
		if got, err := singleValue(holders, err); err != nil || got != 8 {
			t.Errorf("holders of whole devices: got %v (%v), want 8", got, err)
		}

		native, err := n.EvalAt(`histogram_count(nvidia_gpu_sm_activity_distribution)`, n.now())
		if err != nil || (len(native) > 0) != (format == Protobuf) {
			t.Errorf("%s: native histograms: %v (%v)", format, native, err)
		}
	}
}
