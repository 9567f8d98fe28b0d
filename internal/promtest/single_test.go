package promtest

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSingleStrategyLoop goes all the way on a node whose device plugin has the MIG strategy
// single: migctl recommend refuses to partition one GPU alone, and its way for the node is carried
// out. All pods leave, all GPUs get slices of one profile, and the pods come back on slices by the
// request that they had. The fifth, which no GPU was left for, has one now.
func TestSingleStrategyLoop(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	socket := filepath.Join(dir, "control.sock")
	n := newRollout(t, readFile(t, "../../testdata/scenarios/h100-single.yaml"), advisorPolls, "--advise.strategy=single",
		"--control.enabled", "--control.mode=apply", "--control.socket="+socket, "--control.state-dir="+dir)
	n.start("gpu-node-1:9401", "mig-exporter-a")

	for ; n.elapsed < 164*time.Hour; n.elapsed += 15 * time.Minute { // before there is a Prometheus
		n.exporters[0].request(http.MethodPost, "/-/sim/advance?by=15m")
	}

	n.runLong(172 * time.Hour)

	if got := n.gpusOf("GpuRightsizingCandidate"); got != "0 1 2 3" {
		t.Errorf("GpuRightsizingCandidate fires for GPUs %q, want 0 1 2 3", got)
	}

	before := n.valueNow(`avg(nvidia_gpu_sm_activity_ratio)`)

	expectRefusedAlone(t, socket)

	layouts := filepath.Join(dir, "layouts.yaml")
	if err := os.WriteFile(layouts, []byte(migctl(t, socket, "recommend", "-o", "spec")), 0o600); err != nil {
		t.Fatal(err)
	}

	// The pod that waits comes first: there is no cordon that keeps it from a GPU that others
	// leave.
	pods := []string{"chat/small-llm-1", "search/embedder-0", "chat/small-llm-0", "vision/detector-0", "ml/notebook-ben"}
	n.replacePods(pods, "example.com/cordoned")
	n.exporters[0].request(http.MethodPost, "/-/sim/advance?by=10s") // they have left the kubelet's list
	migctl(t, socket, "mode", "on", "0", "1", "2", "3", "--yes")
	migctl(t, socket, "apply", "-f", layouts, "--yes")
	n.replacePods(pods, "nvidia.com/gpu")

	n.runLong(180 * time.Hour)

	for expr, want := range map[string]float64{
		`count(nvidia_mig_gpu_instance_sm_activity_ratio)`:                   8,
		`count(nvidia_mig_gpu_instance_pod_info{resource="nvidia.com/gpu"})`: 5,
		`count(nvidia_mig_gpu_instance_pod_info{pod="small-llm-1"})`:         1,
		`count(nvidia_gpu_rightsizing_candidate) or vector(0)`:               0,
	} {
		if got := n.valueNow(expr); got != want {
			t.Errorf("%s is %v, want %v", expr, got, want)
		}
	}

	page{"../../docs/simulated-node.md"}.expect(t, "what really happens",
		printed(t, "none", "evaluate", "--url="+n.exporters[0].url), "Node ", "")

	slices := `nvidia_mig_gpu_instance_sm_activity_ratio and on (uuid, gpu_instance) nvidia_mig_gpu_instance_pod_info`
	if after := n.valueNow("avg(" + slices + ")"); after < 1.5*before {
		t.Errorf("SM activity of the slices that are held is %.3f; that of the GPUs was %.3f", after, before)
	}

	n.expectPredicted(5)
	n.expectNoMoreAdvice(socket, 180*time.Hour)
	n.expectNoMoreAdvice(socket, 200*time.Hour)
}

// expectRefusedAlone fails the test unless migctl recommend refuses to partition one GPU alone, and
// has a way for the node.
func expectRefusedAlone(t *testing.T, socket string) {
	t.Helper()

	const reason = "under --mig-strategy=single all GPUs of a node have one MIG mode and one profile"
	if out := oneLine(migctl(t, socket, "recommend", "1")); !strings.Contains(out, reason) {
		t.Errorf("migctl recommend 1 does not say that %s:\n%s", reason, out)
	}

	if out, code := tryMigctl(t, socket, "recommend", "-o", "spec", "1"); code != 1 || !strings.Contains(oneLine(out), reason) {
		t.Errorf("migctl recommend -o spec 1: exit code %d, want 1, because %s:\n%s", code, reason, out)
	}

	if out := oneLine(migctl(t, socket, "recommend")); !strings.Contains(out, "all GPUs get 3g.40gb") {
		t.Errorf("migctl recommend has no way for the node:\n%s", out)
	}
}

// expectNoMoreAdvice lets the node run, and fails the test if anything else is recommended then.
func (r *rollout) expectNoMoreAdvice(socket string, until time.Duration) {
	r.t.Helper()
	r.runLong(until)

	for _, alert := range []string{"GpuRightsizingCandidate", "MigSliceRightsizingGrow", "MigSliceRightsizingShrink"} {
		if got := r.gpusOf(alert); got != "" {
			r.t.Errorf("after %s %s fires for %q", until, alert, got)
		}
	}

	if out := oneLine(migctl(r.t, socket, "recommend")); !strings.Contains(out, "No workload is to move from a whole GPU to a slice.") {
		r.t.Errorf("after %s migctl recommend says:\n%s", until, out)
	}
}

// oneLine undoes the line breaks of a text.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// replacePods has pods leave, and come back when there is a device of a resource.
func (r *rollout) replacePods(pods []string, resource string) {
	r.t.Helper()

	for _, pod := range pods {
		namespace, name, _ := strings.Cut(pod, "/")
		q := url.Values{"namespace": {namespace}, "pod": {name}, "resource": {resource}}
		r.exporters[0].request(http.MethodPost, "/-/sim/replace-pod?"+q.Encode())
	}
}

// expectPredicted fails the test unless so many processes run in the slices that were recommended
// for them, each as it was predicted: by what really happens on the simulated node.
func (r *rollout) expectPredicted(want int) {
	r.t.Helper()
	var e struct {
		Processes []struct {
			Pod, Profile, Failed string
			ThroughputRatio      float64
			Stretch              struct{ P95 float64 }
			Predicted            *struct {
				Profile                 string
				StretchLow, StretchHigh float64
			}
		}
	}

	out := migctl(r.t, "none", "evaluate", "--url="+r.exporters[0].url, "-o", "json")
	if err := json.Unmarshal([]byte(out), &e); err != nil {
		r.t.Fatalf("migctl evaluate: %v\n%s", err, out)
	}

	moved := 0

	for _, p := range e.Processes {
		if p.Failed != "" {
			r.t.Errorf("%s was killed: %s", p.Pod, p.Failed)
		}

		if p.Predicted == nil || p.Predicted.Profile != p.Profile {
			continue
		}

		moved++

		high := p.Predicted.StretchHigh // 0: nothing ran that could tell
		if p.ThroughputRatio < 0.95 || high > 0 && p.Stretch.P95 > 1.005*high {
			r.t.Errorf("%s in %s: throughput %.3f, stretch %.3f; up to %.3f was predicted", p.Pod, p.Profile,
				p.ThroughputRatio, p.Stretch.P95, high)
		}
	}

	if moved != want {
		r.t.Errorf("%d processes run in the slices recommended for them, want %d:\n%s", moved, want, out)
	}
}
