package fleet

import (
	"strings"

	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// jobLabels returns labels that pods have if they are parts of a job. mig-exporter serves the labels
// that --kubernetes.pod-label names.
func jobLabels() []string {
	return []string{
		"training.kubeflow.org/job-name",
		"jobset.sigs.k8s.io/jobset-name",
		"leaderworkerset.sigs.k8s.io/name",
		"ray.io/cluster",
		"batch.kubernetes.io/job-completion-index",
	}
}

// servedName returns the name under which mig-exporter serves a label of a pod.
func servedName(label string) model.LabelName {
	return model.LabelName(
		"label_" + strings.NewReplacer(".", "_", "/", "_", "-", "_").Replace(label),
	)
}

// jobOf returns the label or the owner that shows that a pod is part of a job; empty if none does.
func jobOf(labels model.Metric) string {
	for _, name := range jobLabels() {
		if value := labels[servedName(name)]; value != "" {
			return "label " + name + "=" + string(value)
		}
	}

	if owner := string(labels["workload"]); gpu.OwnsJob(owner) {
		return "owner " + owner
	}

	return ""
}

// mayHideJob reports whether pods of an owner may be parts of a job that only labels show: some pods of a
// LeaderWorkerSet are owned by StatefulSets, and those of a JobSet or an indexed Job by Jobs.
func mayHideJob(owner string) bool {
	kind, _, _ := strings.Cut(owner, "/")
	return owner == "" || kind == "StatefulSet" || kind == "Job"
}

// jobText says why a GPU stays whole whose pod is part of a job. by is jobOf's result.
func jobText(by string) string {
	return "a pod that held it is part of a job, by its " + by + ": others would wait for it, and " +
		"slices cannot exchange data directly"
}
