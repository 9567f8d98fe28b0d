package cluster

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
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
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

const ownToken = "the-exporter's"

// apiServer answers as a Kubernetes API server does: a caller without a known token gets 401, what
// its rights do not allow 403, a patch of an object that has changed 409, all with a Status object.
type apiServer struct {
	mu        sync.Mutex
	forbidden map[string]bool // "<verb> <resource>" that the exporter's service account may not
	tokens    map[string]fakeUser
	grants    map[string][]string // verbs on partitions of node-1, by user
	asked     []string            // "<method> <path>"
	selectors []string

	node         map[string]any
	version      int
	meddle       int // how often another client changes the node between a reading and a patch
	groups       map[string]string
	lists        map[string]string // answers by path
	audienceless bool              // it knows nothing of audiences
	own          string            // its own audience, for which it reviews where none is asked for; empty: all
	down         bool
	reviewing    accessReviewSpec // the last
	pods         []fakePod        // of the namespace of the device plugin
	reviews      *reviewCounter   // optional
}

type fakeUser struct {
	name      string
	groups    []string
	audiences []string
}

func newAPIServer() *apiServer {
	return &apiServer{
		forbidden: map[string]bool{}, tokens: map[string]fakeUser{}, grants: map[string][]string{},
		groups: map[string]string{"apps": "v1"}, lists: map[string]string{}, version: 100,
		node: map[string]any{"kind": "Node", "metadata": map[string]any{"name": "node-1"},
			"spec": map[string]any{"podCIDR": "10.0.0.0/24"}},
	}
}

// refuse answers with a Status.
func refuse(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).
		Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
			"message": message})
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.reviews != nil {
		defer s.reviews.count(r)()
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	s.asked = append(s.asked, r.Method+" "+r.URL.Path)
	if s.down {
		refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable", "etcd is gone")
		return
	}

	if r.Header.Get("Authorization") != "Bearer "+ownToken {
		refuse(w, http.StatusUnauthorized, "Unauthorized", "Unauthorized")
		return
	}

	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	if strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") {
		resource = "nodes"
	}

	verb := map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPatch: "patch"}[r.Method]
	if strings.HasPrefix(r.URL.Path, podsOfPlugin) {
		resource = "pods"
		verb = map[string]string{http.MethodGet: "list", http.MethodDelete: "delete"}[r.Method]
	}

	if s.forbidden[verb+" "+resource] {
		refuse(w, http.StatusForbidden, "Forbidden", fmt.Sprintf("%s is forbidden: User cannot %s resource", resource, verb))
		return
	}

	switch {
	case r.URL.Path == "/api/v1/nodes/node-1":
		s.serveNode(w, r)
	case resource == "pods":
		s.servePods(w, r)
	case r.URL.Path == "/apis":
		s.serveGroups(w)
	case r.Method == http.MethodPost && resource == "tokenreviews":
		s.reviewToken(w, r)
	case r.Method == http.MethodPost && resource == "subjectaccessreviews":
		s.reviewAccess(w, r)
	case s.lists[r.URL.Path] != "":
		s.selectors = append(s.selectors, r.URL.Query().Get("fieldSelector"))
		_, _ = io.WriteString(w, s.lists[r.URL.Path])
	default:
		refuse(w, http.StatusNotFound, "NotFound", "the server could not find the requested resource")
	}
}

