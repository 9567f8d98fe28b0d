package fleet

import (
	"slices"
	"strings"

	"github.com/prometheus/common/model"
)

// jobLabels are the labels of pods that are parts of a job. mig-exporter serves those that
// --kubernetes.pod-label names.
func jobLabels() []string {
	return []string{
		"training.kubeflow.org/job-name",
		"jobset.sigs.k8s.io/jobset-name",
		"leaderworkerset.sigs.k8s.io/name",
		"ray.io/cluster",
		"batch.kubernetes.io/job-completion-index",
	}
}

// servedName is how mig-exporter serves a label of a pod.
func servedName(label string) model.LabelName {
	return model.LabelName(
		"label_" + strings.NewReplacer(".", "_", "/", "_", "-", "_").Replace(label),
	)
}

// jobOwners are the kinds of owners whose pods have one of these labels: those of Kubeflow's
// training operator, and KubeRay's.
func jobOwners() []string {
	return []string{
		"PyTorchJob",
		"TFJob",
		"MPIJob",
		"XGBoostJob",
		"PaddleJob",
		"JAXJob",
		"RayCluster",
	}
}

// jobOf returns what shows that a pod is one of several of a job, or may be; empty if nothing does.
func jobOf(labels model.Metric) string {
	for _, name := range jobLabels() {
		if value := labels[servedName(name)]; value != "" {
			return "label " + name + "=" + string(value)
		}
	}

	owner := string(labels["workload"])
	if kind, _, _ := strings.Cut(owner, "/"); slices.Contains(jobOwners(), kind) {
		return "owner " + owner
	}

	return ""
}

// mayHideJob reports whether pods of an owner can be parts of a job that only labels show: a
// LeaderWorkerSet's are owned by StatefulSets, a JobSet's and those of an indexed Job by Jobs.
func mayHideJob(owner string) bool {
	kind, _, _ := strings.Cut(owner, "/")
	return owner == "" || kind == "StatefulSet" || kind == "Job"
}

// jobText is the sentence on a GPU whose pod is part of a job.
func jobText(by string) string {
	return "a pod that held it is part of a job, by its " + by + ": others would wait for it, and " +
		"slices cannot exchange data directly"
}
