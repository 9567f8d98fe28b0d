package kube

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// fakeAPI is an API server that keeps objects by their paths. It refuses changes of objects that
// have changed since they were read, and notes who has set spec.unschedulable of a node.
type fakeAPI struct {
	server *httptest.Server

	mu        sync.Mutex
	objects   map[string]map[string]any
	version   int
	budgets   map[string]bool     // pods whose eviction is refused, by path
	forbidden map[string]bool     // "<method> <path>" that gets 403
	evicted   []string            // paths
	intercept func(*http.Request) // before each request
}

func newFakeAPI(t *testing.T) *fakeAPI {
	t.Helper()

	s := &fakeAPI{
		objects:   map[string]map[string]any{},
		budgets:   map[string]bool{},
		forbidden: map[string]bool{},
	}
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

	s.mu.Lock()
	defer s.mu.Unlock()

	s.put(at, object)
}

func (s *fakeAPI) put(at string, object map[string]any) {
	s.version++

	metadata, _ := object["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
		object["metadata"] = metadata
	}

	metadata["name"] = path.Base(at)
	metadata["resourceVersion"] = strconv.Itoa(s.version)
	s.objects[at] = object
}

// get returns a field of an object: get("/api/v1/nodes/a", "spec", "unschedulable").
func (s *fakeAPI) get(at string, keys ...string) any {
	s.mu.Lock()
	defer s.mu.Unlock()

	var value any = s.objects[at]
	for _, key := range keys {
		fields, _ := value.(map[string]any)
		value = fields[key]
	}

	return value
}

func (s *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.intercept != nil {
		s.intercept(r)
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	at := r.URL.Path
	if s.forbidden[r.Method+" "+at] {
		fail(w, http.StatusForbidden, "Forbidden")
		return
	}

	var body map[string]any
	if r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch {
		if json.NewDecoder(r.Body).Decode(&body) != nil {
			fail(w, http.StatusBadRequest, "BadRequest")
			return
		}
	}

	pod, isEviction := strings.CutSuffix(at, "/eviction")

	switch {
	case at == "/api/v1":
		answer(w, map[string]any{"kind": "APIResourceList", "groupVersion": "v1", "resources": []any{
			map[string]any{"name": "pods/eviction", "kind": "Eviction", "group": "policy", "version": "v1"},
		}})
	case isEviction && s.budgets[pod]:
		failWith(w, http.StatusTooManyRequests, "TooManyRequests",
			"Cannot evict pod as it would violate the pod's disruption budget.")
	case isEviction || r.Method == http.MethodDelete:
		s.evicted = append(s.evicted, pod)
		delete(s.objects, pod)
		answer(w, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"})
	case r.Method == http.MethodPost:
		metadata, _ := body["metadata"].(map[string]any)
		name, _ := metadata["name"].(string)
		s.write(w, at+"/"+name, nil, body)
	default:
		s.serveObject(w, r, at, body)
	}
}

func (s *fakeAPI) serveObject(w http.ResponseWriter, r *http.Request, at string, body map[string]any) {
	object := s.objects[at]

	switch {
	case object == nil && r.Method == http.MethodGet && isList(at):
		s.list(w, r, at)
	case object == nil:
		fail(w, http.StatusNotFound, "NotFound")
	case r.Method == http.MethodGet:
		answer(w, object)
	case r.Method == http.MethodPatch:
		patched := merge(clone(object), body)
		note(patched, body, r.URL.Query().Get("fieldManager"))
		s.write(w, at, object, patched)
	default:
		s.write(w, at, object, body)
	}
}

// isList reports whether a path is of several objects.
func isList(at string) bool {
	switch path.Base(at) {
	case "nodes", "pods", "configmaps", "leases":
		return true
	}

	return false
}

func (s *fakeAPI) list(w http.ResponseWriter, r *http.Request, at string) {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		fail(w, http.StatusBadRequest, "BadRequest")
		return
	}

	items := []any{}

	for name, object := range s.objects {
		metadata, _ := object["metadata"].(map[string]any)
		set := labels.Set{}

		if all, ok := metadata["labels"].(map[string]any); ok {
			for key, value := range all {
				set[key], _ = value.(string)
			}
		}

		if path.Dir(name) == at && selector.Matches(set) {
			items = append(items, object)
		}
	}

	kind := map[string]string{"nodes": "NodeList", "configmaps": "ConfigMapList"}[path.Base(at)]
	answer(w, map[string]any{"kind": kind, "apiVersion": "v1", "items": items})
}

// write stores an object unless it has changed since.
func (s *fakeAPI) write(w http.ResponseWriter, at string, was, object map[string]any) {
	metadata, _ := object["metadata"].(map[string]any)
	read, _ := metadata["resourceVersion"].(string)

	if was == nil && s.objects[at] != nil {
		fail(w, http.StatusConflict, "AlreadyExists")
		return
	}

	if was != nil && read != was["metadata"].(map[string]any)["resourceVersion"] { //nolint:forcetypeassert // put sets it
		fail(w, http.StatusConflict, "Conflict")
		return
	}

	s.put(at, object)
	answer(w, object)
}

// note notes that a manager has set spec.unschedulable.
func note(object, patch map[string]any, manager string) {
	spec, _ := patch["spec"].(map[string]any)
	if _, ok := spec["unschedulable"]; !ok {
		return
	}

	object["metadata"].(map[string]any)["managedFields"] = []any{map[string]any{ //nolint:forcetypeassert // as put sets it
		"manager":  manager,
		"fieldsV1": map[string]any{"f:spec": map[string]any{"f:unschedulable": map[string]any{}}},
	}}
}

// merge applies a merge patch.
func merge(object, patch map[string]any) map[string]any {
	for key, value := range patch {
		inner, isMap := value.(map[string]any)

		switch {
		case value == nil:
			delete(object, key)
		case isMap:
			was, _ := object[key].(map[string]any)
			if was == nil {
				was = map[string]any{}
			}

			object[key] = merge(was, inner)
		default:
			object[key] = value
		}
	}

	return object
}

func clone(object map[string]any) map[string]any {
	copied := map[string]any{}

	for key, value := range object {
		if inner, ok := value.(map[string]any); ok {
			value = clone(inner)
		}

		copied[key] = value
	}

	return copied
}

func answer(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object)
}

func fail(w http.ResponseWriter, code int, reason string) { failWith(w, code, reason, reason) }

func failWith(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code,
		"message": message,
	})
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
