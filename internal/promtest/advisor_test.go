package promtest

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
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

// TestRightsizingLoop goes all the way on the shipped story of underused GPUs: after seven days the
// advisor's alert fires for four GPUs, the dashboards, migctl recommend and migctl fleet name the
// same four, and what migctl recommend prints is planned and carried out. The free GPU gets the
// slices, the owners ask for them. Then the pods work in slices of one GPU, four GPUs are free, and
// the advice is gone and does not come back.
func TestRightsizingLoop(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	socket := filepath.Join(dir, "control.sock")
	n := newRollout(t, readFile(t, "../../testdata/scenarios/h100-underused.yaml"), advisorPolls, "--control.enabled",
		"--control.mode=apply", "--control.socket="+socket, "--control.state-dir="+dir)
	n.start("gpu-node-1:9401", "mig-exporter-a")

	n.exporters[0].target.keep = nil                                 // migctl fleet asks for more than the rules
	for ; n.elapsed < 160*time.Hour; n.elapsed += 15 * time.Minute { // before there is a Prometheus
		n.exporters[0].request(http.MethodPost, "/-/sim/advance?by=15m")
	}

	n.runLong(164 * time.Hour)

	if got := n.gpusOf("GpuRightsizingCandidate"); got != "" {
		t.Errorf("before seven days GpuRightsizingCandidate fires for GPUs %q", got)
	}

	n.runLong(172 * time.Hour)

	if got := n.gpusOf("GpuRightsizingCandidate"); got != "0 1 2 5" {
		t.Errorf("GpuRightsizingCandidate fires for GPUs %q, want 0 1 2 5", got)
	}

	n.expectSummary("GpuRightsizingCandidate", "GPU 1 of gpu-node-1:9401 is larger than its work needs: 2g.20gb would do and "+
		"set 75.8% of its SMs free (held by search/embedder-0).")
	n.expectOneAnswer(socket, "0 1 2 5", false)
	before := n.valueNow(`avg(nvidia_gpu_sm_activity_ratio{gpu=~"[0125]"})`)

	layouts := filepath.Join(dir, "layouts.yaml")
	if err := os.WriteFile(layouts, []byte(migctl(t, socket, "recommend", "-o", "spec")), 0o600); err != nil {
		t.Fatal(err)
	}

	expectAdviceShown(t, socket)

	pods := movedPods(t, socket)
	if len(pods) != 4 {
		t.Errorf("pods that move: %v, want 4", pods)
	}

	migctl(t, socket, "mode", "on", "7", "--yes")

	if plan := migctl(t, socket, "plan", "-f", layouts, "--layout", "gpu-7"); !strings.Contains(plan, "3g.40gb") {
		t.Errorf("the plan creates no 3g.40gb:\n%s", plan)
	}

	applied := printed(t, socket, "apply", "-f", layouts, "--layout", "gpu-7", "--yes")
	examplePage().expect(t, "Takes    8 steps", applied, "GPU 7  H100", "\n\nOperation")

	for _, p := range pods {
		q := url.Values{"namespace": {p.namespace}, "pod": {p.name}, "resource": {p.resource}}
		n.exporters[0].request(http.MethodPost, "/-/sim/replace-pod?"+q.Encode())
	}

	n.runLong(204 * time.Hour) // a day in which the notebook's slice is idle

	if got := n.gpusOf("GpuRightsizingCandidate"); got != "" {
		t.Errorf("GpuRightsizingCandidate still fires for GPUs %q", got)
	}

	n.expectOneAnswer(socket, "", false)

	if got := n.gpusOf("MigSliceRightsizingGrow") + n.gpusOf("MigSliceRightsizingShrink"); got != "" {
		t.Errorf("the advisor wants other slices now: %q", got)
	}

	n.expectMoreActivity(before)
	n.expectPredicted(4)
	expectEffectShown(t, socket, n.exporters[0].url)
	// it is given up
	n.exporters[0].request(http.MethodPost, "/-/sim/replace-pod?namespace=ml&pod=notebook-ben&resource=example.com/none")
	n.runLong(208 * time.Hour)
	n.expectStory("GpuUnderused", "GpuRightsizingCandidate", "GpuAllocatedIdle", "MigSliceRightsizingIdle",
		"MigSliceAllocatedIdle")
}

