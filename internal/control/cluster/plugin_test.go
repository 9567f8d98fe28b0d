package cluster

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

func TestParsePluginSelector(t *testing.T) {
	for text, want := range map[string]string{
		"gpu-operator/app=nvidia-device-plugin-daemonset":             "",
		"kube-system/k8s-app=nvidia-gpu-device-plugin":                "",
		"nvidia/app.kubernetes.io/name=nvidia-device-plugin,tier=gpu": "",
		"nvidia/empty=":                 "",
		"app=nvidia-device-plugin":      `"app=nvidia-device-plugin" is no namespace`,
		"app.kubernetes.io/name=nvidia": `"app.kubernetes.io" is no namespace`,
		"nvidia":                        `"" is no KEY=VALUE`,
		"nvidia/":                       `"" is no KEY=VALUE`,
		"nvidia/app":                    `"app" is no KEY=VALUE`,
		"nvidia/app!=x":                 `"app!=x" is no KEY=VALUE`,
		"nvidia/app in (a,b)":           `"app in (a" is no KEY=VALUE`,
		"nvidia/app=a,":                 `"" is no KEY=VALUE`,
		"Nvidia/app=a":                  `"Nvidia" is no namespace`,
		"nvidia/app=a b":                `"app=a b" is no KEY=VALUE`,
		"nvidia/" + strings.Repeat("x", 64) + "=": "is no KEY=VALUE",
	} {
		got, err := ParsePluginSelector(text)
		switch {
		case want == "" && (err != nil || got.Namespace+"/"+strings.Join(got.Labels, ",") != text):
			t.Errorf("%s: got %+v, %v", text, got, err)
		case want != "" && (!errors.Is(err, gpu.ErrInvalidArgument) || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// fakePod is a pod of the fake API server.
type fakePod struct {
	name, uid, node, owner, labels string
	replacedBy                     string // the UID of a pod of the same name that is there when the first is deleted
}

// servePods lists and deletes the pods of the namespace nvidia, as the API server does.
func (s *apiServer) servePods(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, podsOfPlugin)
	if name == "" {
		s.selectors = append(s.selectors, r.URL.Query().Get("labelSelector"), r.URL.Query().Get("fieldSelector"))
		items := []any{}

		for _, p := range s.pods {
			if p.labels != r.URL.Query().Get("labelSelector") {
				continue
			}

			metadata := map[string]any{"name": p.name, "namespace": "nvidia", "uid": p.uid}
			if p.owner != "" {
				metadata["ownerReferences"] = []any{map[string]any{"apiVersion": "apps/v1", "kind": p.owner, "controller": true}}
			}

			items = append(items, map[string]any{"metadata": metadata, "spec": map[string]any{"nodeName": p.node}})
		}

		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "PodList", "apiVersion": "v1", "items": items})

		return
	}

	at := slices.IndexFunc(s.pods, func(p fakePod) bool { return p.name == strings.TrimPrefix(name, "/") })
	if at < 0 {
		refuse(w, http.StatusNotFound, "NotFound", "no such pod")
		return
	}

	if s.pods[at].replacedBy != "" {
		s.pods[at].uid, s.pods[at].replacedBy = s.pods[at].replacedBy, ""
	}

	var options struct {
		Kind          string
		Preconditions struct{ UID string }
	}
	if json.NewDecoder(r.Body).Decode(&options) != nil || options.Kind != "DeleteOptions" {
		refuse(w, http.StatusBadRequest, "BadRequest", "no DeleteOptions")
		return
	}

	if options.Preconditions.UID != s.pods[at].uid {
		refuse(w, http.StatusConflict, "Conflict", "the UID in the precondition does not match the UID in record")
		return
	}

	s.pods = slices.Delete(s.pods, at, at+1)
	w.WriteHeader(http.StatusAccepted)
}

const podsOfPlugin = "/api/v1/namespaces/nvidia/pods"

// testPlugin returns the plugin with the label app=plugin in the namespace nvidia.
func testPlugin(t *testing.T, s *apiServer) *DevicePlugin {
	t.Helper()
	c, _ := testCluster(t, s)

	return NewDevicePlugin(c, PluginSelector{Namespace: "nvidia", Labels: []string{"app=plugin"}})
}

// TestRestartDevicePlugin: exactly the plugin's pods of this node are ended, each by its UID.
func TestRestartDevicePlugin(t *testing.T) {
	here := fakePod{name: "plugin-a", uid: "u1", node: "node-1", owner: "DaemonSet", labels: "app=plugin"}
	for name, tc := range map[string]struct {
		pods    []fakePod
		ended   []string
		left    []string // names
		refusal string
	}{
		"one": {[]fakePod{here}, []string{"u1"}, nil, ""},
		"that of another node, and another's": {[]fakePod{here, {"plugin-b", "u2", "node-2", "DaemonSet", "app=plugin", ""},
			{"other", "u3", "node-1", "DaemonSet", "app=other", ""}}, []string{"u1"}, []string{"plugin-b", "other"}, ""},
		"created again under the same name": {[]fakePod{{"plugin-a", "u1", "node-1", "DaemonSet", "app=plugin", "u9"}},
			[]string{"u9"}, nil, ""},
		"no pod": {nil, nil, nil, "no pod of nvidia with app=plugin runs on this node"},
		"a bare pod": {[]fakePod{{"plugin-a", "u1", "node-1", "", "app=plugin", ""}}, nil, []string{"plugin-a"},
			"no DaemonSet owns the pod nvidia/plugin-a"},
		"a ReplicaSet's, beside a DaemonSet's": {[]fakePod{here, {"rs", "u2", "node-1", "ReplicaSet", "app=plugin", ""}}, nil,
			[]string{"plugin-a", "rs"}, "no DaemonSet owns the pod nvidia/rs"},
	} {
		s := newAPIServer()
		s.pods = tc.pods
		d := testPlugin(t, s)
		ended, err := d.Restart(t.Context())
		cmptest.Equal(t, name+": ended", ended, tc.ended)

		var refused interface{ Refusal() string }
		if (tc.refusal == "") != (err == nil) || err != nil && (!errors.As(err, &refused) ||
			!strings.Contains(refused.Refusal(), tc.refusal)) {
			t.Errorf("%s: %v, want %q", name, err, tc.refusal)
		}

		var left []string
		for _, p := range s.pods {
			left = append(left, p.name)
		}

		cmptest.Equal(t, name+": pods that are left", left, tc.left)
		cmptest.Equal(t, name+": selectors", s.selectors[:2], []string{"app=plugin", "spec.nodeName=node-1"})
	}
}

// TestDevicePluginGone: a pod that is still ending is not gone.
func TestDevicePluginGone(t *testing.T) {
	s := newAPIServer()
	s.pods = []fakePod{{name: "plugin-a", uid: "u1", node: "node-1", owner: "DaemonSet", labels: "app=plugin"}}

	d := testPlugin(t, s)
	if gone, err := d.Gone(t.Context(), []string{"u1"}); gone || err != nil {
		t.Errorf("a pod that is there: %v, %v", gone, err)
	}

	if gone, err := d.Gone(t.Context(), []string{"u0"}); !gone || err != nil {
		t.Errorf("a pod that was replaced: %v, %v", gone, err)
	}

	s.set(func() { s.down = true })

	if gone, err := d.Gone(t.Context(), []string{"u0"}); gone || !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("no answer: %v, %v", gone, err)
	}
}

// TestDevicePluginRights: a right that is missing is named.
func TestDevicePluginRights(t *testing.T) {
	for _, right := range []string{"list pods", "delete pods"} {
		s := newAPIServer()
		s.pods = []fakePod{{name: "plugin-a", uid: "u1", node: "node-1", owner: "DaemonSet", labels: "app=plugin"}}
		s.forbidden[right] = true
		_, err := testPlugin(t, s).Restart(t.Context())

		var refused *kubeapi.RefusedError
		if !errors.As(err, &refused) || refused.Right != right {
			t.Errorf("%s: %v", right, err)
		}
	}
}
