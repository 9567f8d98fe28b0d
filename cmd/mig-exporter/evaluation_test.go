package main

import (
	"encoding/json"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// stretched has slices that stretch what runs there, and one that is too small for its memory after
// ten minutes.
const stretched = `version: 1
node: {hostname: node-a}
gpus:
  - {model: H100-80GB, mig: true, layout: ["3g.40gb@0", "2g.20gb@4", "1g.10gb@6"]}
workloads:
  - {name: wide, memory: 4GiB, width: 96, busy: 0.5}
  - {name: service, memory: 8GiB, width: 64, requests: {rate: 20, gpu: 20ms}}
  - {name: leak, memory: {steps: [{at: 0s, value: 2GiB}, {at: 10m, value: 12GiB}]}, width: 4, busy: 0.5}
pods:
  - {namespace: ml, name: wide-0, owner: Deployment/wide, resource: nvidia.com/mig-3g.40gb, workload: wide}
  - {namespace: ml, name: service-0, resource: nvidia.com/mig-2g.20gb, workload: service}
  - {namespace: ml, name: leak-0, owner: Deployment/leak, resource: nvidia.com/mig-1g.10gb, workload: leak}
`

func writeStretched(t *testing.T) string {
	t.Helper()

	path := filepath.Join(t.TempDir(), "stretched.yaml")
	if err := os.WriteFile(path, []byte(stretched), 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}

func stretchedNode(t *testing.T) *exporter {
	t.Helper()

	x := runInProcess(t, "--sim.scenario="+writeStretched(t))
	for range 12 {
		advanceBy(t, x, time.Minute)
	}

	return x
}

// truthOf returns what an exporter answers about the truth.
func truthOf(t *testing.T, x *exporter) sim.Evaluation {
	t.Helper()
	code, body := call(x.handler, http.MethodGet, "/-/sim/truth")

	var e sim.Evaluation
	if err := json.Unmarshal([]byte(body), &e); err != nil || code != http.StatusOK {
		t.Fatalf("%d %s: %v", code, body, err)
	}

	return e
}

// TestTruthOfASimulatedNode: the exporter of a simulated node tells what really happens, with the
// last prediction for the workload, whichever device and pod it has now.
func TestTruthOfASimulatedNode(t *testing.T) {
	t.Parallel()
	x := stretchedNode(t)
	x.node.kind.(simulation).evaluation.recordPredictions(&advise.Report{Time: sim.StepStart(), Devices: []advise.Recommendation{
		{
			Action: advise.ActionSlice, Recommended: "3g.40gb",
			Workload:  &advise.Key{Namespace: "ml", Owner: "Deployment/wide", Container: "main", Model: "H100"},
			Predicted: &advise.Predicted{StretchP95: advise.Stretch{Low: 1.5, Expected: 1.6, High: 1.7}, ThroughputRatio: 1},
		},
		{
			Action: advise.ActionShrink, Recommended: "1g.10gb", // its stretch is not relative to a whole GPU
			Workload:  &advise.Key{Namespace: "ml", Owner: "Pod/service-0", Container: "main", Model: "H100"},
			Predicted: &advise.Predicted{}, Instance: gpu.Some(gpu.InstanceID(1)),
		},
	}})

	e := truthOf(t, x)
	if len(e.Processes) != 3 {
		t.Fatalf("%+v", e)
	}

	wide := e.Processes[0]
	service := e.Processes[1]
	leak := e.Processes[2]
	cmptest.Equal(t, "node", e.Node, "node-a")
	cmptest.Equal(t, "stretch on 60 SMs", wide.Stretch, sim.Quantiles{P50: 1.6, P95: 1.6})
	cmptest.Equal(t, "prediction", wide.Predicted,
		&sim.Prediction{Time: sim.StepStart(), Profile: "3g.40gb", Low: 1.5, Middle: 1.6, High: 1.7, Throughput: 1})
	cmptest.Equal(t, "prediction for service", service.Predicted, nil)

	if service.Requests == nil {
		t.Fatal("service has no requests")
	}

	if got := service.Requests.PerSecond; math.Abs(got-20) > 1e-6 {
		t.Errorf("service: %g requests per second, want 20", got)
	}

	if !strings.Contains(leak.Failed, "out of memory") {
		t.Errorf("leak: %+v, want that it ran out of memory", leak)
	}

	if code, _ := call(x.handler, http.MethodPost, "/-/sim/truth"); code != http.StatusMethodNotAllowed {
		t.Errorf("POST /-/sim/truth: %d, want 405", code)
	}
}

// TestTruthIsNoMetric: neither metrics nor the document of the node have what only a simulated node
// can know, and asking for it changes nothing.
func TestTruthIsNoMetric(t *testing.T) {
	t.Parallel()
	x := stretchedNode(t)
	own := regexp.MustCompile(`(?m)^(go|process|mig_exporter|promhttp)_.*\n`)
	served := func() string {
		code, text := call(x.handler, http.MethodGet, "/metrics")
		if code != http.StatusOK {
			t.Fatalf("/metrics: %d %s", code, text)
		}

		return own.ReplaceAllString(text, "")
	}
	before := served()
	truthOf(t, x)

	if after := served(); after != before {
		t.Error("asking for the truth has changed the metrics")
	}

	_, document := call(x.handler, http.MethodGet, "/api/v1/node")

	known := regexp.MustCompile(`(?i)\b\w*(truth|throughput|latency|stretch|alone|predicted|out of memory)\w*`)
	for what, text := range map[string]string{"/metrics": before, "/api/v1/node": document} {
		found := known.FindAllString(text, -1)

		found = slices.DeleteFunc(found, func(name string) bool {
			return name == "nvidia_gpu_rightsizing_stretch_ratio" || name == "nvidia_gpu_rightsizing_latency_ratio"
		})
		if len(text) == 0 || len(found) > 0 {
			t.Errorf("%s: %d bytes, with %q", what, len(text), found)
		}
	}
}

// TestNoTruthOfARecording: a recording of a node has a clock that can be moved, and knows no truth.
func TestNoTruthOfARecording(t *testing.T) {
	t.Parallel()
	path := captured(t, captureRun{scenario: writeStretched(t), by: time.Second, polls: 2})

	x, err := newExporter(configOf(t, "--sim.scenario="+path), log.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}
	defer x.close()

	if code, _ := call(x.handler, http.MethodGet, "/-/sim/truth"); code != http.StatusNotFound {
		t.Errorf("GET /-/sim/truth: %d, want 404", code)
	}
}