// expectMoreActivity fails the test unless four pods work in slices, which are used more than their
// GPUs were before, and four GPUs are free.
func (r *rollout) expectMoreActivity(before float64) {
	r.t.Helper()

	if got := r.valueNow(`count(nvidia_mig_gpu_instance_pod_info)`); got != 4 {
		r.t.Errorf("%v slices are held, want 4", got)
	}

	if got := r.valueNow(`count(nvidia_gpu_allocated == 0)`); got != 4 {
		r.t.Errorf("%v GPUs are free, want 4", got)
	}

	if after := r.valueNow(`avg(nvidia_mig_gpu_instance_sm_activity_ratio)`); after < 3*before {
		r.t.Errorf("SM activity of the slices is %.3f; that of the GPUs was %.3f", after, before)
	}
}

// examplePage tells the story that TestRightsizingLoop goes through.
func examplePage() page { return page{"../../docs/rightsizing-example.md"} }

// expectAdviceShown checks what the page shows of the advice.
func expectAdviceShown(t *testing.T, socket string) {
	t.Helper()
	advice := printed(t, socket, "recommend")
	examplePage().expect(t, "0 vision/classifier   1g", advice, "Node ", "\nProcedure")
	examplePage().expect(t, "PROFILE         STRETCH", printed(t, socket, "recommend", "--explain", "2"), "GPU 2", "\n! ")
	examplePage().expectLines(t, "kubectl cordon", advice)
	examplePage().expectLines(t, "patch statefulset/reranker", advice)
}

// expectEffectShown checks what the page shows of the effect.
func expectEffectShown(t *testing.T, socket, url string) {
	t.Helper()
	examplePage().expectLines(t, "MIG UUID", printed(t, socket, "get", "7"))
	examplePage().expectLines(t, "PREDICTED", printed(t, "none", "evaluate", "--url="+url))
	examplePage().expect(t, "SLICE        ACTION", printed(t, socket, "recommend"), "GPU WORKLOAD", "\n\nProcedure")
}

// valueNow returns the one sample of a query.
func (r *rollout) valueNow(expr string) float64 {
	r.t.Helper()

	v, err := singleValue(r.EvalAt(expr, r.now()))
	if err != nil {
		r.t.Errorf("%s: %v", expr, err)
	}

	return v
}

// movedPod is a pod that the report gives a slice, and what it has to ask for.
type movedPod struct{ namespace, name, resource string }

func movedPods(t *testing.T, socket string) []movedPod {
	t.Helper()

	var report struct {
		Devices []struct {
			Action             string
			RecommendedProfile string
			Pod                struct{ Namespace, Name string }
		}
	}
	if err := json.Unmarshal([]byte(migctl(t, socket, "recommend", "-o", "json")), &report); err != nil {
		t.Fatal(err)
	}

	var pods []movedPod

	for _, d := range report.Devices {
		if d.Action == "slice" {
			resource := "nvidia.com/mig-" + strings.ReplaceAll(d.RecommendedProfile, "+", ".")
			pods = append(pods, movedPod{d.Pod.Namespace, d.Pod.Name, resource})
		}
	}

	return pods
}

// sized has slices that are too small, an idle one and free ones.
const sized = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: true, privileged: true}
seed: 1
gpus:
  - {model: H100-80GB, mig: true, layout: ["2g.20gb@0", "1g.10gb@2", "3g.40gb@4"]}
  - {model: H100-80GB, mig: true, layout: ["1g.10gb@0", "1g.10gb@1", "3g.40gb@4"]}
workloads:
  - {name: greedy, memory: 4GiB, sm: 132, dram: 0.3, tensor: 0.3}
  - {name: full, memory: {steps: [{at: 0s, value: 2GiB}, {at: 90m, value: 9600MiB}]}, sm: 4}
  - {name: notebook, memory: 600MiB}
pods:
  - {namespace: ml, name: greedy-0, resource: nvidia.com/mig-2g.20gb, device: "0/2g.20gb@0", workload: greedy, for: 40h}
  - {namespace: ml, name: full-0, resource: nvidia.com/mig-1g.10gb, device: "0/1g.10gb@2", workload: full, for: 40h}
  - {namespace: ml, name: idle-0, resource: nvidia.com/mig-3g.40gb, device: "1/3g.40gb@4", workload: notebook, for: 40h}
