package podmeta

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestGroups: the jobs that labels and annotations name, and how many pods they show that a job
// has.
func TestGroups(t *testing.T) {
	type texts = map[string]string
	const kubeflow, jobset, lws = "training.kubeflow.org/", "jobset.sigs.k8s.io/", "leaderworkerset.sigs.k8s.io/"

	const index = "batch.kubernetes.io/job-completion-index"
	for about, c := range map[string]struct {
		labels, annotations texts
		want                gpu.PodGroup
		others              bool
	}{
		"none":       {texts{"app": "resnet", "batch.kubernetes.io/job-name": "once"}, nil, gpu.PodGroup{}, false},
		"first rank": {texts{kubeflow + "job-name": "bert", kubeflow + "replica-index": "0"}, nil, gpu.PodGroup{Name: "kubeflow/bert", Label: kubeflow + "job-name=bert"}, true},
		"third rank": {texts{kubeflow + "job-name": "bert", kubeflow + "replica-index": "2"}, nil, gpu.PodGroup{Name: "kubeflow/bert", Label: kubeflow + "job-name=bert", Size: 3}, true},
		"JobSet of a Job": {texts{jobset + "jobset-name": "train", jobset + "global-replicas": "1", index: "0"}, nil,
			gpu.PodGroup{Name: "jobset/train", Label: jobset + "jobset-name=train"}, true},
		"second pod of its Job": {texts{jobset + "jobset-name": "train", jobset + "global-replicas": "1", index: "1"}, nil,
			gpu.PodGroup{Name: "jobset/train", Label: jobset + "jobset-name=train", Size: 2}, true},
		"JobSet of four Jobs": {texts{jobset + "jobset-name": "train", jobset + "global-replicas": "4"}, nil,
			gpu.PodGroup{Name: "jobset/train", Label: jobset + "jobset-name=train", Size: 4}, true},
		"group of four": {texts{lws + "name": "llm", lws + "group-index": "2", lws + "worker-index": "0"}, texts{lws + "size": "4"},
			gpu.PodGroup{Name: "leaderworkerset/llm/2", Label: lws + "name=llm", Size: 4}, true},
		"group of one": {texts{lws + "name": "llm", lws + "group-index": "2"}, texts{lws + "size": "1"},
			gpu.PodGroup{Name: "leaderworkerset/llm/2", Label: lws + "name=llm", Size: 1}, false},
		"worker of a group": {texts{lws + "name": "llm", lws + "worker-index": "1"}, texts{lws + "size": "many"},
			gpu.PodGroup{Name: "leaderworkerset/llm", Label: lws + "name=llm", Size: 2}, true},
		"RayCluster":    {texts{"ray.io/cluster": "tune"}, nil, gpu.PodGroup{Name: "ray/tune", Label: "ray.io/cluster=tune"}, true},
		"indexed Job":   {texts{index: "0", "batch.kubernetes.io/job-name": "sweep"}, nil, gpu.PodGroup{Name: "job/sweep", Label: index + "=0"}, true},
		"older cluster": {texts{"job-name": "sweep"}, texts{index: "7"}, gpu.PodGroup{Name: "job/sweep", Label: index + "=7", Size: 8}, true},
		"no index":      {texts{"ray.io/cluster": "", index: ""}, nil, gpu.PodGroup{}, false},
		"no number":     {nil, texts{index: "first\x1b[2J"}, gpu.PodGroup{}, false},
		"zeros":         {nil, texts{index: strings.Repeat("0", 1000)}, gpu.PodGroup{Name: "job/", Label: index + "=0"}, true},
		"invalid index": {texts{kubeflow + "job-name": "bert", kubeflow + "replica-index": "99999999999999"}, nil,
			gpu.PodGroup{Name: "kubeflow/bert", Label: kubeflow + "job-name=bert"}, true},
	} {
		got := ParseGroup(c.labels, c.annotations)
		cmptest.Equal(t, about, got, c.want)
		cmptest.Equal(t, about+": may have others", got.MayHaveOthers(), c.others)
	}
}

// TestListedGroups: the job comes with the list of pods.
func TestListedGroups(t *testing.T) {
	a, _ := testAPI(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"kind": "PartialObjectMetadataList", "items": [{"metadata": {"name": "llm-0", "namespace": "ml",
			"labels": {"leaderworkerset.sigs.k8s.io/name": "llm"}, "annotations": {"leaderworkerset.sigs.k8s.io/size": "1"}}},
			{"metadata": {"name": "sweep-1", "namespace": "ml", "annotations": {"batch.kubernetes.io/job-completion-index": "1"}}}]}`)
	})

	got, err := a.listPods(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "LeaderWorkerSet", got.pods[podName{"ml", "llm-0"}].Group,
		gpu.PodGroup{Name: "leaderworkerset/llm", Label: "leaderworkerset.sigs.k8s.io/name=llm", Size: 1})
	cmptest.Equal(t, "indexed Job", got.pods[podName{"ml", "sweep-1"}].Group.Size, 2)
}
