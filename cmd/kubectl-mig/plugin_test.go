package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	reviews "github.com/mig-exporter/mig-exporter/internal/control/cluster"
	"github.com/mig-exporter/mig-exporter/internal/kubeapi"
)

// mainVariable makes the test binary run kubectl mig.
const mainVariable = "KUBECTL_MIG_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		main()
		return
	}

	os.Exit(m.Run())
}

const serverName = "mig-exporter.example"

// authority issues the exporters' certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()

	a := &authority{}
	a.cert, a.key = issue(t, "authority", nil)

	return a
}

// issue makes a certificate for a name, of an authority or, without one, of its own.
func issue(t *testing.T, name string, by *authority) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
	parent := template
	signer := key

	if by == nil {
		template.IsCA = true
		template.BasicConstraintsValid = true
		template.KeyUsage = x509.KeyUsageCertSign
	} else {
		template.DNSNames = []string{name}
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		parent = by.cert
		signer = by.key
	}

	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}

	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}

	return cert, key
}

func (a *authority) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

// agent stands for the exporter of a node: partition control's review of tokens, and an empty list
// of operations. It knows nothing that could be changed.
type agent struct {
	*httptest.Server
	cluster *reviews.Cluster

	mu     sync.Mutex
	tokens []string // as they came
}

// newAgent starts the exporter of a node with a certificate for a name.
func newAgent(t *testing.T, api *fakeAPI, node string, by *authority, name string) *agent {
	t.Helper()

	dir := t.TempDir()
	for file, content := range map[string]string{"ca.crt": string(api.ca()), "token": exporterToken} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	client, err := kubeapi.New(kubeapi.Options{Server: api.server.URL, CredentialsDir: dir})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(client.Close)

	a := &agent{}

	a.cluster, err = reviews.New(reviews.Options{API: client, Node: node, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}

	cert, key := issue(t, name, by)
	a.Server = httptest.NewUnstartedServer(a)
	a.Config.ErrorLog = log.New(io.Discard, "", 0)
	a.EnableHTTP2 = true
	a.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}}
	a.StartTLS()
	t.Cleanup(a.Close)

	return a
}

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.tokens = append(a.tokens, r.Header.Get("Authorization"))
	a.mu.Unlock()

	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")

	actor, err := a.cluster.Actor(r.Context(), token)
	if err != nil || !actor.Rights.Read {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusUnauthorized)
		io.WriteString(w, `{"type":"https://mig-exporter.github.io/problems/unauthenticated","title":"Unauthenticated",
			"status":401,"detail":"no valid credentials"}`)

		return
	}

	if r.Method != http.MethodGet {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, `{"type":"urn:mig-exporter:problem:not-found","title":"Not found","status":404,"detail":"not known"}`)

		return
	}

	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, `{"apiVersion":"mig-exporter/v1","state":"idle","operations":[]}`)
}

func (a *agent) seen() []string {
	a.mu.Lock()
	defer a.mu.Unlock()

	return slices.Clone(a.tokens)
}

func (a *agent) pod(node string) fakePod {
	return fakePod{
		name: "mig-exporter-" + node, node: node, phase: "Running", port: controlPort,
		address: strings.TrimPrefix(a.URL, "https://"),
	}
}

// world is a cluster with two nodes.
type world struct {
	api        *fakeAPI
	by         *authority
	one, two   *agent
	kubeconfig string
}

func newWorld(t *testing.T) *world {
	t.Helper()

	w := &world{api: newFakeAPI(t), by: newAuthority(t)}
	w.one = newAgent(t, w.api, "gpu-01", w.by, serverName)
	w.two = newAgent(t, w.api, "gpu-02", w.by, serverName)
	w.api.pods = []fakePod{w.one.pod("gpu-01"), w.two.pod("gpu-02")}
	w.api.settings = map[string]string{"ca.crt": w.by.pem(), "server-name": serverName}
	w.kubeconfig = w.api.kubeconfig(t, kubeconfigToken)

	return w
}

type outcome struct {
	code     int
	out, err string
}

// run runs kubectl mig as a process of its own.
func (w *world) run(t *testing.T, args ...string) outcome {
	t.Helper()

	return runProgram(t, "kubectl-mig", w.kubeconfig, args...)
}

func runProgram(t *testing.T, name, kubeconfig string, args ...string) outcome {
	t.Helper()

	return runCommand(t, newCommand(t, executable(t), name, kubeconfig, args...))
}

