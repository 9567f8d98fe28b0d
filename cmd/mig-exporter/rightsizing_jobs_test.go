package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// Four pods that do the same on a GPU each: two of a JobSet, one that is all of its
// LeaderWorkerSet's group, and one that an annotation calls part of a job.
const nodeWithJobs = `
version: 1
node: {hostname: n, kubernetes: true, privileged: true}
gpus: [{model: H100-80GB, count: 4}]
workloads:
  - {name: work, memory: {steps: [{at: 0s, value: 500MiB}, {at: 1s, value: 4GiB}]}, width: 10, busy: 0.4}
pods:
  - {namespace: ml, name: train-a, owner: Job/train-a, labels: {jobset.sigs.k8s.io/jobset-name: train, jobset.sigs.k8s.io/global-replicas: "2"}, resource: nvidia.com/gpu, workload: work}
  - {namespace: ml, name: train-b, owner: Job/train-b, labels: {jobset.sigs.k8s.io/jobset-name: train, jobset.sigs.k8s.io/global-replicas: "2"}, resource: nvidia.com/gpu, workload: work}
  - {namespace: ml, name: llm-0, owner: StatefulSet/llm, labels: {leaderworkerset.sigs.k8s.io/name: llm}, annotations: {leaderworkerset.sigs.k8s.io/size: "1"}, resource: nvidia.com/gpu, workload: work}
  - {namespace: ml, name: web-0, owner: StatefulSet/web, annotations: {mig-exporter.io/multi-gpu: "true"}, resource: nvidia.com/gpu, workload: work}
`

// TestPodsOfOneJob: what a pod's labels and annotations say of jobs comes from the API server to
// report and metrics.
func TestPodsOfOneJob(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "jobs.yaml")
	if err := os.WriteFile(path, []byte(nodeWithJobs), 0o600); err != nil {
		t.Fatal(err)
	}

	p := launch(t, "--driver=sim", "--sim.clock=step", "--sim.scenario="+path, "--poll.interval=1h", "--advise.min-evidence=2h")
	for range 5 {
		p.advance(time.Hour)
	}

	answers := map[string]string{}
	for _, r := range p.recommendations("").Devices {
		answers[r.Pod.Name] = string(r.Action) + " " + string(r.Reason)
	}

	cmptest.Equal(t, "answers", answers, map[string]string{
		"train-a": "keep multi-gpu", "train-b": "keep multi-gpu", "llm-0": "slice ", "web-0": "keep multi-gpu",
	})
	text := string(p.get("/metrics").body)
	cmptest.HasTexts(t, text, `nvidia_gpu_rightsizing_rejected{gpu="0",reason="multi-gpu"`,
		`nvidia_gpu_rightsizing_rejected{gpu="3",reason="multi-gpu"`)
	cmptest.LacksTexts(t, text, `nvidia_gpu_rightsizing_rejected{gpu="2",reason="multi-gpu"`)
}
