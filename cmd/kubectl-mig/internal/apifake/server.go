// Package apifake is an API server for tests: it keeps objects of any kind by their paths, and evicts
// pods.
package apifake

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
)

// Server is the API server. It refuses to change an object that has changed since the client has read
// it, and to evict or delete a pod with another UID than the request's precondition. It records which
// manager has set spec.unschedulable of a node. Its lock guards the fields.
type Server struct {
	sync.Mutex

	Objects map[string]map[string]any // by path
	Budgets map[string]bool           // paths of pods whose eviction a PodDisruptionBudget refuses
	Evicted []string                  // paths of pods that were evicted or deleted
	// Forbidden are requests, "<method> <path>", that get 403; Unavailable is one that gets 500.
	Forbidden   map[string]bool
	Unavailable string
	// Before, if not nil, is called before each request, without the lock.
	Before func(*http.Request)

	version int // the last resourceVersion
}

// New returns a server without objects.
func New() *Server {
	return &Server{
		Objects:   map[string]map[string]any{},
		Budgets:   map[string]bool{},
		Forbidden: map[string]bool{},
	}
}

// Put stores an object with a new resourceVersion, and a UID if it has none. The caller has the lock.
func (s *Server) Put(at string, object map[string]any) {
	s.version++

	metadata, _ := object["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
		object["metadata"] = metadata
	}

	if metadata["uid"] == nil {
		metadata["uid"] = fmt.Sprintf("uid-%d", s.version)
	}

	metadata["name"] = path.Base(at)
	metadata["resourceVersion"] = strconv.Itoa(s.version)
	s.Objects[at] = object
}

// Get returns a field of an object: Get("/api/v1/nodes/a", "spec", "unschedulable").
func (s *Server) Get(at string, keys ...string) any {
	s.Lock()
	defer s.Unlock()

	var value any = s.Objects[at]
	for _, key := range keys {
		fields, _ := value.(map[string]any)
		value = fields[key]
	}

	return value
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.Before != nil {
		s.Before(r)
	}

	s.Lock()
	defer s.Unlock()

	at := r.URL.Path
	if s.Forbidden[r.Method+" "+at] {
		fail(w, http.StatusForbidden, "Forbidden")
		return
	}

	if s.Unavailable == r.Method+" "+at {
		fail(w, http.StatusInternalServerError, "InternalError")
		return
	}

	var body map[string]any
	if r.Method != http.MethodGet {
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
	case (isEviction || r.Method == http.MethodDelete) && !s.meetsPrecondition(pod, body):
		fail(w, http.StatusConflict, "Conflict")
	case isEviction && s.Budgets[pod]:
		failWith(w, http.StatusTooManyRequests, "TooManyRequests",
			"Cannot evict pod as it would violate the pod's disruption budget.")
	case isEviction || r.Method == http.MethodDelete:
		s.Evicted = append(s.Evicted, pod)
		delete(s.Objects, pod)
		answer(w, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Success"})
	case r.Method == http.MethodPost:
		metadata, _ := body["metadata"].(map[string]any)
		name, _ := metadata["name"].(string)
		s.write(w, at+"/"+name, nil, body)
	default:
		s.serveObject(w, r, at, body)
	}
}

// meetsPrecondition reports whether a pod has the UID in the precondition of a request to delete or
// evict it.
func (s *Server) meetsPrecondition(pod string, body map[string]any) bool {
	options, _ := body["deleteOptions"].(map[string]any)
	if options == nil {
		options = body
	}

	conditions, _ := options["preconditions"].(map[string]any)
	metadata, _ := s.Objects[pod]["metadata"].(map[string]any)

	return conditions["uid"] != nil && conditions["uid"] == metadata["uid"]
}

// serveObject serves GET, PATCH and PUT of an object, and GET of a list.
func (s *Server) serveObject(w http.ResponseWriter, r *http.Request, at string, body map[string]any) {
	object := s.Objects[at]

	switch {
	case object == nil && r.Method == http.MethodGet && s.isList(at):
		s.list(w, r, at)
	case object == nil:
		fail(w, http.StatusNotFound, "NotFound")
	case r.Method == http.MethodGet:
		answer(w, object)
	case r.Method == http.MethodPatch:
		patched := Merge(Clone(object), body)
		NoteManager(patched, body, r.URL.Query().Get("fieldManager"))
		s.write(w, at, object, patched)
	default:
		s.write(w, at, object, body)
	}
}

// isList reports whether a path is that of a list. Only versions of ResourceSlices of which there is
// an object are served.
func (s *Server) isList(at string) bool {
	switch path.Base(at) {
	case "nodes", "pods", "configmaps", "leases":
		return true
	case "resourceslices":
		for name := range s.Objects {
			if path.Dir(name) == at {
				return true
			}
		}
	}

	return false
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, at string) {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		fail(w, http.StatusBadRequest, "BadRequest")
		return
	}

	items := []any{}

	for name, object := range s.Objects {
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

// write stores an object in the place of the current one, which is nil for a new object. It refuses
// if the object has another resourceVersion than the current one.
func (s *Server) write(w http.ResponseWriter, at string, current, object map[string]any) {
	metadata, _ := object["metadata"].(map[string]any)
	version, _ := metadata["resourceVersion"].(string)

	if current == nil && s.Objects[at] != nil {
		fail(w, http.StatusConflict, "AlreadyExists")
		return
	}

	currentMetadata, _ := current["metadata"].(map[string]any)
	if current != nil && version != currentMetadata["resourceVersion"] {
		fail(w, http.StatusConflict, "Conflict")
		return
	}

	s.Put(at, object)
	answer(w, object)
}

// NoteManager records in an object that a manager has set spec.unschedulable, if the patch sets it.
func NoteManager(object, patch map[string]any, manager string) {
	spec, _ := patch["spec"].(map[string]any)
	if _, ok := spec["unschedulable"]; !ok {
		return
	}

	metadata, _ := object["metadata"].(map[string]any)
	metadata["managedFields"] = []any{map[string]any{
		"manager":  manager,
		"fieldsV1": map[string]any{"f:spec": map[string]any{"f:unschedulable": map[string]any{}}},
	}}
}

// Merge applies a merge patch.
func Merge(object, patch map[string]any) map[string]any {
	for key, value := range patch {
		inner, isMap := value.(map[string]any)

		switch {
		case value == nil:
			delete(object, key)
		case isMap:
			current, _ := object[key].(map[string]any)
			if current == nil {
				current = map[string]any{}
			}

			object[key] = Merge(current, inner)
		default:
			object[key] = value
		}
	}

	return object
}

// Clone copies an object.
func Clone(object map[string]any) map[string]any {
	copied := map[string]any{}

	for key, value := range object {
		if inner, ok := value.(map[string]any); ok {
			value = Clone(inner)
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
