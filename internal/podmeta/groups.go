package podmeta

import (
	"cmp"
	"strconv"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The labels of pods that are parts of a job, by the controller that sets them:
//   - Kubeflow's training operator: https://github.com/kubeflow/common, pkg/apis/common/v1/constants.go
//   - JobSet, and with it Kubeflow Trainer v2: https://github.com/kubernetes-sigs/jobset,
//     api/jobset/v1alpha2/jobset_types.go
//   - LeaderWorkerSet: https://github.com/kubernetes-sigs/lws,
//     site/content/en/docs/reference/labels-annotations-and-environment-variables.md
//   - KubeRay: https://github.com/ray-project/kuberay, ray-operator/controllers/ray/utils/constant.go
//   - an indexed Job: https://kubernetes.io/docs/reference/labels-annotations-taints/
const (
	labelTrainingJob   = "training.kubeflow.org/job-name"
	labelReplicaIndex  = "training.kubeflow.org/replica-index" // among the replicas of one type
	labelJobSet        = "jobset.sigs.k8s.io/jobset-name"
	labelJobSetJobs    = "jobset.sigs.k8s.io/global-replicas" // Jobs of the JobSet, each of one pod or more
	labelLeaderWorker  = "leaderworkerset.sigs.k8s.io/name"
	labelLWSGroup      = "leaderworkerset.sigs.k8s.io/group-index"
	labelLWSWorker     = "leaderworkerset.sigs.k8s.io/worker-index" // 0 is the leader
	labelRayCluster    = "ray.io/cluster"
	labelJobIndex      = "batch.kubernetes.io/job-completion-index" // an annotation before Kubernetes 1.28
	labelJobName       = "batch.kubernetes.io/job-name"
	labelJobNameLegacy = "job-name" // before Kubernetes 1.27
)

// groupAnnotations are the annotations of pods that are parts of a job.
type groupAnnotations struct {
	LWSSize  string `json:"leaderworkerset.sigs.k8s.io/size"` // how many pods a group has
	JobIndex string `json:"batch.kubernetes.io/job-completion-index"`
}

// groupOf returns the job that a pod is part of. No label says how many pods a job of Kubeflow, a
// JobSet, a RayCluster or an indexed Job has; an index above 0 shows that there are others.
func (a *groupAnnotations) groupOf(labels map[string]string) gpu.PodGroup {
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

// sizeByIndex returns how many pods a job has at least if one of them has this index: 4 for index
// 3. For index 0, which may be the only one, it returns 0: unknown.
func sizeByIndex(index int) int {
	if index > 0 {
		return index + 1
	}

	return 0
}

// parseCount parses a number of pods, or an index. It refuses more than 31 bits: an annotation can
// have any length.
func parseCount(text string) (n int, ok bool) {
	parsed, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, false
	}

	return int(parsed), true
}
