package main

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/mig-exporter/mig-exporter/cmd/kubectl-mig/internal/apifake"
)

const (
	namespace       = defaultNamespace
	kubeconfigToken = "the-operator's"
	secondToken     = "another-operator's"
	exporterToken   = "the-exporter's"
)

// fakeAPI answers as a Kubernetes API server does, to an operator and to exporters: what the
// operator's rights do not allow gets 403, and a port-forward reaches what stands for a pod.
type fakeAPI struct {
	server  *httptest.Server
	objects *apifake.Server // nodes, and what runs keep

	mu        sync.Mutex
	forbidden map[string]bool // "<verb> <resource>" that the operator may not
	pods      []fakePod
	settings  map[string]string // of the ConfigMap; nil: there is none
	grants    map[string][]string
	asked     []string // "<verb> <resource>" of the operator
	issued    map[string]string
	refuseWS  bool // it speaks no websocket
	lifetime  int64
}

// fakePod is a pod of an exporter; connections to its port go to address.
type fakePod struct {
	name, node, address, phase string
	port                       string // its name
}

func newFakeAPI(t *testing.T) *fakeAPI {
	t.Helper()

	s := &fakeAPI{
		objects:   apifake.New(),
		forbidden: map[string]bool{},
		issued:    map[string]string{},
		grants: map[string][]string{
			"mig-exporter-kubectl-get":   {"get"},
			"mig-exporter-kubectl-plan":  {"get", "plan"},
			"mig-exporter-kubectl-apply": {"get", "plan", "apply"},
		},
	}
	s.server = httptest.NewUnstartedServer(s)
	s.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.server.StartTLS()
	t.Cleanup(s.server.Close)

	return s
}

func (s *fakeAPI) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw})
}

// kubeconfig writes a kubeconfig file for the operator with a token, and returns its path.
func (s *fakeAPI) kubeconfig(t *testing.T, token string) string {
	t.Helper()

	path := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`
apiVersion: v1
kind: Config
current-context: prod
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {token: %q}}]
contexts:
- {name: prod, context: {cluster: c, user: u, namespace: ml}} # where the operator's own work is
`, s.server.URL, base64.StdEncoding.EncodeToString(s.ca()), token)

	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}

func (s *fakeAPI) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// requests returns what the operator asked, and forgets it.
func (s *fakeAPI) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()

	asked := s.asked
	s.asked = nil

	return asked
}

func status(w http.ResponseWriter, code int, reason, message string) {
	answer(w, code, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
		"reason": reason, "message": message})
}

func answer(w http.ResponseWriter, code int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(document)
}

func (s *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Header.Get("Authorization") {
	case "Bearer " + exporterToken:
		s.review(w, r)
		return
	case "Bearer " + kubeconfigToken, "Bearer " + secondToken:
	default:
		status(w, http.StatusUnauthorized, "Unauthorized", "Unauthorized")
		return
	}

	q := parseRequest(r)

	s.mu.Lock()
	s.asked = append(s.asked, q.right)
	forbidden := s.forbidden[q.right]
	s.mu.Unlock()

	if forbidden || q.namespace != "" && q.namespace != namespace {
		status(w, http.StatusForbidden, "Forbidden", fmt.Sprintf("User %q cannot %s", "ann", q.right))
		return
	}

	switch q.right {
	case "list pods":
		s.listPods(w, r)
	case "create serviceaccounts/token":
		s.createToken(w, r, q.name)
	case "get pods/portforward", "create pods/portforward":
		s.forward(w, r, q.name)
	default:
		if q.right == "get configmaps" && s.getConfigMap(w, q.name) {
			return
		}

		s.objects.ServeHTTP(w, r)
	}
}

// apiRequest is a request of the API server.
type apiRequest struct {
	right           string // "<verb> <resource>"
	namespace, name string
}

func parseRequest(r *http.Request) apiRequest {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if parts[0] == "apis" {
		parts = parts[1:] // the group
	}

	parts = parts[2:]
	q := apiRequest{}

	if parts[0] == "namespaces" {
		q.namespace = parts[1]
		parts = parts[2:]
	}

	verb := map[string]string{
		http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch",
	}[r.Method]

	if verb == "get" && len(parts) == 1 {
		verb = "list"
	}

	if len(parts) > 1 {
		q.name = parts[1]
	}

	q.right = verb + " " + parts[0]
	if len(parts) > 2 {
		q.right += "/" + parts[2]
	}

	return q
}

// getConfigMap answers with the settings, if these are asked for.
func (s *fakeAPI) getConfigMap(w http.ResponseWriter, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.settings == nil || name != defaultConfigMap {
		return false
	}

	answer(w, http.StatusOK, map[string]any{"kind": "ConfigMap", "apiVersion": "v1",
		"metadata": map[string]any{"name": name}, "data": s.settings})

	return true
}

func (s *fakeAPI) listPods(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()

	items := []any{}
	node, one := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "spec.nodeName=")

	for _, p := range s.pods {
		if one && p.node != node || r.URL.Query().Get("labelSelector") != defaultSelector {
			continue
		}

		items = append(items, map[string]any{
			"metadata": map[string]any{"name": p.name, "namespace": namespace},
			"spec": map[string]any{"nodeName": p.node, "containers": []any{map[string]any{
				"name": "mig-exporter", "ports": []any{map[string]any{"name": p.port, "containerPort": 9402}},
			}}},
			"status": map[string]any{"phase": p.phase},
		})
	}

	answer(w, http.StatusOK, map[string]any{"kind": "PodList", "apiVersion": "v1", "items": items})
}