`

// TestAdvisorOnSlices: slices that are too small are reported within four hours, idle ones after a
// day, free ones never.
func TestAdvisorOnSlices(t *testing.T) {
	t.Parallel()
	n := newRollout(t, sized, advisorPolls)
	n.start("gpu-node-1:9401", "mig-exporter-a")
	n.runLong(4 * time.Hour)
	fires := func(name, want string) {
		t.Helper()

		if got := n.gpusOf(name); got != want {
			t.Errorf("%s fires for slices of GPUs %q, want %q", name, got, want)
		}
	}
	fires("MigSliceRightsizingGrow", "0 0")
	fires("MigSliceRightsizingIdle", "")
	n.runLong(28 * time.Hour)
	fires("MigSliceRightsizingIdle", "1")
	n.runLong(44 * time.Hour)
	n.expectStory("MigSliceRightsizingGrow", "MigSliceRightsizingIdle",
		"MigSliceSaturated", "MigSliceMemoryNearlyFull", "MigSliceAllocatedIdle")
}

// roomy has a slice that is narrow and busy, and room for a smaller one.
const roomy = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: true, privileged: true}
seed: 1
gpus:
  - {model: H100-80GB, mig: true, layout: ["3g.40gb@0", "3g.40gb@4"]}
workloads:
  - {name: narrow, memory: {steps: [{at: 0s, value: 500MiB}, {at: 1s, value: 4GiB}]}, sm: 5, dram: 0.05, tensor: 0.1}
  - {name: right, memory: {steps: [{at: 0s, value: 500MiB}, {at: 1s, value: 26GiB}]}, sm: {sine: {min: 30, max: 50, period: 24h}}, dram: 0.3, tensor: 0.3}
pods:
  - {namespace: ml, name: narrow-0, resource: nvidia.com/mig-3g.40gb, device: "0/3g.40gb@0", workload: narrow}
  - {namespace: ml, name: right-0, resource: nvidia.com/mig-3g.40gb, device: "0/3g.40gb@4", workload: right}
`

// TestSliceThatIsTooBig: after seven days the advisor's alert fires for the narrow slice alone. The
// printed command repartitions once its pod has left; the pod works on the smaller slice, and the
// alert ends.
func TestSliceThatIsTooBig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	socket := filepath.Join(dir, "control.sock")
	n := newRollout(t, roomy, advisorPolls, "--control.enabled", "--control.mode=apply", "--control.socket="+socket,
		"--control.state-dir="+dir)
	n.start("gpu-node-1:9401", "mig-exporter-a")

	for ; n.elapsed < 164*time.Hour; n.elapsed += 15 * time.Minute { // before there is a Prometheus
		n.exporters[0].request(http.MethodPost, "/-/sim/advance?by=15m")
	}

	n.runLong(172 * time.Hour)

	if got := n.gpusOf("MigSliceRightsizingShrink"); got != "0" {
		t.Fatalf("MigSliceRightsizingShrink fires for GPUs %q, want 0", got)
	}

	command := regexp.MustCompile(`(?m)^ +migctl (apply --gpus 0 --devices \S+)$`).
		FindStringSubmatch(migctl(t, socket, "recommend"))
	if command == nil {
		t.Fatalf("no command to repartition:\n%s", migctl(t, socket, "recommend"))
	}

	apply := append(strings.Fields(command[1]), "--yes")
	if out, code := tryMigctl(t, socket, apply...); code == 0 || !strings.Contains(out, "narrow-0") {
		t.Errorf("with its pod on the slice: exit code %d\n%s", code, out)
	}

	replace := func(resource string) {
		q := url.Values{"namespace": {"ml"}, "pod": {"narrow-0"}, "resource": {resource}}
		n.exporters[0].request(http.MethodPost, "/-/sim/replace-pod?"+q.Encode())
	}
	replace("nvidia.com/mig-1g.10gb")
	n.runLong(176 * time.Hour)
	migctl(t, socket, apply...)
	n.runLong(184 * time.Hour)
	n.expectStory("MigSliceRightsizingShrink")
	n.expectSummary("MigSliceRightsizingShrink", "3g.40gb (instance 1) on GPU 0 of gpu-node-1:9401 is larger than its "+
		"work needs, its memory 10.14% full: 1g.10gb would do (held by ml/narrow-0).")

	if got := n.valueNow(`count(nvidia_mig_gpu_instance_pod_info{mig_profile="1g.10gb",pod="narrow-0"})`); got != 1 {
		t.Errorf("%v slices of 1g.10gb are held by the pod, want 1", got)
	}
}
