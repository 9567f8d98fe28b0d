package kube

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/apifake"
)

// fakeAPI is an API server.
type fakeAPI struct {
	*apifake.Server
	server *httptest.Server
}

func newFakeAPI(t *testing.T) *fakeAPI {
	t.Helper()

	s := &fakeAPI{Server: apifake.New()}
	s.server = httptest.NewTLSServer(s)
	t.Cleanup(s.server.Close)

	return s
}

func (s *fakeAPI) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw})
}

// cluster returns a client of the server.
func (s *fakeAPI) cluster(t *testing.T) *Cluster {
	t.Helper()

	set, err := kubernetes.NewForConfig(&rest.Config{
		Host:            s.server.URL,
		QPS:             -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: s.ca()},
		ContentConfig:   rest.ContentConfig{ContentType: "application/json"},
	})
	if err != nil {
		t.Fatal(err)
	}

	return New(set, "gpu")
}

// add adds an object, written in JSON.
func (s *fakeAPI) add(t *testing.T, at, text string) {
	t.Helper()

	var object map[string]any
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		t.Fatal(err)
	}

	s.Lock()
	defer s.Unlock()

	s.Put(at, object)
}

// clock is a time that passes by sleeping.
type clock struct {
	mu    sync.Mutex
	now   time.Time
	sleep func() // before the time passes
}

func newClock() *clock { return &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.now
}

func (c *clock) Sleep(ctx context.Context, d time.Duration) error {
	if c.sleep != nil {
		c.sleep()
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	c.now = c.now.Add(d)

	return ctx.Err()
}
