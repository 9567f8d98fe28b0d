package podmeta

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// podListOf returns what the API server says of one pod that runs.
func podListOf(spec, status string) string {
	return podListIn("Running", "", spec, status)
}

// podListIn returns what the API server says of one pod in a phase, with more of its metadata.
func podListIn(phase, metadata, spec, status string) string {
	return fmt.Sprintf(`{"kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "chat-0",
		"uid": "2f0b", %s"annotations": {"kubernetes.io/config.mirror": "b7d2"}}, "spec": {%s}, "status": {"phase": %q, %s}}]}`,
		metadata, spec, phase, status)
}

// TestPodAddress: the address of a pod of this node and those of the node, by the right to list
// pods alone.
func TestPodAddress(t *testing.T) {
	const status = `"podIP": "10.1.2.3", "hostIP": "192.0.2.7", "hostIPs": [{"ip": "192.0.2.7"}, {"ip": "2001:db8::7"}]`
	for about, c := range map[string]struct {
		body, uid string
		want      string
		err       error
	}{
		"pod":          {podListOf("", status), "2f0b", "10.1.2.3", nil},
		"static":       {podListOf("", status), "b7d2", "10.1.2.3", nil},
		"another UID":  {podListOf("", status), "9999", "", gpu.ErrNotFound},
		"no UID":       {podListOf("", status), "", "", gpu.ErrNotFound},
		"no such pod":  {`{"kind": "PodList", "metadata": {}, "items": []}`, "2f0b", "", gpu.ErrNotFound},
		"host network": {podListOf(`"hostNetwork": true`, status), "2f0b", "", gpu.ErrInvalidArgument},
		"no address":   {podListOf("", `"podIP": ""`), "2f0b", "", gpu.ErrInvalidArgument},
		"a name":       {podListOf("", `"podIP": "metadata.internal"`), "2f0b", "", gpu.ErrInvalidArgument},
		"ended":        {podListIn("Succeeded", "", "", status), "2f0b", "", gpu.ErrNotFound},
		"failed":       {podListIn("Failed", "", "", status), "2f0b", "", gpu.ErrNotFound},
		"deleted": {podListIn("Running", `"deletionTimestamp": "2026-01-02T03:04:05Z", `, "", status), "2f0b", "",
			gpu.ErrNotFound},
		"no list": {`{"kind": "Pod"}`, "2f0b", "", gpu.ErrUnavailable},
	} {
		t.Run(about, func(t *testing.T) {
			var path, selector string
			a, _ := testAPI(t, func(w http.ResponseWriter, r *http.Request) {
				path, selector = r.URL.Path, r.URL.Query().Get("fieldSelector")
				_, _ = io.WriteString(w, c.body)
			})

			pod, node, err := (&Poller{api: a}).PodAddress(t.Context(), "chat", "chat-0", c.uid)
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}

			cmptest.Equal(t, "path", path, "/api/v1/namespaces/chat/pods")
			cmptest.Equal(t, "selector", selector, a.nodeSelector+",metadata.name=chat-0")

			if c.err != nil {
				return
			}

			cmptest.Equal(t, "pod", pod.String(), c.want)
			cmptest.Equal(t, "node", fmt.Sprint(node),
				fmt.Sprint([]netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")}))
		})
	}
}
