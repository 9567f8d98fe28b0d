package podmeta

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

// listed is what an API server says of a Deployment's pod, a Job's, a static one and a bare one.
const listed = `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "1201"}, "items": [
{"metadata": {"name": "resnet-6d4cf56db6-x7k2p", "namespace": "vision", "uid": "2f0b", "managedFields": [{"manager": "kubelet"}],
  "labels": {"app": "resnet", "team": "a \"b\"\n", "pod-template-hash": "6d4cf56db6"},
  "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "resnet-6d4cf56db6", "uid": "1", "controller": true}]}},
{"metadata": {"name": "train-abcde", "namespace": "ml",
  "annotations": {"hami.io/vgpu-mig-allocations": "[{\"containerIndex\":0,\"deviceIndex\":0,\"gpuUUID\":\"GPU-fb8bbc70-d551-45f9-43d4-9734f9cddb2c\",\"profile\":\"1g.5gb\",\"placement\":{\"start\":6,\"size\":1}}]"},
  "ownerReferences": [{"kind": "Queue", "name": "q"}, {"kind": "Job", "name": "train", "controller": true}]}},
{"metadata": {"name": "static-node-1", "namespace": "ml", "uid": "3a1c", "creationTimestamp": "2026-01-01T00:00:00Z",
  "annotations": {"kubernetes.io/config.mirror": "b7d2", "kubernetes.io/config.source": "file"},
  "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-1", "controller": true}]}},
{"metadata": {"name": "bare", "namespace": "ml", "uid": "4e5f", "creationTimestamp": null}}]}`

func credentials(t *testing.T, server *httptest.Server) string {
	t.Helper()
	dir := t.TempDir()

	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), ca, 0o600); err != nil {
		t.Fatal(err)
	}

	writeToken(t, dir, "first")

	return dir
}

func writeToken(t *testing.T, dir, token string) {
	t.Helper()

	if err := os.WriteFile(filepath.Join(dir, "token"), []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func testAPI(t *testing.T, handler http.HandlerFunc, labels ...string) (*api, string) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = stdlog.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	dir := credentials(t, server)

	client, err := kubeapi.New(kubeapi.Options{Server: server.URL, CredentialsDir: dir})
	if err != nil {
		t.Fatal(err)
	}

	a, err := newAPI(Options{Node: "node-1", Labels: labels}, client)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(a.closeConnections)

	return a, dir
}

func TestPods(t *testing.T) {
	requests := make(chan *http.Request, 2)

	a, dir := testAPI(t, func(w http.ResponseWriter, r *http.Request) {
		requests <- r
		_, _ = io.WriteString(w, listed)
	}, "team", "absent", "app", "team")
	for _, token := range []string{"first", "second"} {
		writeToken(t, dir, token)
		consistent := token == "second"

		got, err := a.listPods(t.Context(), consistent)
		if err != nil {
			t.Fatal(err)
		}

		want := map[podName]gpu.PodMetadata{
			{"vision", "resnet-6d4cf56db6-x7k2p"}: {UID: "2f0b", Workload: "Deployment/resnet", Template: "6d4cf56db6",
				Labels: []gpu.Label{{Name: "team", Value: "a \"b\"\n"}, {Name: "app", Value: "resnet"}}},
			{"ml", "train-abcde"}: {Workload: "Job/train",
				MIGDevices: [][]gpu.DeviceRef{{{GPU: gpuA, PlacementStart: gpu.Some(6)}}}},
			{"ml", "static-node-1"}: {UID: "b7d2"},
			{"ml", "bare"}:          {UID: "4e5f"},
		}
		if fmt.Sprint(got.pods) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", got.pods, want)
		}

		static := podName{"ml", "static-node-1"}

		uids := map[string]podName{"2f0b": {"vision", "resnet-6d4cf56db6-x7k2p"}, "3a1c": static, "b7d2": static,
			"4e5f": {"ml", "bare"}}
		if fmt.Sprint(got.uids) != fmt.Sprint(uids) || got.consistent != consistent {
			t.Errorf("got %v, want %v", got.uids, uids)
		}

		r := <-requests
		cmptest.Equal(t, "method", r.Method, http.MethodGet)
		cmptest.Equal(t, "path", r.URL.Path, "/api/v1/pods")

		query := url.Values{"fieldSelector": {"spec.nodeName=node-1,status.phase!=Succeeded,status.phase!=Failed"}}
		if !consistent {
			query.Set("resourceVersion", "0")
		}

		cmptest.Equal(t, "query", r.URL.Query(), query)

		if got := r.Header.Get("Authorization"); got != "Bearer "+token {
			t.Errorf("Authorization: %s, want token %s", got, token)
		}

		if !strings.HasPrefix(r.Header.Get("Accept"), "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1") {
			t.Errorf("Accept: %s", r.Header.Get("Accept"))
		}
	}
}

