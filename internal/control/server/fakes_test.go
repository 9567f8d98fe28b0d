package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/control"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const gpu0 = gpu.UUID("GPU-5d2c1f3a-8a6e-4a57-9f0e-1f8b1a2c3d40")

// fakeBackend answers from fields and records the callers and their calls.
type fakeBackend struct {
	mu     sync.Mutex
	calls  []string
	actors []control.Actor
	err    error
	block  chan struct{} // Start waits for it
	inside chan struct{} // Start says that it waits
	events chan api.Event
	// planning, if not nil, is what Plan does first.
	planning func(context.Context, control.Actor) error
	ctx      context.Context // of Events
	after    int
}

func (e *fakeBackend) note(call string, by control.Actor) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, call)
	e.actors = append(e.actors, by)

	return e.err
}

func (e *fakeBackend) called() int {
	e.mu.Lock()
	defer e.mu.Unlock()

	return len(e.calls)
}

func (e *fakeBackend) Plan(ctx context.Context, by control.Actor, r api.PlanRequest) (*api.Plan, error) {
	if e.planning != nil {
		if err := e.planning(ctx, by); err != nil {
			return nil, err
		}
	}

	if err := e.note("plan", by); err != nil {
		return nil, err
	}

	return &api.Plan{APIVersion: api.Version, ID: "plan-1", Hash: "h", Forced: r.Force}, nil
}

func (e *fakeBackend) PlanByID(id string) (*api.Plan, error) {
	switch id {
	case "plan-1":
		return &api.Plan{APIVersion: api.Version, ID: id, Hash: "h"}, nil
	case "forced":
		return &api.Plan{APIVersion: api.Version, ID: id, Hash: "h", Forced: []string{"MIG-1"}}, nil
	case "taking-over":
		return &api.Plan{APIVersion: api.Version, ID: id, Hash: "h", TakeOver: true}, nil
	}

	return nil, &api.Problem{Type: api.NotFound, Title: "No such plan", Status: 404}
}

func (e *fakeBackend) Layouts(context.Context) (*api.NamedLayouts, error) {
	return &api.NamedLayouts{APIVersion: api.Version}, e.note("layouts", control.Actor{})
}

func (e *fakeBackend) Start(_ context.Context, by control.Actor, r api.OperationRequest) (*api.Operation, error) {
	if e.block != nil {
		e.inside <- struct{}{}
		<-e.block
	}

	if err := e.note("start", by); err != nil {
		return nil, err
	}

	if _, err := e.PlanByID(r.Plan); err != nil {
		return nil, err
	}

	if r.Hash != "h" {
		return nil, &api.Problem{Type: api.StalePlan, Title: "The node has changed", Status: 409}
	}

	return &api.Operation{APIVersion: api.Version, ID: fmt.Sprintf("op-%d", e.called()), State: api.Pending}, nil
}

func (e *fakeBackend) Rollback(_ context.Context, by control.Actor, id string) (*api.Operation, error) {
	return &api.Operation{ID: "op-back-" + id}, e.note("rollback "+id, by)
}

func (e *fakeBackend) Accept(_ context.Context, by control.Actor, id string) (*api.Operation, error) {
	return &api.Operation{ID: id, State: api.Accepted}, e.note("accept "+id, by)
}

func (e *fakeBackend) EndSettling(_ context.Context, by control.Actor, id string) (*api.Operation, error) {
	return &api.Operation{ID: id, State: api.Settling}, e.note("settled "+id, by)
}

func (e *fakeBackend) ConfirmFree(_ context.Context, by control.Actor, device string) (*api.Confirmation, error) {
	if err := e.note("confirm "+device, by); err != nil {
		return nil, err
	}

	return &api.Confirmation{APIVersion: api.Version, Device: device, Note: "for now",
		Confirmed: []api.UnconfirmedHolder{{Namespace: "ml", Pod: "train-0", Container: "main", Reason: "r"}}}, nil
}

func (e *fakeBackend) SetMode(_ context.Context, by control.Actor, id gpu.UUID,
	r api.ModeRequest) (*api.Operation, error) {
	return &api.Operation{ID: "op-mode"}, e.note(fmt.Sprintf("mode %s %t", id, r.Enabled), by)
}