// executable returns the path of the test binary.
func executable(t *testing.T) string {
	t.Helper()

	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	return binary
}

// newCommand returns a command that runs kubectl mig under a name.
func newCommand(t *testing.T, binary, name, kubeconfig string, args ...string) *exec.Cmd {
	t.Helper()

	command := exec.CommandContext(t.Context(), binary, args...)
	command.Args[0] = name
	command.Env = append(os.Environ(), mainVariable+"=1", "KUBECONFIG="+kubeconfig, "LANG=C.UTF-8")

	return command
}

func runCommand(t *testing.T, command *exec.Cmd) outcome {
	t.Helper()

	var out, errOut bytes.Buffer
	command.Stdout = &out
	command.Stderr = &errOut

	var exit *exec.ExitError
	if err := command.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}

	return outcome{command.ProcessState.ExitCode(), out.String(), errOut.String()}
}

// flat undoes the breaking of lines.
func flat(s string) string { return strings.Join(strings.Fields(s), " ") }

// TestOneNode: over websocket and over SPDY, with a token for the node alone and of the account that
// the command needs.
func TestOneNode(t *testing.T) {
	w := newWorld(t)

	for _, over := range []string{"websocket", "SPDY"} {
		w.api.set(func() { w.api.refuseWS = over == "SPDY" })

		got := w.run(t, "operations", "gpu-01", "-o", "json")
		if got.code != 0 || got.err != "" {
			t.Errorf("%s: exit code %d: %s", over, got.code, got.err)
		}

		cmptest.HasTexts(t, got.out, `"operations": []`)
	}

	cmptest.Equal(t, "tokens at gpu-01", w.one.seen(), slices.Repeat(
		[]string{"Bearer " + jwt("mig-exporter-kubectl-get", "mig-exporter/gpu-01")}, 2))
	cmptest.Equal(t, "tokens at gpu-02", len(w.two.seen()), 0)
}

// TestTokenOfAnotherNode: a token for node gpu-01 is of no use at gpu-02, nor is the operator's own.
func TestTokenOfAnotherNode(t *testing.T) {
	w := newWorld(t)

	if got := w.run(t, "operations", "gpu-01"); got.code != 0 {
		t.Fatal(got.err)
	}

	token := strings.TrimPrefix(w.one.seen()[0], "Bearer ")
	if _, err := w.one.cluster.Actor(t.Context(), token); err != nil {
		t.Errorf("gpu-01 refuses its own token: %v", err)
	}

	for _, token := range []string{token, kubeconfigToken} {
		if actor, err := w.two.cluster.Actor(t.Context(), token); err == nil {
			t.Errorf("gpu-02 takes %q for %+v", token, actor)
		}
	}
}

// TestWrongCertificate: what cannot prove that it is the exporter sees no token, and none is asked
// for.
func TestWrongCertificate(t *testing.T) {
	w := newWorld(t)

	for name, impostor := range map[string]*agent{
		"another authority": newAgent(t, w.api, "gpu-01", newAuthority(t), serverName),
		"another name":      newAgent(t, w.api, "gpu-01", w.by, "other.example"),
	} {
		w.api.set(func() { w.api.pods = []fakePod{impostor.pod("gpu-01")} })
		w.api.requests()

		got := w.run(t, "operations", "gpu-01")
		if got.code != 3 {
			t.Errorf("%s: exit code %d: %s", name, got.code, got.out)
		}

		cmptest.HasTexts(t, flat(got.err), "does not prove that it is the exporter", serverName)
		cmptest.Equal(t, name+": tokens seen", len(impostor.seen()), 0)

		if asked := w.api.requests(); slices.Contains(asked, "create serviceaccounts/token") {
			t.Errorf("%s: a token was asked for: %v", name, asked)
		}
	}
}

