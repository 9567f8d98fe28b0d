// Package clusterapi is a simulated Kubernetes API server with one node, for tests of clients that
// follow the node's labels. Like a cluster it runs the pod of each DaemonSet whose node selector
// matches the labels, records which field manager wrote a label last, and refuses patches of a node
// that has changed since the client read it.
package clusterapi

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	stdlog "log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// NodeName is the name of the node.
const NodeName = "node-1"

// token is the bearer token of the only client.
const token = "the-exporter's"

// DaemonSet runs one pod on the node while its labels have all of NodeSelector.
type DaemonSet struct {
	Namespace, Name string
	Labels          map[string]string // the labels of its pod
	NodeSelector    map[string]string
	// Slow is how many lists of pods still show its pod after the node's labels have stopped to match.
	Slow int
}

// Server is the API server. It is safe for concurrent use.
type Server struct {
	URL string

	http *httptest.Server

	mu          sync.Mutex
	version     int // the node's resourceVersion
	labels      map[string]string
	annotations map[string]string
	managers    map[string]string // the field manager that wrote a label last, by label
	configMaps  map[string]string // config.yaml by NAMESPACE/NAME
	daemonSets  []DaemonSet
	ending      map[string]int  // how many lists still show the pod of a DaemonSet, by its name
	forbidden   map[string]bool // see Forbid
	requests    []string        // see Requests
	states      []string        // see States
	meddle      int             // before how many patches another client still changes the node
}

// Start starts a server with a node without labels. It writes the client's credentials to dir, as
// ca.crt and token, as a pod has them.
func Start(dir string) (*Server, error) {
	s := &Server{
		version: 100, labels: map[string]string{}, annotations: map[string]string{},
		managers: map[string]string{}, configMaps: map[string]string{},
		ending: map[string]int{}, forbidden: map[string]bool{},
	}
	s.http = httptest.NewUnstartedServer(s)
	s.http.Config.ErrorLog = stdlog.New(io.Discard, "", 0)
	s.http.StartTLS()
	s.URL = s.http.URL

	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw})

	return s, errors.Join(
		os.WriteFile(filepath.Join(dir, "ca.crt"), ca, 0o600),
		os.WriteFile(filepath.Join(dir, "token"), []byte(token+"\n"), 0o600),
	)
}

// Close stops the server.
func (s *Server) Close() { s.http.Close() }

// SetLabel sets a label of the node as a field manager does; an empty value removes it.
func (s *Server) SetLabel(key, value, manager string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.setLabel(key, value, manager)
	s.version++
}

func (s *Server) setLabel(key, value, manager string) {
	if key == "nvidia.com/mig.config.state" && s.labels[key] != value {
		s.states = append(s.states, value)
	}

	if value == "" {
		delete(s.labels, key)
		delete(s.managers, key)

		return
	}

	s.labels[key] = value
	s.managers[key] = manager

	for _, d := range s.daemonSets {
		if !s.matches(d) && s.ending[d.Name] == 0 {
			s.ending[d.Name] = d.Slow
		}
	}
}

// Label returns the value of a label.
func (s *Server) Label(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.labels[key]
}

// Annotation returns the value of an annotation.
func (s *Server) Annotation(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.annotations[key]
}

// Labels returns a copy of the labels.
func (s *Server) Labels() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return maps.Clone(s.labels)
}

// States returns the values that nvidia.com/mig.config.state has had, in their order.
func (s *Server) States() []string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.Clone(s.states)
}

// AddDaemonSet adds a DaemonSet.
func (s *Server) AddDaemonSet(d DaemonSet) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.daemonSets = append(s.daemonSets, d)
}

// RemoveDaemonSet removes a DaemonSet with its pod.
func (s *Server) RemoveDaemonSet(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.daemonSets = slices.DeleteFunc(s.daemonSets, func(d DaemonSet) bool { return d.Name == name })
}

// SetConfigMap sets config.yaml of the ConfigMap NAMESPACE/NAME.
func (s *Server) SetConfigMap(name, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.configMaps[name] = text
}

// Forbid makes the server refuse a verb of a resource, such as "list pods", or allow it again.
func (s *Server) Forbid(right string, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.forbidden[right] = on
}

// Meddle makes another client change the node before each of the next patches, so many times.
func (s *Server) Meddle(times int) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.meddle = times
}

// Requests returns "METHOD PATH" of all requests so far.
func (s *Server) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.Clone(s.requests)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.requests = append(s.requests, r.Method+" "+r.URL.Path)

	if r.Header.Get("Authorization") != "Bearer "+token {
		refuse(w, http.StatusUnauthorized, "Unauthorized", "")
		return
	}

	verb := map[string]string{http.MethodGet: "get", http.MethodPatch: "patch"}[r.Method]
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")

	switch {
	case r.URL.Path == "/apis":
		answer(w, map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": []any{}})
	case r.URL.Path == "/api/v1/nodes/"+NodeName:
		if !s.refused(w, verb+" nodes") {
			s.serveNode(w, r)
		}
	case r.URL.Path == "/api/v1/pods":
		if !s.refused(w, "list pods") {
			s.servePods(w, r)
		}
	case len(parts) == 6 && parts[4] == "configmaps":
		if !s.refused(w, "get configmaps") {
			s.serveConfigMap(w, parts[3], parts[5])
		}
	default:
		refuse(w, http.StatusNotFound, "NotFound", "")
	}
}