func TestPodsErrors(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		want    error
	}{
		{"unauthorized", status(http.StatusUnauthorized), gpu.ErrNoPermission},
		{"forbidden", status(http.StatusForbidden), gpu.ErrNoPermission},
		{"too many requests", status(http.StatusTooManyRequests), gpu.ErrUnavailable},
		{"redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
			gpu.ErrUnavailable},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, gpu.ErrUnavailable},
		{"no list", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"kind": "Status"}`) },
			gpu.ErrUnavailable},
		{"wrong type", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"items": [{"metadata": {"labels": 5}}]}`)
		}, gpu.ErrUnavailable},
		{"wrong time", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"items": [{"metadata": {"creationTimestamp": "x"}}]}`)
		}, gpu.ErrUnavailable},
		{"cut short", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, listed[:100]) },
			gpu.ErrUnavailable},
		{"too large", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"kind": "`)
			for range maxBody >> 20 {
				_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
			}

			_, _ = io.WriteString(w, `"}`)
		}, gpu.ErrUnavailable},
	} {
		a, _ := testAPI(t, tc.handler)
		got, err := a.listPods(t.Context(), false)
		cmptest.Equal(t, tc.name+": pods", got, nil)

		if !errors.Is(err, tc.want) || !strings.HasPrefix(err.Error(), "list pods: ") {
			t.Errorf("%s: error %v, want list pods: ... %v", tc.name, err, tc.want)
		}
	}
}

func TestPodsNeedsTheToken(t *testing.T) {
	a, dir := testAPI(t, func(http.ResponseWriter, *http.Request) { t.Error("asked without a token") })
	if err := os.Remove(filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}

	if _, err := a.listPods(t.Context(), false); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("got %v, want %v", err, gpu.ErrUnavailable)
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	good := credentials(t, server)

	bad := t.TempDir()
	if err := os.WriteFile(filepath.Join(bad, "ca.crt"), []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}

	for name, opts := range map[string]Options{
		"no certificate authority": {Server: server.URL, CredentialsDir: t.TempDir(), Node: "n"},
		"an empty one":             {Server: server.URL, CredentialsDir: bad, Node: "n"},
		"no node":                  {Server: server.URL, CredentialsDir: good},
		"no TLS":                   {Server: "http://10.0.0.1", CredentialsDir: good, Node: "n"},
		"no server":                {CredentialsDir: good, Node: "n"},
		"no URL":                   {Server: "https://[", CredentialsDir: good, Node: "n"},
	} {
		opts.Logger = log.NewNopLogger()
		if p, err := New(opts); err == nil {
			p.Close()
			t.Errorf("%s: no error", name)
		}
	}
}

func TestNewReadsOnItsOwn(t *testing.T) {
	asked := make(chan struct{}, 10)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, listed)
		asked <- struct{}{}
	}))
	defer server.Close()

	p, err := New(Options{Server: server.URL, CredentialsDir: credentials(t, server), Node: "node-1",
		Logger: log.NewNopLogger()})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()

	select {
	case <-asked:
	case <-time.After(20 * time.Second):
		t.Fatal("no request was made")
	}
}

// bigList writes a list of n pods as an API server has them: most of each is managedFields.
func bigList(w io.Writer, n int) {
	managed := strings.Repeat(
		`{"manager": "kubelet", "operation": "Update", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}": {".": {}}}}}},`, 25)
	_, _ = io.WriteString(w, `{"kind": "PartialObjectMetadataList", "metadata": {}, "items": [`)

	for i := range n {
		if i > 0 {
			_, _ = io.WriteString(w, ",")
		}

		fmt.Fprintf(w, `{"metadata": {"name": "pod-%d", "namespace": "ns", "uid": "%d", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "a"}, "managedFields": [%s{}],
			"ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "controller": true}]}}`, i, i, managed)
	}

	_, _ = io.WriteString(w, `]}`)
}

// BenchmarkPods reports the bytes allocated for each pod of a list of 1,000, of about 4.5 KB each
// on the wire.
func BenchmarkPods(b *testing.B) {
	const pods = 1000

	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("t"), 0o600); err != nil {
		b.Fatal(err)
	}

	var list strings.Builder
	bigList(&list, pods)

	client, err := kubeapi.New(kubeapi.Options{Server: "https://api", CredentialsDir: dir,
		Transport: cannedTransport(list.String())})
	if err != nil {
		b.Fatal(err)
	}

	a, err := newAPI(Options{Node: "n", Labels: []string{"app"}}, client)
	if err != nil {
		b.Fatal(err)
	}

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)

	for b.Loop() {
		got, err := a.listPods(b.Context(), false)
		if err != nil || len(got.pods) != pods {
			b.Fatal(got, err)
		}
	}

	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(b.N)/pods, "B/pod")
	b.ReportMetric(float64(list.Len())/pods, "wireB/pod")
}

// cannedTransport is the body of every answer.
type cannedTransport string

func (c cannedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader(string(c))), Request: r}, nil
}
