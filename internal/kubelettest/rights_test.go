package kubelettest

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ownToken returns the token of the exporter's service account that the kubelet has projected into
// its pod.
func (c *cluster) ownToken(t *testing.T) string {
	t.Helper()
	pattern := filepath.Join("/var/lib/kubelet/pods", string(c.exporter.UID), "volumes/kubernetes.io~projected/*/token")

	files, err := filepath.Glob(pattern)
	if err != nil || len(files) != 1 {
		t.Fatalf("%s: %v %v", pattern, files, err)
	}

	token, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}

	return string(token)
}

const (
	coreAPI  = "/api/v1"
	draAPI   = "/apis/resource.k8s.io/v1"
	nodePath = coreAPI + "/nodes/" + nodeName
)

// TestRightsOfServiceAccount: with the exporter's own token, each right that the chart gives it is
// granted and none besides.
func TestRightsOfServiceAccount(t *testing.T) {
	c := startShared(t)
	token := c.ownToken(t)
	const review = `{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "x"}}`
	const access = `{"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {"user": "x",
		"resourceAttributes": {"verb": "get", "group": "mig-exporter.io", "resource": "partitions"}}}`
	const event = `{"metadata": {"name": "n", "namespace": "default"}, "reason": "r", "type": "Normal",
		"involvedObject": {"kind": "Node", "name": "` + nodeName + `", "apiVersion": "v1"}}`
	pod := newPod("ml", "made-by-the-exporter", newContainer("main", "", 0))

	text, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}

	const ok, created, none, forbidden = 200, 201, 404, 403
	for _, call := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", coreAPI + "/pods", "", ok},
		{"GET", draAPI + "/namespaces/ml/resourceclaims/absent", "", none},
		{"POST", "/apis/authentication.k8s.io/v1/tokenreviews", review, created},
		{"POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", access, created},
		{"GET", nodePath, "", ok},
		{"PATCH", nodePath + "?dryRun=All", `{}`, ok},
		{"GET", draAPI + "/resourceslices", "", ok},
		{"GET", "/apis/inference.redhat.com/v1alpha1/instaslices", "", none}, // allowed, and not served here
		{"PATCH", nodePath + "/status?dryRun=All", `{}`, ok},
		{"POST", coreAPI + "/namespaces/default/events?dryRun=All", event, created},
		{"GET", coreAPI + "/namespaces/" + pluginNamespace + "/configmaps/absent", "", none},
		{"DELETE", coreAPI + "/namespaces/" + pluginNamespace + "/pods/absent", "", none},

		{"GET", coreAPI + "/namespaces/" + chartNamespace + "/pods/" + c.exporter.Name, "", forbidden},
		{"POST", coreAPI + "/namespaces/ml/pods", string(text), forbidden},
		{"DELETE", coreAPI + "/namespaces/" + chartNamespace + "/pods/" + c.exporter.Name, "", forbidden},
		{"PATCH", coreAPI + "/namespaces/" + chartNamespace + "/pods/" + c.exporter.Name, `{}`, forbidden},
		{"POST", coreAPI + "/namespaces/" + chartNamespace + "/pods/" + c.exporter.Name + "/eviction", `{}`, forbidden},
		{"POST", coreAPI + "/namespaces/" + chartNamespace + "/pods/" + c.exporter.Name + "/exec?command=sh", "", forbidden},
		{"GET", coreAPI + "/nodes", "", forbidden},
		{"DELETE", nodePath, "", forbidden},
		{"PATCH", nodePath + "/status?dryRun=All", `{"status": {"capacity": {"nvidia.com/gpu": "8"}}}`, forbidden}, // the policy
		{"PUT", nodePath + "/status", `{}`, forbidden},
		{"GET", coreAPI + "/namespaces/" + pluginNamespace + "/configmaps", "", forbidden},
		{"POST", coreAPI + "/namespaces/" + chartNamespace + "/events", event, forbidden},
		{"PATCH", coreAPI + "/namespaces/default/events/absent", `{}`, forbidden},
		{"GET", nodePath + "/proxy/pods", "", forbidden},
		{"GET", coreAPI + "/secrets", "", forbidden},
		{"GET", coreAPI + "/namespaces/" + chartNamespace + "/configmaps", "", forbidden},
		{"POST", coreAPI + "/namespaces/" + chartNamespace + "/serviceaccounts/mig-exporter/token", `{}`, forbidden},
		{"GET", draAPI + "/resourceclaims", "", forbidden},
		{"PATCH", draAPI + "/namespaces/ml/resourceclaims/absent/status", `{}`, forbidden},
		{"POST", draAPI + "/resourceslices", `{}`, forbidden},
		{"GET", "/apis/apps/v1/replicasets", "", forbidden},
		{"GET", "/apis/batch/v1/jobs", "", forbidden},
		{"GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles", "", forbidden},
		{"GET", "/logs/", "", forbidden},
	} {
		contentType := "application/json"
		if call.method == "PATCH" {
			contentType = "application/merge-patch+json"
		}

		status, body, err := c.send(call.method, apiServer+call.path, token, contentType, call.body)
		if err != nil || status != call.status {
			t.Errorf("%s %s: %d %v, want %d: %.200s", call.method, call.path, status, err, call.status, body)
		}
	}
}