func (e *fakeBackend) Restore(_ context.Context, by control.Actor, id gpu.UUID,
	r api.RestoreRequest) (*api.Operation, error) {
	return &api.Operation{ID: "op-restore"}, e.note(fmt.Sprintf("restore %s %t", id, r.TakeOver), by)
}

func (e *fakeBackend) ForgetLayout(_ context.Context, by control.Actor, id gpu.UUID) (*api.ForgottenLayout, error) {
	return &api.ForgottenLayout{APIVersion: api.Version, GPU: id}, e.note("forget "+string(id), by)
}

func (e *fakeBackend) Operation(id string) (*api.Operation, error) {
	if id == "panic" {
		panic("index out of range at /usr/src/secret.go")
	}

	return &api.Operation{ID: id}, e.note("operation", control.Actor{})
}

func (e *fakeBackend) Operations() *api.Operations {
	_ = e.note("operations", control.Actor{})

	return &api.Operations{APIVersion: api.Version, State: "idle",
		Unrestored: []api.Unrestored{{GPU: "GPU-lost", Reason: api.NotReadable}}}
}

func (e *fakeBackend) Events(ctx context.Context, _ string, after int) (<-chan api.Event, error) {
	if err := e.note("events", control.Actor{}); err != nil {
		return nil, err
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	e.ctx = ctx
	e.after = after

	return e.events, nil
}

// fakeReviewer knows two tokens, counts what it is asked and remembers nothing.
type fakeReviewer struct{ asked atomic.Int64 }

func (*fakeReviewer) Known(string) (control.Actor, bool) { return control.Actor{}, false }

func (r *fakeReviewer) Actor(_ context.Context, token string) (control.Actor, error) {
	r.asked.Add(1)

	switch token {
	case "kube-reader", "kube-reader-2":
		return control.Actor{Name: "serviceaccount:ml/reader", Credential: "JTI=1", Rights: control.Rights{Read: true}}, nil
	case "kube-unknown":
		return control.Actor{}, fmt.Errorf("token review: %w", gpu.ErrNoPermission)
	case "kube-refused":
		return control.Actor{}, refusedError{gpu.ErrUnavailable}
	}

	return control.Actor{}, errors.New("dial tcp: connection refused, token file /var/run/secrets/token")
}

// refusedError is what a reviewer returns that may not review tokens.
type refusedError struct{ error }

func (refusedError) Refusal() string {
	return "the service account needs the right to create tokenreviews"
}

// lockedBuffer takes the audit log; fail makes it refuse.
type lockedBuffer struct {
	mu   sync.Mutex
	b    bytes.Buffer
	fail error
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.fail != nil {
		return 0, l.fail
	}

	return l.b.Write(b)
}

func (l *lockedBuffer) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.b.String()
}

func (l *lockedBuffer) entries(t *testing.T) []auditEntry {
	t.Helper()
	var entries []auditEntry

	for line := range strings.Lines(l.text()) {
		var e auditEntry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("audit line %q: %v", line, err)
		}

		entries = append(entries, e)
	}

	return entries
}

// fixedAuthenticator admits every caller as one identity.
type fixedAuthenticator struct{ identity identity }

func (d fixedAuthenticator) identifyCaller(*http.Request) (identity, error)   { return d.identity, nil }
func (d fixedAuthenticator) review(context.Context, string) (identity, error) { return d.identity, nil }
func (d fixedAuthenticator) from(*http.Request) string                        { return "here" }

func someone(rights control.Rights) authenticator {
	return fixedAuthenticator{identity{name: "someone", method: "token", rights: rights}}
}

type rig struct {
	*server
	backend *fakeBackend
	audit   *lockedBuffer
	clock   *time.Time
}

