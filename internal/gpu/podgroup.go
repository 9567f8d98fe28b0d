package gpu

import (
	"slices"
	"strings"
)

// PodGroup is the job that a pod is part of, by the pod's labels and annotations. It is zero if
// they name no job.
type PodGroup struct {
	Name  string // "jobset/train"
	Label string // the label that names the job, "jobset.sigs.k8s.io/jobset-name=train"
	// Size is how many pods the job has at least; 1 if this pod is the only one, 0 if we don't
	// know.
	Size int
}

// MayHaveOthers reports whether the job has other pods, or we do not know that it has none.
func (g *PodGroup) MayHaveOthers() bool { return g.Name != "" && g.Size != 1 }

// OwnsJob reports whether the pods of an owner, such as "MPIJob/train", are always parts of a job,
// whatever labels they have. The owner is a job of Kubeflow's training operator, a cluster or job of
// KubeRay, a JobSet, or a LeaderWorkerSet.
func OwnsJob(owner string) bool {
	kind, _, _ := strings.Cut(owner, "/")

	return slices.Contains(jobOwners(), kind)
}

// jobOwners returns the kinds of owners whose pods are always parts of a job.
func jobOwners() []string {
	return []string{
		"PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob",
		"RayCluster", "RayJob", "JobSet", "LeaderWorkerSet",
	}
}
