package charttest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// apiServer is a kube-apiserver of its own, with an etcd, and its administrator's token.
type apiServer struct {
	url, token string
	client     *http.Client
}

// startAPIServer starts both programs and stops them with the test. CHARTTEST_BINARIES is the
// folder of kube-apiserver.
func startAPIServer(t *testing.T) *apiServer {
	t.Helper()

	binaries := os.Getenv("CHARTTEST_BINARIES")
	if binaries == "" {
		t.Skip("NOT TESTED: no API server; run: make test-chart-apiserver")
	}

	dir := t.TempDir()
	ports := freePorts(t, 3)
	etcd := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	start(t, dir, "etcd", "etcd", "--data-dir="+dir+"/etcd", "--listen-client-urls="+etcd,
		"--advertise-client-urls="+etcd, fmt.Sprintf("--listen-peer-urls=http://127.0.0.1:%d", ports[1]))
	key := filepath.Join(dir, "service-accounts.key")
	writePrivate(t, key, signingKey(t))
	token := rand.Text()
	writePrivate(t, filepath.Join(dir, "tokens"), []byte(token+",admin,admin,system:masters\n"))
	start(t, dir, "kube-apiserver", filepath.Join(binaries, "kube-apiserver"), "--etcd-servers="+etcd,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[2]), "--cert-dir="+dir+"/certificates",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key,
		"--service-account-signing-key-file="+key, "--service-cluster-ip-range=10.0.0.0/24",
		"--authorization-mode=RBAC", "--token-auth-file="+dir+"/tokens", "--allow-privileged=true",
		// There is no controller that makes the service account of a namespace.
		"--disable-admission-plugins=ServiceAccount")
	s := &apiServer{
		url: fmt.Sprintf("https://127.0.0.1:%d", ports[2]), token: token,
		client: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
			// The server has made its certificate itself a moment ago, in the test's folder.
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // a test's own server on loopback
		}},
	}
	s.await(t, func() error { return s.send(t.Context(), http.MethodGet, "/readyz", "", nil) })

	return s
}

// freePorts returns ports that are free now. It takes all of them before it gives one back, so that
// none comes twice.
func freePorts(t *testing.T, count int) []int {
	t.Helper()
	var listeners []net.Listener

	for range count {
		var config net.ListenConfig

		listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}

		listeners = append(listeners, listener)
	}

	var ports []int
	for _, listener := range listeners {
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
	}

	return ports
}

// start runs a program until the end of the test, which shows its log if it fails.
func start(t *testing.T, dir, name, program string, args ...string) {
	t.Helper()

	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		t.Fatal(err)
	}

	command := exec.CommandContext(context.WithoutCancel(t.Context()), program, args...)

	command.Stdout = log

	command.Stderr = log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()

		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("end of %s:\n%s", log.Name(), text[max(0, len(text)-1000):])
		}

		_ = log.Close()
	})
}

func writePrivate(t *testing.T, path string, text []byte) {
	t.Helper()

	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// signingKey returns a new key for the tokens of service accounts.
func signingKey(t *testing.T) []byte {
	t.Helper()

	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}

	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
}

// await repeats check until it succeeds, for two minutes at most.
func (s *apiServer) await(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()

	for {
		err := check()
		if err == nil {
			return
		}

		if time.Now().After(deadline) {
			t.Fatal(err)
		}

		<-ticker.C
	}
}

// send returns an error with the server's reason unless it answers with success.
func (s *apiServer) send(ctx context.Context, method, path, contentType string, body []byte) error {
	_, err := s.exchange(ctx, method, path, contentType, body)
	return err
}

// read sends an object, if it is not nil, and decodes the answer.
func (s *apiServer) read(t *testing.T, method, path string, o object, answer any) {
	t.Helper()

	body, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}

	text, err := s.exchange(t.Context(), method, path, "application/json", body)
	if err == nil {
		err = json.Unmarshal(text, answer)
	}

	if err != nil {
		t.Fatal(err)
	}
}

// exchange returns the answer to a request, and an error as send does.
func (s *apiServer) exchange(
	ctx context.Context, method, path, contentType string, body []byte,
) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}

	request.Header.Set("Authorization", "Bearer "+s.token)
	request.Header.Set("Content-Type", contentType)

	reply, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()

	text, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode >= http.StatusMultipleChoices {
		err = errors.New(reason(text))
	}

	if warnings := reply.Header.Values("Warning"); err == nil && len(warnings) > 0 {
		err = fmt.Errorf("warnings: %q", warnings)
	}

	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}

	return text, nil
}

// reason returns the message of a Status.
func reason(text []byte) string {
	var status struct{ Message string }
	if json.Unmarshal(text, &status) == nil && status.Message != "" {
		return status.Message
	}

	return string(text)
}

// apply sends an object as `kubectl apply --server-side --validate=strict` does; without dryRun the
// server keeps it.
func (s *apiServer) apply(t *testing.T, o object, dryRun bool) error {
	t.Helper()

	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}

	query := "?fieldManager=chart&force=true&fieldValidation=Strict"
	if dryRun {
		query += "&dryRun=All"
	}

	return s.send(t.Context(), http.MethodPatch, pathOf(t, o)+query, "application/apply-patch+yaml", text)
}

// createNamespaces creates the release's namespace and that of the GPU operator, where the chart
// gives rights, too.
func (s *apiServer) createNamespaces(t *testing.T) {
	t.Helper()

	for _, name := range []string{namespace, "gpu-operator"} {
		o := object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": name}}
		if err := s.apply(t, o, false); err != nil {
			t.Fatal(err)
		}
	}
}

// pathOf returns the path of an object at the API server.
func pathOf(t *testing.T, o object) string {
	t.Helper()
	resources := map[string]string{
		"DaemonSet": "daemonsets", "ServiceAccount": "serviceaccounts", "Service": "services", "ConfigMap": "configmaps",
		"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings", "Pod": "pods",
		"Role": "roles", "RoleBinding": "rolebindings", "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
		"ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings", "NetworkPolicy": "networkpolicies", "ServiceMonitor": "servicemonitors", "PodMonitor": "podmonitors",
		"PrometheusRule": "prometheusrules", "SecurityContextConstraints": "securitycontextconstraints",
		"Namespace": "namespaces", "RuntimeClass": "runtimeclasses", "CustomResourceDefinition": "customresourcedefinitions",
	}

	resource, known := resources[o["kind"].(string)]
	if !known {
		t.Fatalf("%s: add its resource here", describe(o))
	}

	path := "/apis/" + o["apiVersion"].(string)
	if !strings.Contains(path[len("/apis/"):], "/") {
		path = "/api/" + o["apiVersion"].(string)
	}

	if in, ok := at(o, "metadata", "namespace").(string); ok {
		path += "/namespaces/" + in
	}

	return path + "/" + resource + "/" + at(o, "metadata", "name").(string)
}