func (s *apiServer) serveGroups(w http.ResponseWriter) {
	var groups []any
	for _, name := range slices.Sorted(maps.Keys(s.groups)) {
		version := map[string]string{"groupVersion": name + "/" + s.groups[name], "version": s.groups[name]}
		groups = append(groups, map[string]any{"name": name, "versions": []any{version}, "preferredVersion": version})
	}

	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

func (s *apiServer) metadata() map[string]any { return s.node["metadata"].(map[string]any) }

func (s *apiServer) serveNode(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPatch {
		var patch map[string]any
		if err := json.NewDecoder(r.Body).Decode(&patch); err != nil ||
			r.Header.Get("Content-Type") != "application/merge-patch+json" {
			refuse(w, http.StatusUnsupportedMediaType, "UnsupportedMediaType", "not a merge patch")
			return
		}

		if s.meddle > 0 {
			s.meddle--
			s.version++
		}

		if given, ok := patch["metadata"].(map[string]any)["resourceVersion"]; ok && given != strconv.Itoa(s.version) {
			refuse(w, http.StatusConflict, "Conflict",
				"the object has been modified; please apply your changes to the latest version")

			return
		}

		was := s.node["spec"].(map[string]any)["unschedulable"]
		merge(s.node, patch)

		s.version++
		if is := s.node["spec"].(map[string]any)["unschedulable"]; is != was {
			s.manage(r.URL.Query().Get("fieldManager"), is)
		}
	}

	s.metadata()["resourceVersion"] = strconv.Itoa(s.version)
	_ = json.NewEncoder(w).Encode(s.node)
}

// manage notes which client has changed spec.unschedulable, as the API server does: one that writes
// the same value again does not count.
func (s *apiServer) manage(manager string, unschedulable any) {
	fields := []any{map[string]any{"manager": "kube-controller-manager", "operation": "Update", "fieldsType": "FieldsV1",
		"fieldsV1": map[string]any{"f:spec": map[string]any{"f:podCIDR": map[string]any{},
			"f:podCIDRs": map[string]any{".": map[string]any{}}}}}}
	if unschedulable != nil {
		fields = append(fields, map[string]any{"manager": manager, "operation": "Update", "fieldsType": "FieldsV1",
			"fieldsV1": map[string]any{"f:spec": map[string]any{"f:unschedulable": map[string]any{}}}})
	}

	s.metadata()["managedFields"] = fields
}

// merge applies a JSON merge patch (RFC 7386).
func merge(to, patch map[string]any) {
	for key, value := range patch {
		inner, isObject := value.(map[string]any)
		switch {
		case value == nil:
			delete(to, key)
		case isObject:
			below, _ := to[key].(map[string]any)
			if below == nil {
				below = map[string]any{}
			}

			merge(below, inner)
			to[key] = below
		default:
			to[key] = value
		}
	}
}

func (s *apiServer) reviewToken(w http.ResponseWriter, r *http.Request) {
	var review map[string]any
	_ = json.NewDecoder(r.Body).Decode(&review)

	spec, _ := review["spec"].(map[string]any)
	if review["kind"] != "TokenReview" || review["apiVersion"] != "authentication.k8s.io/v1" || spec["token"] == "" {
		refuse(w, http.StatusBadRequest, "BadRequest", "not a TokenReview")
		return
	}

	var wanted []string
	for _, a := range anyList(spec["audiences"]) {
		wanted = append(wanted, a.(string))
	}

	if len(wanted) == 0 && s.own != "" {
		wanted = []string{s.own}
	}

	u, ok := s.tokens[spec["token"].(string)]

	audiences := u.audiences
	if len(wanted) > 0 {
		audiences = slices.DeleteFunc(slices.Clone(u.audiences), func(a string) bool { return !slices.Contains(wanted, a) })
	}

	status := map[string]any{}

	switch {
	case !ok:
		status["error"] = "[invalid bearer token, no such token: " + spec["token"].(string) + "]"
	case s.audienceless:
		status = map[string]any{"authenticated": true, "user": map[string]any{"username": u.name, "groups": u.groups}}
	case len(wanted) > 0 && len(audiences) == 0:
		status["error"] = fmt.Sprintf("[invalid bearer token, token audiences %q is invalid for the target audiences %q]",
			u.audiences, wanted)
	default:
		status = map[string]any{"authenticated": true, "audiences": audiences, "user": map[string]any{
			"username": u.name, "uid": "u-1", "groups": u.groups,
			"extra": map[string]any{"authentication.kubernetes.io/pod-name": []string{"p"},
				"authentication.kubernetes.io/credential-id": []string{"JTI=1"}}}}
	}

	review["status"] = status
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(review)
}

func anyList(v any) []any {
	list, _ := v.([]any)
	return list
}

func (s *apiServer) reviewAccess(w http.ResponseWriter, r *http.Request) {
	var review accessReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Kind != "SubjectAccessReview" ||
		review.APIVersion != "authorization.k8s.io/v1" {
		refuse(w, http.StatusBadRequest, "BadRequest", "not a SubjectAccessReview")
		return
	}

	s.reviewing = review.Spec
	at := review.Spec.Resource
	review.Status.Allowed = at.Group == "mig-exporter.io" && at.Resource == "partitions" && at.Name == "node-1" &&
		slices.Contains(s.grants[review.Spec.User], at.Verb)
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(review)
}

// verbs is how many rights are reviewed of each user, in a request each.
const verbs = 7

// reviewCounter counts the users under review: from the request that reviews the token to the end of
// the last one that reviews a right. Users are named as their tokens. It holds each request for a
// while, so that more users than allowed would be under review at once.
type reviewCounter struct {
	mu     sync.Mutex
	left   map[string]int // requests to come for a user under review
	most   int            // users under review at once
	limit  int
	passed chan struct{} // closed when more than limit are
}

// count counts a request. The caller calls the function that it returns when the request ends.
func (c *reviewCounter) count(r *http.Request) (end func()) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))

	var review struct {
		Spec struct{ Token, User string }
	}
	_ = json.Unmarshal(body, &review)

	if review.Spec.Token != "" {
		c.begin(review.Spec.Token)
	}

	select {
	case <-c.passed: // there is nothing more to find out
	case <-time.After(20 * time.Millisecond):
	}

	return func() { c.end(review.Spec.User) }
}

func (c *reviewCounter) begin(user string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.left[user] = verbs
	if len(c.left) <= c.most {
		return
	}

	c.most = len(c.left)
	if c.most == c.limit+1 {
		close(c.passed)
	}
}

func (c *reviewCounter) end(user string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.left[user] == 0 { // the request has reviewed a token
		return
	}

	c.left[user]--
	if c.left[user] == 0 {
		delete(c.left, user)
	}
}

// max returns how many users at most were under review at once.
func (c *reviewCounter) max() int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.most
}

func (s *apiServer) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *apiServer) count(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0

	for _, asked := range s.asked {
		if strings.HasPrefix(asked, method+" ") {
			n++
		}
	}

	return n
}

// clock stands still until it is moved.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func testCluster(t *testing.T, s *apiServer, audiences ...string) (*Cluster, *clock) {
	t.Helper()
	server := httptest.NewUnstartedServer(s)
	server.Config.ErrorLog = stdlog.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	dir := t.TempDir()

	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, content := range map[string]string{"ca.crt": string(ca), "token": ownToken} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	api, err := kubeapi.New(kubeapi.Options{Server: server.URL, CredentialsDir: dir})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(api.Close)
	now := &clock{now: time.Unix(1_800_000_000, 0)}

	c, err := New(Options{API: api, Node: "node-1", Audiences: audiences, Now: now.Now})
	if err != nil {
		t.Fatal(err)
	}

	return c, now
}