// right is a verb on a resource.
type right struct{ verb, group, resource string }

// rights returns what the chart gives to the exporter's service account, in the cluster and in some
// namespaces.
func (m *manifest) rights() map[right]bool {
	rights := map[right]bool{}

	for _, rule := range m.rules() {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					rights[right{verb, group, resource}] = true
				}
			}
		}
	}

	return rights
}

// auditEvent is what the API server's audit log has of a request.
type auditEvent struct {
	Verb      string
	UserAgent string
	User      struct{ Username string }
	ObjectRef struct{ APIGroup, Resource, Subresource string }
	Status    struct{ Code int } `json:"responseStatus"`
}

// checkAudit compares what each exporter has asked the API server for in all tests with the rights
// that the chart gives its service account: no request was refused, and every right was used, but
// for those of what this cluster does not have.
func (n *node) checkAudit() error {
	used := map[string]map[right]int{} // by user

	f, err := os.Open(n.auditLog())
	if err != nil {
		return err
	}
	defer f.Close()
	var errs []error
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)

	for lines.Scan() {
		var event auditEvent
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return err
		}

		if !strings.HasPrefix(event.UserAgent, "mig-exporter/") || event.ObjectRef.Resource == "" {
			continue // a test with the exporter's token, or the discovery that every account may ask for
		}

		asked := right{event.Verb, event.ObjectRef.APIGroup, event.ObjectRef.Resource}
		if part := event.ObjectRef.Subresource; part != "" {
			asked.resource += "/" + part
		}

		if used[event.User.Username] == nil {
			used[event.User.Username] = map[right]int{}
		}

		used[event.User.Username][asked]++
		if event.Status.Code == 403 {
			errs = append(errs, fmt.Errorf("%s asked for %+v, answered with %d", event.User.Username, asked,
				event.Status.Code))
		}
	}

	for _, m := range n.installed {
		errs = append(errs, m.checkUse(used[m.user()]))
	}

	return errors.Join(append(errs, lines.Err())...)
}

// checkUse compares the requests of an exporter with its rights.
func (m *manifest) checkUse(used map[right]int) error {
	var errs []error
	var report []string

	given := m.rights()
	for asked := range used {
		if !given[asked] {
			errs = append(errs, fmt.Errorf("%s asked for %+v, which the chart does not give it", m.user(), asked))
		}
	}

	for asked := range given {
		report = append(report, fmt.Sprintf("%s %s %d", asked.verb, asked.resource, used[asked]))
		if used[asked] == 0 && asked.group != "inference.redhat.com" {
			errs = append(errs, fmt.Errorf("%s did not use the right %+v", m.user(), asked))
		}
	}

	slices.Sort(report)
	record("requests of %s to the API server by right: %s", m.user(), cmp.Or(strings.Join(report, ", "), "none"))

	return errors.Join(errs...)
}
