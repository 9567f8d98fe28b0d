package promtest

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// TestRollupIsWhatThePageSays: docs/metrics.md, on a node that reports activity. An A100 in GPU
// instances has 98 SMs.
func TestRollupIsWhatThePageSays(t *testing.T) {
	body, err := os.ReadFile(filepath.Join(goldens, "dgx-a100-mixed.activity.prom"))
	if err != nil {
		t.Fatalf("%v; write it with: make golden", err)
	}

	e := NewPrometheus(t)
	e.AddScrape(t, scraped(), Text, body)
	const rollup = `nvidia_gpu_activity_source{rollup="true"}`

	byHand := e.Query(t, `
		sum by (uuid) (nvidia_mig_gpu_instance_sm_activity_ratio * on (uuid, gpu_instance) nvidia_mig_gpu_instance_sms) / 98
		- on (uuid) nvidia_gpu_sm_activity_ratio and on (uuid) `+rollup)
	if gpus := e.queryValue(t, `count(`+rollup+`)`); len(byHand) != int(gpus) {
		t.Errorf("%d GPUs by hand, want %v", len(byHand), gpus)
	}

	if len(byHand) < 3 {
		t.Errorf("%d GPUs by hand, want 3 at least", len(byHand))
	}

	for _, s := range byHand {
		if math.Abs(s.F) > 1e-9 {
			t.Errorf("%s: the sum of its instances is off by %g", s.Metric, s.F)
		}
	}

	if busy := e.Query(t, `nvidia_gpu_sm_activity_ratio > 0 and on (uuid) `+rollup); len(busy) == 0 {
		t.Error("no GPU that is rolled up is busy")
	}

	for _, family := range []string{"nvidia_gpu_sm_activity_ratio", "nvidia_mig_gpu_instance_sm_activity_ratio"} {
		if above := e.Query(t, family+` > 1 or `+family+` < 0`); len(above) != 0 {
			t.Errorf("%v", above)
		}
	}

	if held := e.Query(t, `sum by (namespace, pod) (nvidia_gpu_container_sm_activity_ratio)`); len(held) < 5 {
		t.Errorf("activity of %d pods, want more: %v", len(held), held)
	}
}
