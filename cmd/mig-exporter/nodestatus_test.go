package main

import (
	"encoding/json"
	"encoding/pem"
	"io"
	stdlog "log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// nodeServer is the part of an API server that has one Node, gpu-node, and Events. It merges
// conditions by type, as a strategic merge patch does.
type nodeServer struct {
	mu         sync.Mutex
	conditions []map[string]string
	events     chan map[string]any
	refuses    bool
	hangs      chan struct{} // not nil: answers wait for it
	requests   int
}

// startNodeServer serves it, and names it to the programs that the test launches.
func startNodeServer(t *testing.T) *nodeServer {
	t.Helper()

	s := &nodeServer{
		conditions: []map[string]string{{"type": "Ready", "status": "True", "reason": "KubeletReady"}},
		events:     make(chan map[string]any, 8),
	}
	server := httptest.NewUnstartedServer(s)
	server.Config.ErrorLog = stdlog.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})

	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})

	for name, text := range map[string]string{"token": "own\n", "ca.crt": string(ca)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	t.Setenv(apiServerVariable, server.URL)
	t.Setenv(credentialsVariable, dir)

	return s
}

func (s *nodeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	hangs := s.hangs
	s.mu.Unlock()

	if hangs != nil {
		select {
		case <-hangs:
		case <-r.Context().Done():
		}

		return
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	s.requests++

	switch {
	case r.Header.Get("Authorization") != "Bearer own":
		http.Error(w, "{}", http.StatusUnauthorized)
	case s.refuses:
		http.Error(w, "{}", http.StatusForbidden)
	case r.Method+" "+r.URL.Path == "PATCH /api/v1/nodes/gpu-node/status" &&
		r.Header.Get("Content-Type") == "application/strategic-merge-patch+json":
		s.patch(w, r)
	case r.Method+" "+r.URL.Path == "POST /api/v1/namespaces/default/events":
		var event map[string]any

		_ = json.NewDecoder(r.Body).Decode(&event)
		s.events <- event

		w.WriteHeader(http.StatusCreated)
	case r.Method+" "+r.URL.Path == "GET /api/v1/nodes/gpu-node":
		_, _ = io.WriteString(w, `{"metadata": {"name": "gpu-node"}}`)
	case r.Method+" "+r.URL.Path == "GET /apis":
		_, _ = io.WriteString(w, `{"groups": []}`)
	default:
		http.Error(w, "{}", http.StatusNotFound)
	}
}

func (s *nodeServer) patch(w http.ResponseWriter, r *http.Request) {
	var node struct {
		Status struct {
			Conditions []map[string]string `json:"conditions"`
		} `json:"status"`
	}

	_ = json.NewDecoder(r.Body).Decode(&node)

	for _, c := range node.Status.Conditions {
		at := slices.IndexFunc(s.conditions, func(known map[string]string) bool { return known["type"] == c["type"] })
		if at < 0 {
			s.conditions = append(s.conditions, c)
		} else {
			s.conditions[at] = c
		}
	}

	node.Status.Conditions = s.conditions
	_ = json.NewEncoder(w).Encode(node)
}

// shown returns the conditions as "GPUHealthy=True GPUsHealthy".
func (s *nodeServer) shown() string {
	s.mu.Lock()
	defer s.mu.Unlock()

	texts := make([]string, 0, len(s.conditions))
	for _, c := range s.conditions {
		texts = append(texts, c["type"]+"="+c["status"]+" "+c["reason"])
	}

	return strings.Join(texts, ", ")
}

// expect wants the conditions to be those. The answer to an advance of the clock comes after they
// were written.
func (s *nodeServer) expect(t *testing.T, p *program, by time.Duration, want string) {
	t.Helper()
	p.advance(by)

	if got := s.shown(); got != want {
		t.Fatalf("the node shows %s, not %s\n%s", got, want, p.logText())
	}
}

const conditionFlags = "--kubernetes.node-name=gpu-node --kubernetes.node-conditions"

// TestNodeConditions: the conditions follow the GPUs: worse at once, better after five minutes, and
// unknown once the program has stopped. Those of others stay as they are. The next process goes on
// with what was shown before.
func TestNodeConditions(t *testing.T) {
	s := startNodeServer(t)
	scenario := `
gpus: [{model: H100-80GB, count: 2}]
faults: [{at: 30s, for: 30s, gpu: 1, kind: lost}]
`
	p := faultyNode(t, scenario, strings.Fields(conditionFlags)...)

	const ready, layout = "Ready=True KubeletReady, ", ", MIGLayoutApplied=True NoLayoutWanted"

	s.expect(t, p, 0, ready+"GPUHealthy=True GPUsHealthy"+layout)
	s.expect(t, p, 35*time.Second, ready+"GPUHealthy=False GPULost"+layout)
	cmptest.Equal(t, "message", s.conditions[1]["message"],
		"GPU 1: the GPU is lost: it has fallen off the bus, or cannot be reached")

	// Back, and seen to be for more than five minutes.
	s.expect(t, p, 30*time.Second, ready+"GPUHealthy=False GPULost"+layout)
	s.expect(t, p, 4*time.Minute, ready+"GPUHealthy=False GPULost"+layout)
	s.expect(t, p, 2*time.Minute, ready+"GPUHealthy=True GPUsHealthy"+layout)

	if n := len(p.scrape().of("mig_exporter_node_conditions_timestamp_seconds", `node="gpu-node"`)); n != 1 {
		t.Errorf("%d series of the last heartbeat", n)
	}

	cmptest.Equal(t, "exit code", p.stop(), 0)
	cmptest.Equal(t, "after the end", s.shown(),
		ready+"GPUHealthy=Unknown ExporterStopped, MIGLayoutApplied=Unknown ExporterStopped")

	p = faultyNode(t, scenario, strings.Fields(conditionFlags)...)
	s.expect(t, p, 0, ready+"GPUHealthy=True GPUsHealthy"+layout)
}

// TestNodeConditionsRefused: a missing right is named, and an API server that does not answer holds
// up neither polls nor the end.
func TestNodeConditionsRefused(t *testing.T) {
	s := startNodeServer(t)
	s.refuses = true

	p := faultyNode(t, "gpus: [{model: H100-80GB}]\n", strings.Fields(conditionFlags)...)
	p.waitFor("the service account needs the right to patch nodes/status")
	p.scrape().expect(t, "while it refuses", 0, "mig_exporter_node_conditions_timestamp_seconds")
	cmptest.Equal(t, "exit code", p.stop(), 0)

	s.mu.Lock()
	s.refuses = false
	s.hangs = make(chan struct{})
	s.mu.Unlock()

	p = faultyNode(t, "gpus: [{model: H100-80GB}]\n", strings.Fields(conditionFlags)...)
	before := p.health().Generation

	p.advance(time.Second)
	cmptest.Equal(t, "polls", p.health().Generation > before, true)
	cmptest.Equal(t, "exit code", p.stop(), 0)
	close(s.hangs)
}

// TestNodeEventsAndLayout: an operation is an Event on the node, and its layout stands until another
// client changes it.
func TestNodeEventsAndLayout(t *testing.T) {
	s := startNodeServer(t)
	c := controlNode(t, write(t, "s.yaml", repartitionScenario+
		"faults: [{at: 60s, gpu: 0, kind: external-reconfigure, layout: [\"7g.40gb@0\"]}]\n"),
		strings.Fields(conditionFlags+" --kubernetes.node-events")...)

	const healthy = "Ready=True KubeletReady, GPUHealthy=True GPUsHealthy, "

	s.expect(t, c.program, 0, healthy+"MIGLayoutApplied=True NoLayoutWanted")

	for range 6 { // the kubelet has listed all its pods then
		c.advance(time.Second)
	}

	c.must(0, "apply", "--yes", "--gpus", "0", "--devices", "3g.20gb=2")
	ids, _ := c.operations()

	var event map[string]any

	select {
	case event = <-s.events:
	case <-time.After(testTimeout):
		t.Fatal("no Event was created\n" + c.logText())
	}

	cmptest.Equal(t, "type and reason", []any{event["type"], event["reason"]}, []any{"Normal", "MIGOperationSucceeded"})
	cmptest.Equal(t, "message", event["message"], any("operation "+ids[0]+" (apply) is succeeded; "+
		"GPU 0: 2g.10gb@0 3g.20gb@4 -> 3g.20gb@0 3g.20gb@4"))

	s.expect(t, c.program, 62*time.Second, healthy+"MIGLayoutApplied=False LayoutDiffers")
	cmptest.Equal(t, "message", s.conditions[2]["message"],
		"GPU 0 has 7g.40gb@0, should have 3g.20gb@0 3g.20gb@4")
}