func newRig(t *testing.T, change ...func(*Options, *limits)) *rig {
	t.Helper()
	now := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	r := &rig{backend: &fakeBackend{}, audit: &lockedBuffer{}, clock: &now}
	o := Options{
		AllowGID: -1, ShutdownTimeout: 5 * time.Second, Audit: r.audit,
		Now: func() time.Time { return *r.clock },
		Node: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"apiVersion":"mig-exporter/v1"}`)
		}),
		NodeStream:      http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		NodeHistory:     http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		Health:          http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		Recommendations: func(id gpu.UUID) any { return &map[string]gpu.UUID{"gpu": id} },
		Current: func() *gpu.Snapshot {
			return &gpu.Snapshot{GPUs: []gpu.GPU{{Facts: gpu.Facts{UUID: gpu0, Index: 0, PCIBusID: "00000000:07:00.0"}}}}
		},
	}

	l := defaultLimits()
	for _, f := range change {
		f(&o, &l)
	}

	r.server = newServer(o, r.backend, log.NewNopLogger(), l)

	return r
}

// do makes a call without a network.
func (r *rig) do(d authenticator, method, path, body string, header ...string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(method, path, strings.NewReader(body))
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}

	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}

	w := httptest.NewRecorder()
	r.newHandler(d).ServeHTTP(w, request)

	return w
}

// wantProblem checks that an answer is a problem of a type and shows nothing of the node's insides.
func wantProblem(t *testing.T, w *httptest.ResponseRecorder, status int, kind api.ProblemType) api.Problem {
	t.Helper()

	var p api.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatalf("status %d: %q: %v", w.Code, w.Body, err)
	}

	if w.Code != status || p.Status != status {
		t.Errorf("got status %d, and %d in the document, want %d: %s", w.Code, p.Status, status, w.Body)
	}

	if p.Type != kind || p.Title == "" {
		t.Errorf("got type %s and title %q, want %s with a title", p.Type, p.Title, kind)
	}

	if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("got Content-Type %s, want application/problem+json", got)
	}

	for _, leak := range []string{"/var", "/usr", "/etc", "/tmp", "/run", ".go:", "goroutine", "s3cret", "kube-"} {
		if strings.Contains(w.Body.String(), leak) {
			t.Errorf("the answer shows %q: %s", leak, w.Body)
		}
	}

	return p
}

// start serves on real listeners and returns their addresses.
func (r *rig) start(t *testing.T) []net.Addr {
	t.Helper()
	ready := make(chan []net.Addr, 1)
	r.o.Ready = func(a []net.Addr) { ready <- a }
	ctx, cancel := context.WithCancel(context.Background())

	listeners, err := r.openListeners(ctx)
	if err != nil {
		cancel()
		t.Fatal(err)
	}

	ended := make(chan error, 1)
	go func() { ended <- r.serve(ctx, listeners) }()
	t.Cleanup(func() {
		cancel()

		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})

	return <-ready
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}

	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}

	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}

	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// leaf is a client's certificate of this template.
func (a *authority) leaf(t *testing.T, template *x509.Certificate) *x509.Certificate {
	t.Helper()
	template.SerialNumber = big.NewInt(3)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	template.NotBefore = a.cert.NotBefore
	template.NotAfter = a.cert.NotAfter

	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}

	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}

	return leaf
}

// issue returns a certificate and its key, in PEM.
func (a *authority) issue(t *testing.T, cn string, usage x509.ExtKeyUsage) (cert, key []byte) {
	t.Helper()

	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: cn}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().
				Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, a.cert, &private.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}

	encoded, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}

	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded})
}

// writeConfig writes a folder with a server's certificate, a client CA and a configuration, and
// returns the latter's path.
func writeConfig(t *testing.T, a *authority, config string) string {
	t.Helper()
	dir := t.TempDir()

	cert, key := a.issue(t, "server", x509.ExtKeyUsageServerAuth)
	for name, text := range map[string][]byte{"cert.pem": cert, "key.pem": key, "ca.pem": a.pem,
		"control.yml": []byte(config)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	return filepath.Join(dir, "control.yml")
}

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// client trusts the authority and shows certificates, if any.
func (a *authority) client(certs ...tls.Certificate) *http.Client {
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)

	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certs}, DisableKeepAlives: true,
	}}
}
