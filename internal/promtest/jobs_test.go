package promtest

import (
	"strings"
	"testing"
)

// TestJobsJoin: the documented join of batch jobs finds those that share their GPU with no other.
func TestJobsJoin(t *testing.T) {
	t.Parallel()

	const join = `nvidia_gpu_sm_activity_ratio
  * on (uuid) group_left (hpc_job) (nvidia_gpu_hpc_job_info unless on (uuid) (count by (uuid) (nvidia_gpu_hpc_job_info) > 1))`
	if !strings.Contains(readFile(t, "../../docs/metrics.md"), join) {
		t.Errorf("docs/metrics.md has no %s", join)
	}

	e := NewPrometheus(t)
	e.AddScrape(t, scraped(), Text, []byte(`# TYPE nvidia_gpu_sm_activity_ratio gauge
nvidia_gpu_sm_activity_ratio{gpu="0",uuid="GPU-0"} 0.5
nvidia_gpu_sm_activity_ratio{gpu="1",uuid="GPU-1"} 0.25
nvidia_gpu_sm_activity_ratio{gpu="2",uuid="GPU-2"} 0.75
# TYPE nvidia_gpu_hpc_job_info gauge
nvidia_gpu_hpc_job_info{gpu="0",hpc_job="41",uuid="GPU-0"} 1
nvidia_gpu_hpc_job_info{gpu="1",hpc_job="42",uuid="GPU-1"} 1
nvidia_gpu_hpc_job_info{gpu="1",hpc_job="43",uuid="GPU-1"} 1
`))

	got := e.Query(t, join)
	if len(got) != 1 {
		t.Fatalf("got %v, want one sample", got)
	}

	if job := got[0].Metric.Get("hpc_job"); job != "41" || got[0].F != 0.5 {
		t.Errorf("got job %s at %v, want 41 at 0.5", job, got[0].F)
	}
}