// TestMissingRights: each right that is missing is named.
func TestMissingRights(t *testing.T) {
	for _, c := range []struct {
		forbidden []string
		want      string
	}{
		{[]string{"get configmaps"}, "you may not get configmaps mig-exporter-kubectl in namespace mig-exporter"},
		{[]string{"list pods"}, "you may not list pods in namespace mig-exporter"},
		{
			[]string{"get pods/portforward", "create pods/portforward"},
			"you may not get and create pods/portforward mig-exporter-gpu-01 in namespace mig-exporter",
		},
		{
			[]string{"create serviceaccounts/token"},
			"you may not create serviceaccounts/token mig-exporter-kubectl-get in namespace mig-exporter",
		},
	} {
		w := newWorld(t)
		for _, right := range c.forbidden {
			w.api.forbidden[right] = true
		}

		got := w.run(t, "operations", "gpu-01")
		if got.code != 3 {
			t.Errorf("without %v: exit code %d", c.forbidden, got.code)
		}

		cmptest.HasTexts(t, flat(got.err), "cannot reach node gpu-01: "+c.want, rightsDocs)
	}
}

// TestNotThere: no exporter, several, one that does not run, no port, no ConfigMap, no account.
func TestNotThere(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		args   []string
		want   string
	}{
		"no pod":       {func(w *world) { w.api.pods = nil }, nil, "no pod in namespace mig-exporter"},
		"pending":      {func(w *world) { w.api.pods[0].phase = "Pending" }, nil, "mig-exporter-gpu-01 is Pending"},
		"no port":      {func(w *world) { w.api.pods[0].port = "metrics" }, nil, "has no port named control"},
		"no ConfigMap": {func(w *world) { w.api.settings = nil }, nil, "there is no ConfigMap mig-exporter-kubectl"},
		"no authority": {func(w *world) { w.api.settings["ca.crt"] = "" }, nil, "ca.crt has no certificate"},
		"no name":      {func(w *world) { w.api.settings["server-name"] = "" }, nil, "server-name is empty"},
		"no account":   {func(w *world) { w.api.grants = nil }, nil, "there is no service account mig-exporter-kubectl-get"},
		"another namespace": {
			func(*world) {}, []string{"--namespace=elsewhere"}, "you may not get configmaps mig-exporter-kubectl in namespace elsewhere",
		},
		"two pods": {func(w *world) {
			second := w.api.pods[0]
			second.name = "other"
			w.api.pods = append(w.api.pods, second)
		}, nil, "2 exporters run there"},
		"nothing listens": {func(w *world) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err == nil {
				w.api.pods[0].address = l.Addr().String()
				l.Close()
			}
		}, nil, "failed to connect to localhost:9402"},
	} {
		w := newWorld(t)
		c.change(w)

		got := w.run(t, append(c.args, "operations", "gpu-01")...)
		if got.code != 3 {
			t.Errorf("%s: exit code %d: %s", name, got.code, got.out)
		}

		cmptest.HasTexts(t, flat(got.err), c.want)
	}
}

// TestAll: the nodes that answer are shown, the exit code says that others did not.
func TestAll(t *testing.T) {
	w := newWorld(t)

	got := w.run(t, "operations", "--all")
	if got.code != 0 {
		t.Fatalf("exit code %d: %s", got.code, got.err)
	}

	cmptest.HasTexts(t, got.out, "==> gpu-01\n", "==> gpu-02\n")

	w.api.set(func() { w.api.pods[1].phase = "Failed" })

	got = w.run(t, "operations", "gpu-02,gpu-01", "-o", "json")
	cmptest.Equal(t, "exit code", got.code, 7)

	var document struct {
		Nodes []struct {
			Node     string          `json:"node"`
			ExitCode int             `json:"exitCode"`
			Error    string          `json:"error"`
			Document json.RawMessage `json:"document"`
		} `json:"nodes"`
	}
	if err := json.Unmarshal([]byte(got.out), &document); err != nil || len(document.Nodes) != 2 {
		t.Fatalf("%v: %s", err, got.out)
	}

	one, two := document.Nodes[0], document.Nodes[1]
	if one.Node != "gpu-01" || one.ExitCode != 0 || one.Error != "" || len(one.Document) == 0 {
		t.Errorf("gpu-01: %+v", one)
	}

	if two.Node != "gpu-02" || two.ExitCode != 3 || !strings.Contains(two.Error, "is Failed") || two.Document != nil {
		t.Errorf("gpu-02: %+v", two)
	}

	got = w.run(t, "operations", "--all")
	cmptest.Equal(t, "exit code", got.code, 7)
	cmptest.HasTexts(t, got.err, "==> gpu-02\n", "1 of 2 nodes failed.")

	w.api.set(func() { w.api.pods[0].phase = "Failed" })
	cmptest.Equal(t, "exit code if all fail", w.run(t, "operations", "--all").code, 3)
}

