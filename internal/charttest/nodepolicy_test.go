package charttest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

const (
	mergePatch     = "application/merge-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
)

// TestNodePolicy: on a real API server the token of a pod changes its own node as far as the
// exporter does, and no other node, and nothing else of its own.
func TestNodePolicy(t *testing.T) {
	s := startAPIServer(t)
	objects := render(t, merge(allRights(t), set("control.cordon", true)))

	mustApply := func(o object) {
		t.Helper()

		if err := s.apply(t, o, false); err != nil {
			t.Fatalf("%s: %v", describe(o), err)
		}
	}
	s.createNamespaces(t)

	for _, o := range objects {
		switch o["kind"] {
		case "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ValidatingAdmissionPolicy",
			"ValidatingAdmissionPolicyBinding":
			mustApply(o)
		}
	}

	for _, name := range []string{"own", "other"} {
		s.mustSend(t, "/api/v1/nodes", object{
			"apiVersion": "v1", "kind": "Node", "metadata": object{"name": name, "labels": object{"rack": "1"}}, "spec": object{},
		})
	}

	account := at(find(t, objects, "ServiceAccount"), "metadata", "name").(string)
	exporter := *s
	exporter.token = s.tokenOnNode(t, account, "own")
	patch := func(path, kind, body string) error {
		return exporter.send(t.Context(), http.MethodPatch, "/api/v1/nodes/"+path, kind, []byte(body))
	}

	const (
		cordon = `{"spec":{"unschedulable":true},"metadata":{"annotations":{"mig-exporter.io/cordoned-by":"partition-control"}}}`
		health = `{"status":{"conditions":[{"type":"GPUHealthy","status":"True","reason":"r","message":"m"},` +
			`{"type":"MIGLayoutApplied","status":"Unknown","reason":"r","message":"m"}]}}`
		followed = `{"metadata":{"labels":{"nvidia.com/mig.config.state":"pending",` +
			`"nvidia.com/gpu.deploy.dcgm":"paused-for-mig-change"},"annotations":{"mig-exporter.io/paused-clients":"{}"}}}`
		wrongNode  = "may only change the node that its token was issued for"
		wrongField = "may only change"
	)

	// A policy is in force a moment after it was accepted.
	s.await(t, func() error {
		if err := patch("other", mergePatch, cordon); err == nil || !strings.Contains(err.Error(), wrongNode) {
			return fmt.Errorf("the node of another: %w", err)
		}

		return nil
	})

	for what, tc := range map[string]struct{ path, kind, body, want string }{
		"cordon":                   {"own", mergePatch, cordon, ""},
		"conditions":               {"own/status", strategicPatch, health, ""},
		"following a label":        {"own", mergePatch, followed, ""},
		"following for another":    {"other", mergePatch, followed, wrongNode},
		"the wanted layout":        {"own", mergePatch, `{"metadata":{"labels":{"nvidia.com/mig.config":"all-1g.5gb"}}}`, wrongField},
		"nothing":                  {"own/status", strategicPatch, `{"status":{}}`, ""},
		"conditions of another":    {"other/status", strategicPatch, health, wrongNode},
		"a taint":                  {"own", mergePatch, `{"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]}}`, wrongField},
		"a label":                  {"own", mergePatch, `{"metadata":{"labels":{"rack":"2"}}}`, "of the labels of its node"},
		"another annotation":       {"own", mergePatch, `{"metadata":{"annotations":{"x":"y"}}}`, wrongField},
		"a label through status":   {"own/status", mergePatch, `{"metadata":{"labels":{"rack":"2"}}}`, "of the labels of its node"},
		"another condition":        {"own/status", strategicPatch, `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, wrongField},
		"the capacity of its node": {"own/status", mergePatch, `{"status":{"capacity":{"nvidia.com/gpu":"8"}}}`, wrongField},
	} {
		err := patch(tc.path, tc.kind, tc.body)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", what, err, tc.want)
		}
	}

	// Others are not held by the policy.
	if err := s.send(t.Context(), http.MethodPatch, "/api/v1/nodes/other", mergePatch, []byte(`{"metadata":{"labels":{"rack":"2"}}}`)); err != nil {
		t.Error(err)
	}

	event := object{"apiVersion": "v1", "kind": "Event", "metadata": object{"name": "own.1", "namespace": "default"},
		"involvedObject": object{"kind": "Node", "name": "own", "uid": "own", "apiVersion": "v1"}, "type": "Normal",
		"reason": "MIGOperationSucceeded", "message": "m", "reportingComponent": "mig-exporter"}
	exporter.mustSend(t, "/api/v1/namespaces/default/events", event)
}

// mustSend creates an object.
func (s *apiServer) mustSend(t *testing.T, path string, o object) {
	t.Helper()

	text, err := json.Marshal(o)
	if err == nil {
		err = s.send(t.Context(), http.MethodPost, path, "application/json", text)
	}

	if err != nil {
		t.Fatal(err)
	}
}

// tokenOnNode returns a token of a service account that is bound to a pod on a node.
func (s *apiServer) tokenOnNode(t *testing.T, account, node string) string {
	t.Helper()

	pods := "/api/v1/namespaces/" + namespace + "/pods"
	s.mustSend(t, pods, object{
		"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "exporter", "namespace": namespace},
		"spec": object{"nodeName": node, "serviceAccountName": account, "automountServiceAccountToken": false,
			"containers": []any{object{"name": "c", "image": "registry.example.com/c:1"}}},
	})

	var pod struct {
		Metadata struct{ UID string }
	}

	s.read(t, http.MethodGet, pods+"/exporter", nil, &pod)

	var token struct {
		Status struct{ Token string }
	}

	s.read(t, http.MethodPost, "/api/v1/namespaces/"+namespace+"/serviceaccounts/"+account+"/token", object{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"spec": object{"boundObjectRef": object{"apiVersion": "v1", "kind": "Pod", "name": "exporter", "uid": pod.Metadata.UID}},
	}, &token)

	return token.Status.Token
}
