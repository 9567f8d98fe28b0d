package podmeta

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

type ownerReference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	Controller bool   `json:"controller"`
}

// workloadOf returns the controller of a pod as "Kind/name"; empty for a bare pod and for a static
// one, whose owner is the node.
//
// A Deployment's pods are owned by a ReplicaSet named after the Deployment and the hash of the pod
// template, which is also a label of the pods. A CronJob's pods are owned by a Job; see cronJobOf.
func workloadOf(owners []ownerReference, labels map[string]string, created time.Time) string {
	i := slices.IndexFunc(owners, func(o ownerReference) bool { return o.Controller })
	if i < 0 || owners[i].Kind == "Node" {
		return ""
	}

	owner := owners[i]
	if hash := labels[deploymentTemplate]; owner.Kind == "ReplicaSet" && hash != "" {
		if deployment, ok := strings.CutSuffix(owner.Name, "-"+hash); ok && deployment != "" {
			return "Deployment/" + deployment
		}
	}

	if owner.Kind == "Job" && strings.HasPrefix(owner.APIVersion, "batch/") {
		if name, ok := cronJobOf(owner.Name, created); ok {
			return "CronJob/" + name
		}
	}

	return owner.Kind + "/" + owner.Name
}

// The labels that controllers give their pods, with a hash of the pod template: that of a Deployment, and
// that of a StatefulSet or DaemonSet. Other kinds, such as a Job, do not change their template.
//
// https://kubernetes.io/docs/reference/labels-annotations-taints/
const (
	deploymentTemplate = "pod-template-hash"
	revisionTemplate   = "controller-revision-hash"
)

// TemplateOf returns the version of the pod template that a pod was made from, by the pod's labels; empty
// if its owner gives none.
func TemplateOf(labels map[string]string) string {
	return cmp.Or(labels[deploymentTemplate], labels[revisionTemplate])
}

const (
	// maxJobAge is how long after the scheduled time of a CronJob's Job a pod may be created:
	// starting deadlines and retries delay it.
	maxJobAge = 7 * 24 * time.Hour
	// maxJobLead is how long before the scheduled time a pod may be created, by a clock that is
	// ahead.
	maxJobLead = 10 * time.Minute
)

// cronJobOf returns the CronJob that has created a Job, by the Job's name: it is the CronJob's
// name, a hyphen and the scheduled time in minutes since 1970. If the number is not a time near the
// creation of the pod, the Job has no CronJob. So we need no permission to read Jobs.
//
// https://github.com/kubernetes/kubernetes, pkg/controller/cronjob: getJobName and
// getTimeHashInMinutes
func cronJobOf(job string, created time.Time) (name string, ok bool) {
	hyphen := strings.LastIndexByte(job, '-')
	if hyphen <= 0 || created.IsZero() {
		return "", false
	}

	minutes, err := strconv.ParseInt(job[hyphen+1:], 10, 32)
	if err != nil || strconv.FormatInt(minutes, 10) != job[hyphen+1:] {
		return "", false
	}

	delay := created.Sub(time.Unix(minutes*60, 0))

	return job[:hyphen], -maxJobLead <= delay && delay <= maxJobAge
}