// TestCommandLines: what is refused before anything is asked.
func TestCommandLines(t *testing.T) {
	w := newWorld(t)

	for line, want := range map[string]string{
		"get":                                   "the node is missing",
		"get gpu-01 --all":                      "expected one of them",
		"apply --all --layout x":                "apply works on one node at a time",
		"top --all":                             "top works on one node at a time",
		"get --all --watch":                     "--watch and --follow work on one node",
		"get --all --parallel=0":                "expected 1 or more",
		"get gpu-01 --address=unix:///s":        "unknown long flag",
		"get gpu-01 --insecure-skip-tls-verify": "unknown long flag",
		"fleet":                                 "expected command",
		"rollback":                              "the node is missing",
		"rollback gpu-01":                       "the operation is missing",
		"apply gpu-01 --layout x --evict":       "--evict is for runs over many nodes",
		"get gpu-01 --evict":                    "unknown long flag",
		"apply -f none.yaml":                    "none.yaml: no such file",
		"apply --resume r -f fleet.yaml":        "give neither -f nor a node",
		"apply --resume r gpu-01":               "give neither -f nor a node",
		"apply --resume r --evict":              "--evict: a run keeps the flags that it was begun with",
		"apply -f f.yaml --max-unavailable=0":   `--max-unavailable is "0"; expected 1 or more`,
		"apply -f f.yaml --node-timeout=5":      `--node-timeout is "5"; expected a duration`,
		"apply -f f.yaml --pod-selector=a=(":    `--pod-selector is "a=("; expected labels`,
		"apply -f f.yaml --force MIG-1":         "give no --gpus, --devices, --demand, --layout, --force",
		"apply -f f.yaml --force":               "expected argument",
		"apply -f f.yaml -o json":               "has no document",
		"rollback --run r a b":                  "expected the nodes as one argument",
		"rollback --run r --all":                "leave --all out",
	} {
		got := w.run(t, strings.Fields(line)...)
		if got.code != 2 {
			t.Errorf("%s: exit code %d: %s", line, got.code, got.out)
		}

		cmptest.HasTexts(t, flat(got.err), want)
	}

	cmptest.Equal(t, "requests", w.api.requests(), nil)
}

// TestFleetFiles: without a node, -f is the file of a fleet, from standard input as well. Values of
// flags are no commands.
func TestFleetFiles(t *testing.T) {
	w := newWorld(t)

	for _, c := range []struct {
		args, in string
		code     int
		want     string
	}{
		{"plan -f -", "layout: all-balanced\n", 2, "-: expected a file of the kind Fleet"},
		{"plan -f -", "apiVersion: mig-exporter/v1\nkind: Fleet\nentries: []\n", 2, "entries"},
		{"plan -f -", "apiVersion: mig-exporter/v1\nkind: Fleet\nentries: [{node: gpu-07, spec: {layout: x}}]\n", 1,
			"entries[0] (node gpu-07): there is no such node"},
		{"--config-map runs plan gpu-01 -f -", "layout: x\n", 3, "there is no ConfigMap runs"},
		{"runs", "", 0, "No runs yet."},
		{"runs -o json", "", 0, `"runs": null`},
		{"runs mig-1", "", 1, "there is no run mig-1"},
		{"apply --resume mig-1", "", 1, "there is no run mig-1"},
		{"rollback --run mig-1", "", 1, "there is no run mig-1"},
	} {
		command := newCommand(t, executable(t), "kubectl-mig", w.kubeconfig, strings.Fields(c.args)...)
		command.Stdin = strings.NewReader(c.in)

		got := runCommand(t, command)
		cmptest.Equal(t, c.args+": exit code", got.code, c.code)
		cmptest.HasTexts(t, flat(got.out+got.err), c.want)
	}

	got := w.run(t, "--help")
	cmptest.HasTexts(t, got.out, "runs [<flags>] [<run>]", "3 the server cannot be reached")
	cmptest.HasTexts(t, w.run(t, "apply", "--help").out, "Runs over many nodes:", "--resume=RUN", "eviction-force")
}