// refused answers a request and returns true if the client lacks the right for it: see Forbid.
func (s *Server) refused(w http.ResponseWriter, right string) bool {
	if s.forbidden[right] {
		refuse(w, http.StatusForbidden, "Forbidden", "")
	}

	return s.forbidden[right]
}

func answer(w http.ResponseWriter, document any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(document)
}

// refuse answers with a Status, which names the missing object if there is one.
func refuse(w http.ResponseWriter, code int, reason, name string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
		"details": map[string]string{"name": name},
	})
}

func (s *Server) serveNode(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPatch && !s.patchNode(w, r) {
		return
	}

	managed := map[string]map[string]any{}

	for _, key := range slices.Sorted(maps.Keys(s.managers)) {
		manager := s.managers[key]
		if managed[manager] == nil {
			managed[manager] = map[string]any{}
		}

		managed[manager]["f:"+key] = map[string]any{}
	}

	var fields []any
	for _, manager := range slices.Sorted(maps.Keys(managed)) {
		fields = append(fields, map[string]any{
			"manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
			"fieldsV1": map[string]any{"f:metadata": map[string]any{"f:labels": managed[manager]}},
		})
	}

	answer(w, map[string]any{
		"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
		"metadata": map[string]any{
			"name": NodeName, "resourceVersion": strconv.Itoa(s.version), "labels": s.labels,
			"annotations": s.annotations, "managedFields": fields,
		},
	})
}

// patchNode applies a merge patch of labels and annotations. If it refuses the patch, it answers the
// request and returns false.
func (s *Server) patchNode(w http.ResponseWriter, r *http.Request) bool {
	if s.meddle > 0 {
		s.meddle--
		s.version++
	}

	var patch struct {
		Metadata struct {
			ResourceVersion string             `json:"resourceVersion"`
			Labels          map[string]*string `json:"labels"`
			Annotations     map[string]*string `json:"annotations"`
		} `json:"metadata"`
	}

	err := json.NewDecoder(r.Body).Decode(&patch)
	if err != nil || r.Header.Get("Content-Type") != "application/merge-patch+json" {
		refuse(w, http.StatusUnsupportedMediaType, "UnsupportedMediaType", "")
		return false
	}

	if v := patch.Metadata.ResourceVersion; v != "" && v != strconv.Itoa(s.version) {
		refuse(w, http.StatusConflict, "Conflict", NodeName)
		return false
	}

	for key, value := range patch.Metadata.Labels {
		text := ""
		if value != nil {
			text = *value
		}

		s.setLabel(key, text, r.URL.Query().Get("fieldManager"))
	}

	for key, value := range patch.Metadata.Annotations {
		if value == nil {
			delete(s.annotations, key)
		} else {
			s.annotations[key] = *value
		}
	}

	s.version++

	return true
}

func (s *Server) matches(d DaemonSet) bool {
	for key, value := range d.NodeSelector {
		if s.labels[key] != value {
			return false
		}
	}

	return true
}

func (s *Server) servePods(w http.ResponseWriter, r *http.Request) {
	items := []any{}

	for _, d := range s.daemonSets {
		runs := s.matches(d)
		if !runs && s.ending[d.Name] > 0 {
			s.ending[d.Name]--

			runs = true
		}

		key, value, selects := strings.Cut(r.URL.Query().Get("labelSelector"), "=")
		if !runs || selects && d.Labels[key] != value {
			continue
		}

		items = append(items, map[string]any{
			"metadata": map[string]any{
				"namespace": d.Namespace, "name": d.Name + "-x1", "uid": "uid-" + d.Name,
				"labels": d.Labels,
				"ownerReferences": []any{map[string]any{
					"apiVersion": "apps/v1", "kind": "DaemonSet", "name": d.Name, "controller": true,
				}},
			},
			"spec":   map[string]any{"nodeName": NodeName, "nodeSelector": d.NodeSelector},
			"status": map[string]any{"phase": "Running"},
		})
	}

	answer(w, map[string]any{
		"kind": "PodList", "apiVersion": "v1", "metadata": map[string]any{}, "items": items,
	})
}

func (s *Server) serveConfigMap(w http.ResponseWriter, namespace, name string) {
	text, ok := s.configMaps[namespace+"/"+name]
	if !ok {
		refuse(w, http.StatusNotFound, "NotFound", name)
		return
	}

	answer(w, map[string]any{
		"kind": "ConfigMap", "apiVersion": "v1", "metadata": map[string]any{"name": name},
		"data": map[string]string{"config.yaml": text},
	})
}