// jwt returns the token of an account for an audience. It is one in form alone.
func jwt(account, audience string) string {
	claims := fmt.Sprintf(`{"aud":[%q],"sub":%q}`, audience, account)
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

func (s *fakeAPI) createToken(w http.ResponseWriter, r *http.Request, account string) {
	var request struct {
		Spec struct {
			Audiences         []string `json:"audiences"`
			ExpirationSeconds int64    `json:"expirationSeconds"`
		} `json:"spec"`
	}
	if json.NewDecoder(r.Body).Decode(&request) != nil || len(request.Spec.Audiences) != 1 ||
		request.Spec.ExpirationSeconds < 600 {
		status(w, http.StatusBadRequest, "BadRequest", "not a TokenRequest")
		return
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	if s.grants[account] == nil {
		status(w, http.StatusNotFound, "NotFound", fmt.Sprintf("serviceaccounts %q not found", account))
		return
	}

	seconds := request.Spec.ExpirationSeconds
	if s.lifetime > 0 {
		seconds = s.lifetime
	}

	token := jwt(account, request.Spec.Audiences[0])
	s.issued[token] = account
	answer(w, http.StatusCreated, map[string]any{"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
		"spec":   map[string]any{"audiences": request.Spec.Audiences, "expirationSeconds": seconds},
		"status": map[string]any{"token": token, "expirationTimestamp": "2026-11-25T12:00:00Z"}})
}

// review answers an exporter.
func (s *fakeAPI) review(w http.ResponseWriter, r *http.Request) {
	var review map[string]any
	_ = json.NewDecoder(r.Body).Decode(&review)
	spec, _ := review["spec"].(map[string]any)

	s.mu.Lock()
	defer s.mu.Unlock()

	if strings.HasSuffix(r.URL.Path, "/subjectaccessreviews") {
		at, _ := spec["resourceAttributes"].(map[string]any)
		user, _ := spec["user"].(string)
		verb, _ := at["verb"].(string)
		account := user[strings.LastIndex(user, ":")+1:]
		review["status"] = map[string]any{"allowed": slices.Contains(s.grants[account], verb)}
		answer(w, http.StatusCreated, review)

		return
	}

	token, _ := spec["token"].(string)
	account, known := s.issued[token]
	wanted, _ := spec["audiences"].([]any)

	review["status"] = map[string]any{"authenticated": false, "error": "token audiences are invalid"}
	if known && len(wanted) == 1 && token == jwt(account, fmt.Sprint(wanted[0])) {
		review["status"] = map[string]any{"authenticated": true, "audiences": wanted, "user": map[string]any{
			"username": "system:serviceaccount:" + namespace + ":" + account}}
	}

	answer(w, http.StatusCreated, review)
}

// forward serves a port-forward over a websocket or SPDY.
func (s *fakeAPI) forward(w http.ResponseWriter, r *http.Request, pod string) {
	s.mu.Lock()
	at := slices.IndexFunc(s.pods, func(p fakePod) bool { return p.name == pod })
	refuse := s.refuseWS
	s.mu.Unlock()

	if at < 0 {
		status(w, http.StatusNotFound, "NotFound", fmt.Sprintf("pods %q not found", pod))
		return
	}

	streams := make(chan httpstream.Stream)
	accept := func(stream httpstream.Stream, _ <-chan struct{}) error {
		streams <- stream
		return nil
	}

	var conn httpstream.Connection

	if r.Method == http.MethodGet {
		if refuse {
			http.Error(w, "no websockets", http.StatusBadGateway)
			return
		}

		upgrader := websocket.Upgrader{
			Subprotocols: []string{"SPDY/3.1+" + portforward.PortForwardProtocolV1Name},
		}

		ws, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}

		if conn, err = spdy.NewServerConnection(portforward.NewTunnelingConnection("server", ws), accept); err != nil {
			return
		}
	} else {
		w.Header().Set(httpstream.HeaderProtocolVersion, portforward.PortForwardProtocolV1Name)

		if conn = spdy.NewResponseUpgrader().UpgradeResponse(w, r, accept); conn == nil {
			return
		}
	}

	defer conn.Close()

	s.mu.Lock()
	address := s.pods[at].address
	s.mu.Unlock()

	var failures httpstream.Stream

	for {
		select {
		case <-conn.CloseChan():
			return
		case stream := <-streams:
			if stream.Headers().Get(corev1.StreamType) == corev1.StreamTypeError {
				failures = stream
				continue
			}

			go pipe(stream, failures, address)
		}
	}
}

func pipe(stream, failures httpstream.Stream, address string) {
	defer failures.Close()
	defer stream.Close()

	target, err := net.Dial("tcp", address)
	if err != nil {
		fmt.Fprintf(failures, "failed to connect to localhost:9402 inside namespace: %v", err)
		return
	}
	defer target.Close()

	go func() {
		io.Copy(target, stream)
		target.Close()
	}()

	io.Copy(stream, target)
}
