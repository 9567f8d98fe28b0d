package podmeta

import (
	"cmp"
	"strconv"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The labels of pods that are parts of a job, by what creates them:
//   - Kubeflow's training operator: https://github.com/kubeflow/common, pkg/apis/common/v1/constants.go
//   - JobSet, and with it Kubeflow Trainer v2: https://github.com/kubernetes-sigs/jobset,
//     api/jobset/v1alpha2/jobset_types.go
//   - LeaderWorkerSet: https://github.com/kubernetes-sigs/lws,
//     site/content/en/docs/reference/labels-annotations-and-environment-variables.md
//   - KubeRay: https://github.com/ray-project/kuberay, ray-operator/controllers/ray/utils/constant.go
//   - an indexed Job: https://kubernetes.io/docs/reference/labels-annotations-taints/
const (
	labelTrainingJob  = "training.kubeflow.org/job-name"
	labelReplicaIndex = "training.kubeflow.org/replica-index" // among the replicas of one type
	labelJobSet       = "jobset.sigs.k8s.io/jobset-name"
	labelJobSetJobs   = "jobset.sigs.k8s.io/global-replicas" // Jobs of the JobSet, each of one pod or more
	labelLeaderWorker = "leaderworkerset.sigs.k8s.io/name"
	labelLWSGroup     = "leaderworkerset.sigs.k8s.io/group-index"
	labelLWSWorker    = "leaderworkerset.sigs.k8s.io/worker-index" // 0 is the leader
	labelRayCluster   = "ray.io/cluster"
	// a label since Kubernetes 1.28, an annotation before
	labelJobIndex      = "batch.kubernetes.io/job-completion-index"
	labelJobName       = "batch.kubernetes.io/job-name"
	labelJobNameLegacy = "job-name" // before Kubernetes 1.27
)

// groupAnnotations are the annotations of pods that are parts of a job.
type groupAnnotations struct {
	LWSSize  string `json:"leaderworkerset.sigs.k8s.io/size"` // the pods of a group
	JobIndex string `json:"batch.kubernetes.io/job-completion-index"`
}

// groupOf returns the job that a pod is part of. No label says how many pods a job of Kubeflow, a
// JobSet, a RayCluster or an indexed Job has; an index above 0 shows that there are others.
func (a *groupAnnotations) groupOf(labels map[string]string) gpu.PodGroup {
	// An annotation can have any length: parseCount refuses a number that does not fit 31 bits.
	index, indexed := parseCount(cmp.Or(labels[labelJobIndex], a.JobIndex))

	group := func(kind, label string, size int) gpu.PodGroup {
		return gpu.PodGroup{
			Name:  kind + "/" + labels[label],
			Label: label + "=" + labels[label],
			Size:  size,
		}
	}

	switch {
	case labels[labelTrainingJob] != "":
		replica, _ := parseCount(labels[labelReplicaIndex])
		return group("kubeflow", labelTrainingJob, sizeByIndex(replica))
	case labels[labelJobSet] != "":
		jobs, _ := parseCount(labels[labelJobSetJobs])
		return group("jobset", labelJobSet, max(sizeByIndex(jobs-1), sizeByIndex(index)))
	case labels[labelLeaderWorker] != "":
		size, _ := parseCount(a.LWSSize)
		worker, _ := parseCount(labels[labelLWSWorker])
		g := group("leaderworkerset", labelLeaderWorker, cmp.Or(size, sizeByIndex(worker)))

		if replica := labels[labelLWSGroup]; replica != "" {
			g.Name += "/" + replica
		}

		return g
	case labels[labelRayCluster] != "":
		return group("ray", labelRayCluster, 0)
	case indexed:
		name := cmp.Or(labels[labelJobName], labels[labelJobNameLegacy])
		label := labelJobIndex + "=" + strconv.Itoa(index)

		return gpu.PodGroup{Name: "job/" + name, Label: label, Size: sizeByIndex(index)}
	}

	return gpu.PodGroup{}
}

// ParseGroup returns the job that a pod is part of, by its labels and annotations.
func ParseGroup(labels, annotations map[string]string) gpu.PodGroup {
	a := groupAnnotations{
		annotations["leaderworkerset.sigs.k8s.io/size"],
		annotations[labelJobIndex],
	}

	return a.groupOf(labels)
}

// sizeByIndex returns how many pods there are at least, by the index of one of them; 0 if that is
// the first one, which can be the only one.
func sizeByIndex(index int) int {
	if index > 0 {
		return index + 1
	}

	return 0
}

// parseCount returns a number of pods, and false if the text is none.
func parseCount(text string) (n int, ok bool) {
	parsed, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, false
	}

	return int(parsed), true
}
