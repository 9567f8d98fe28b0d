package podmeta

import (
	"testing"
	"time"
)

func controller(kind, name string) []ownerReference {
	version := map[string]string{"Job": "batch/v1", "ReplicaSet": "apps/v1", "Node": "v1"}[kind]
	return []ownerReference{{version, kind, name, true}}
}

func TestWorkload(t *testing.T) {
	hash := map[string]string{"pod-template-hash": "6d4"}

	for _, tc := range []struct {
		owners []ownerReference
		labels map[string]string
		want   string
	}{
		{nil, hash, ""},
		{[]ownerReference{{"v1", "Queue", "q", false}}, nil, ""},
		{controller("ReplicaSet", "web-6d4"), hash, "Deployment/web"},
		{controller("ReplicaSet", "web-6d4"), nil, "ReplicaSet/web-6d4"},
		{controller("ReplicaSet", "web-7e5"), hash, "ReplicaSet/web-7e5"},
		{controller("ReplicaSet", "-6d4"), hash, "ReplicaSet/-6d4"},
		{controller("StatefulSet", "db-6d4"), hash, "StatefulSet/db-6d4"},
		{controller("Node", "node-1"), nil, ""},
		{controller("Job", "train"), nil, "Job/train"},
		{append([]ownerReference{{"v1", "Queue", "q", false}}, controller("Job", "train")...), nil, "Job/train"},
		{[]ownerReference{{"batch.volcano.sh/v1alpha1", "Job", "train-29454480", true}}, nil, "Job/train-29454480"},
	} {
		if got := workloadOf(tc.owners, tc.labels, time.Unix(29454480*60, 0)); got != tc.want {
			t.Errorf("workload(%v, %v) = %q, want %q", tc.owners, tc.labels, got, tc.want)
		}
	}
}

// TestTemplate: Deployments label their pods with one name, StatefulSets and DaemonSets with another.
func TestTemplate(t *testing.T) {
	for want, labels := range map[string]map[string]string{
		"6d4":     {"pod-template-hash": "6d4", "app": "web"},
		"db-85b7": {"controller-revision-hash": "db-85b7"},
		"":        {"batch.kubernetes.io/job-name": "train"},
	} {
		if got := TemplateOf(labels); got != want {
			t.Errorf("template of %v = %q, want %q", labels, got, want)
		}
	}
}

func TestWorkloadOfACronJob(t *testing.T) {
	scheduled := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC) // 29454480 minutes since 1970

	for _, tc := range []struct {
		job     string
		created time.Time
		want    string
	}{
		{"nightly-29454480", scheduled, "CronJob/nightly"},
		{"nightly-29454480", scheduled.Add(time.Second), "CronJob/nightly"},
		{"nightly-eval-29454480", scheduled.Add(time.Hour), "CronJob/nightly-eval"},
		{"nightly-29454480", scheduled.Add(maxJobAge), "CronJob/nightly"},
		{"nightly-29454480", scheduled.Add(maxJobAge + time.Second), "Job/nightly-29454480"},
		{"nightly-29454480", scheduled.Add(-maxJobLead), "CronJob/nightly"},
		{"nightly-29454480", scheduled.Add(-maxJobLead - time.Second), "Job/nightly-29454480"},
		{"nightly-29454480", time.Time{}, "Job/nightly-29454480"},
		{"nightly-029454480", scheduled, "Job/nightly-029454480"},
		{"nightly-+29454480", scheduled, "Job/nightly-+29454480"},
		{"nightly--29454480", scheduled, "CronJob/nightly-"},
		{"-29454480", scheduled, "Job/-29454480"},
		{"29454480", scheduled, "Job/29454480"},
		{"nightly-", scheduled, "Job/nightly-"},
		{"nightly-1767268800", scheduled, "Job/nightly-1767268800"}, // in seconds
		{"nightly-99999999999999999999", scheduled, "Job/nightly-99999999999999999999"},
		{"resnet-50", scheduled, "Job/resnet-50"},
		{"run-20260101", scheduled, "Job/run-20260101"},
	} {
		if got := workloadOf(controller("Job", tc.job), nil, tc.created); got != tc.want {
			t.Errorf("Job %s, pod of %s: got %q, want %q", tc.job, tc.created, got, tc.want)
		}
	}
}