// TestUnreachableCluster: the exit code is 3, whatever is asked.
func TestUnreachableCluster(t *testing.T) {
	w := newWorld(t)
	w.api.server.Close()

	file := filepath.Join(t.TempDir(), "fleet.yaml")
	if err := os.WriteFile(file, []byte(fleetFile), 0o600); err != nil {
		t.Fatal(err)
	}

	for _, args := range [][]string{
		{"get", "gpu-01"}, {"get", "--all"}, {"runs"}, {"plan", "-f", file}, {"apply", "--resume=r"},
		{"rollback", "--run=r"},
	} {
		got := w.run(t, args...)
		cmptest.Equal(t, args[0]+": exit code", got.code, 3)
		cmptest.HasTexts(t, flat(got.err), "cannot reach", "connection refused")
	}

	got := runProgram(t, "kubectl-mig", filepath.Join(t.TempDir(), "none"), "runs")
	cmptest.Equal(t, "exit code without a kubeconfig", got.code, 3)

	// What is wrong here is said first.
	got = w.run(t, "plan", "-f", "none.yaml")
	cmptest.Equal(t, "exit code without the file", got.code, 2)
}

// TestMissingRightsOfRuns: each right that is missing is named.
func TestMissingRightsOfRuns(t *testing.T) {
	file := filepath.Join(t.TempDir(), "fleet.yaml")
	if err := os.WriteFile(file, []byte(fleetFile), 0o600); err != nil {
		t.Fatal(err)
	}

	for right, args := range map[string][]string{
		"list nodes":      {"plan", "-f", file},
		"list configmaps": {"runs"},
		"get configmaps":  {"runs", "mig-1"},
	} {
		w := newWorld(t)
		w.api.forbidden[right] = true

		got := w.run(t, args...)
		cmptest.Equal(t, "exit code without "+right, got.code, 3)
		cmptest.HasTexts(t, flat(got.err), "you may not "+right, "docs/kubectl-mig-runs.md#rights")
	}
}

// TestUnreachableNodesOfAPlan: a node that cannot be asked has not refused its layout. The exit code is
// 3.
func TestUnreachableNodesOfAPlan(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		want   string
	}{
		"no exporter": {func(w *world) { w.api.pods = w.api.pods[1:] }, "no pod in namespace mig-exporter"},
		"no right to its token": {func(w *world) { w.api.forbidden["create serviceaccounts/token"] = true },
			"you may not create serviceaccounts/token"},
		"no certificate": {func(w *world) {
			w.api.pods = []fakePod{newAgent(t, w.api, "gpu-01", w.by, "other.example").pod("gpu-01")}
		}, "does not prove that it is the exporter"},
	} {
		w := newWorld(t)
		c.change(w)
		w.api.objects.Lock()
		w.api.objects.Put("/api/v1/nodes/gpu-01", map[string]any{"kind": "Node", "apiVersion": "v1"})
		w.api.objects.Unlock()

		file := filepath.Join(t.TempDir(), "fleet.yaml")
		text := "apiVersion: mig-exporter/v1\nkind: Fleet\nentries: [{node: gpu-01, spec: {layout: x}}]\n"

		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		for _, command := range []string{"plan", "apply"} {
			got := w.run(t, command, "-f", file)
			cmptest.Equal(t, name+", "+command+": exit code", got.code, 3)
			cmptest.HasTexts(t, flat(got.out), "not known: ")
			cmptest.HasTexts(t, flat(got.err), "cannot reach node gpu-01: ", c.want)
		}
	}
}

// TestPrefix: the commands that are printed reach the same nodes, and have no secret.
func TestPrefix(t *testing.T) {
	p := newPlugin()

	app := kingpin.New("kubectl mig", "")
	p.flags.declare(app)
	app.Command("get", "")

	if _, err := app.Parse([]string{
		"--cluster=prod", "--as=ann", "--as-group=a b", "--as-group=c", "--token=secret", "-n", "gpu", "get",
	}); err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "the prefix", p.flags.prefix(),
		"kubectl mig --as=ann '--as-group=a b' --as-group=c --cluster=prod --namespace=gpu")
}

// TestCompletion: kubectl's protocol, with the names of nodes.
func TestCompletion(t *testing.T) {
	w := newWorld(t)

	got := runProgram(t, completer, w.kubeconfig, "get", "")
	cmptest.HasTexts(t, got.out, "gpu-01", "gpu-02")

	if !strings.HasSuffix(got.out, "\n:4\n") {
		t.Errorf("the directive is missing: %q", got.out)
	}

	got = runProgram(t, completer, w.kubeconfig, "pla")
	cmptest.HasTexts(t, got.out, "plan")
}
