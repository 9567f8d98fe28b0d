package podmeta

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

// answer is what an API server says of a Deployment's pod, a Job's and a bare one.
const answer = `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "1201"}, "items": [
{"metadata": {"name": "resnet-6d4cf56db6-x7k2p", "namespace": "vision", "uid": "2f0b", "managedFields": [{"manager": "kubelet"}],
  "labels": {"app": "resnet", "team": "a \"b\"\n", "pod-template-hash": "6d4cf56db6"},
  "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "resnet-6d4cf56db6", "uid": "1", "controller": true}]}},
{"metadata": {"name": "train-abcde", "namespace": "ml",
  "annotations": {"hami.io/vgpu-mig-allocations": "[{\"containerIndex\":0,\"deviceIndex\":0,\"gpuUUID\":\"GPU-fb8bbc70-d551-45f9-43d4-9734f9cddb2c\",\"profile\":\"1g.5gb\",\"placement\":{\"start\":6,\"size\":1}}]"},
  "ownerReferences": [{"kind": "Queue", "name": "q"}, {"kind": "Job", "name": "train", "controller": true}]}},
{"metadata": {"name": "bare", "namespace": "ml"}}]}`

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
	t.Cleanup(a.close)
	return a, dir
}

func TestPods(t *testing.T) {
	requests := make(chan *http.Request, 2)
	a, dir := testAPI(t, func(w http.ResponseWriter, r *http.Request) {
		requests <- r
		_, _ = io.WriteString(w, answer)
	}, "team", "absent", "app", "team")
	for _, token := range []string{"first", "second"} {
		writeToken(t, dir, token)
		got, err := a.pods(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := map[podName]gpu.PodMetadata{
			{"vision", "resnet-6d4cf56db6-x7k2p"}: {Workload: "Deployment/resnet", Labels: []gpu.Label{{Name: "team", Value: "a \"b\"\n"}, {Name: "app", Value: "resnet"}}},
			{"ml", "train-abcde"}:                 {Workload: "Job/train", MIGDevices: [][]gpu.DeviceRef{{{GPU: gpuA, PlacementStart: gpu.Some(6)}}}},
			{"ml", "bare"}:                        {},
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", got, want)
		}
		r := <-requests
		if r.Method != http.MethodGet || r.URL.Path != "/api/v1/pods" || r.URL.Query().Get("fieldSelector") != "spec.nodeName=node-1" ||
			r.URL.Query().Get("resourceVersion") != "0" {
			t.Errorf("request %s %s", r.Method, r.URL)
		}
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
		{"redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, gpu.ErrUnavailable},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, gpu.ErrUnavailable},
		{"cut short", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer[:100]) }, gpu.ErrUnavailable},
		{"too large", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"kind": "`)
			for range maxBody >> 20 {
				_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
			}
			_, _ = io.WriteString(w, `"}`)
		}, gpu.ErrUnavailable},
	} {
		a, _ := testAPI(t, tc.handler)
		if got, err := a.pods(t.Context()); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, %v, want %v", tc.name, got, err, tc.want)
		}
	}
}

func TestPodsNeedsTheToken(t *testing.T) {
	a, dir := testAPI(t, func(http.ResponseWriter, *http.Request) { t.Error("asked without a token") })
	if err := os.Remove(filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}
	if _, err := a.pods(t.Context()); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("got %v, want %v", err, gpu.ErrUnavailable)
	}
}

func TestWorkload(t *testing.T) {
	controller := func(kind, name string) []ownerReference { return []ownerReference{{kind, name, true}} }
	hash := map[string]string{"pod-template-hash": "6d4"}
	for _, tc := range []struct {
		owners []ownerReference
		labels map[string]string
		want   string
	}{
		{nil, hash, ""},
		{[]ownerReference{{"Queue", "q", false}}, nil, ""},
		{controller("ReplicaSet", "web-6d4"), hash, "Deployment/web"},
		{controller("ReplicaSet", "web-6d4"), nil, "ReplicaSet/web-6d4"},
		{controller("ReplicaSet", "web-7e5"), hash, "ReplicaSet/web-7e5"},
		{controller("ReplicaSet", "-6d4"), hash, "ReplicaSet/-6d4"},
		{controller("StatefulSet", "db-6d4"), hash, "StatefulSet/db-6d4"},
		{controller("Node", "node-1"), nil, "Node/node-1"},
	} {
		if got := workload(tc.owners, tc.labels); got != tc.want {
			t.Errorf("workload(%v, %v) = %q, want %q", tc.owners, tc.labels, got, tc.want)
		}
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
		_, _ = io.WriteString(w, answer)
		asked <- struct{}{}
	}))
	defer server.Close()
	p, err := New(Options{Server: server.URL, CredentialsDir: credentials(t, server), Node: "node-1", Logger: log.NewNopLogger()})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	select {
	case <-asked:
	case <-time.After(20 * time.Second):
		t.Fatal("nobody asked")
	}
}
