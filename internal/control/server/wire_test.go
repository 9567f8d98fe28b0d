package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

func unixClient(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
		DisableKeepAlives: true,
	}}
}

func get(t *testing.T, c *http.Client, url string, header ...string) (int, string) {
	t.Helper()

	return send(t, c, http.MethodGet, url, header...)
}

func send(t *testing.T, c *http.Client, method, url string, header ...string) (int, string) {
	t.Helper()

	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}

	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}

	response, err := c.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()

	body, err := io.ReadAll(response.Body)
	if err != nil {
		return response.StatusCode, err.Error()
	}

	return response.StatusCode, string(body)
}

func TestSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "control.sock")
	r := newRig(t, func(o *Options, _ *limits) { o.Socket = path; o.AllowGID = os.Getgid() })
	r.start(t)

	for name, want := range map[string]os.FileMode{path: 0o660 | os.ModeSocket, filepath.Dir(path): 0o755 | os.ModeDir} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", name, info.Mode(), err, want)
		}
	}

	if status, body := get(t, unixClient(path), "http://control/api/v1/operations"); status != 200 {
		t.Errorf("own uid: %d %s", status, body)
	}

	if status, body := get(t, unixClient(path), "http://control/none"); status != 404 {
		t.Errorf("no such path: %d %s", status, body)
	}

	e := r.audit.entries(t)[0]
	cmptest.Equal(t, "the caller in the audit log", auditEntry{Actor: e.Actor, Method: e.Method, From: e.From},
		auditEntry{Actor: fmt.Sprintf("uid:%d", os.Getuid()), Method: "peer", From: fmt.Sprintf("pid:%d", os.Getpid())})

	if _, err := listenUnix(t.Context(), path, -1); err == nil ||
		!strings.Contains(err.Error(), "another process listens") {
		t.Errorf("a second server on the socket: %v", err)
	}
}

// A folder that was there before keeps its group and its mode: the socket's are what counts.
func TestFolderOfTheSocketIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o750); err != nil { //nolint:gosec // a usual one
		t.Fatal(err)
	}

	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}

	for _, gid := range append(groups, os.Getgid(), 4242) {
		l, err := listenUnix(t.Context(), filepath.Join(dir, "s"), gid)
		if errors.Is(err, fs.ErrPermission) {
			continue // only root gives to groups of which it is no member
		}

		if err != nil {
			t.Fatal(err)
		}

		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}

		if got := info.Mode().Perm(); got != 0o750 {
			t.Errorf("group %d: got mode %v, want 0750", gid, got)
		}

		if got := int(info.Sys().(*syscall.Stat_t).Gid); got != os.Getegid() {
			t.Errorf("group %d: the socket's group is %d, want %d", gid, got, os.Getegid())
		}

		_ = l.Close()
	}
}

func TestSocketIsOnlyReplacedWhenItIsStale(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")

	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}

	stale.SetUnlinkOnClose(false)
	stale.Close()

	l, err := listenUnix(t.Context(), path, -1)
	if err != nil {
		t.Fatalf("stale socket: %v", err)
	}

	l.Close()

	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is there after closing: %v", err)
	}

	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}

	if _, err := listenUnix(t.Context(), path, -1); err == nil {
		t.Error("a file was taken for a socket")
	}

	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Error("the file is gone")
	}

	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".control-*")); left != nil {
		t.Errorf("left behind: %v", left)
	}
}

func TestPeers(t *testing.T) {
	for name, c := range map[string]struct {
		peer   peer
		gid    int
		status int
		force  int
	}{
		"root":             {peer{uid: 0}, -1, 202, 202},
		"foreign":          {peer{uid: 1000, gid: 1000}, 990, 403, 403},
		"foreign, no gid":  {peer{uid: 1000, gid: 1000}, -1, 403, 403},
		"primary group":    {peer{uid: 1000, gid: 990}, 990, 202, 403},
		"other group":      {peer{uid: 1000, gid: 1000, groups: []uint32{4, 990}}, 990, 202, 403},
		"gid like a uid":   {peer{uid: 990, gid: 1000}, 990, 403, 403},
		"group of root":    {peer{uid: 1000, gid: 0}, -1, 403, 403},
		"overflowed group": {peer{uid: 1000, gid: 1<<32 - 1}, -1, 403, 403},
	} {
		r := newRig(t)
		for plan, want := range map[string]int{"plan-1": c.status, "forced": c.force, "taking-over": c.force} {
			request, err := http.NewRequestWithContext(context.WithValue(t.Context(), peerKey{}, c.peer), http.MethodPost,
				"/api/v1/operations", strings.NewReader(`{"plan":"`+plan+`","hash":"h"}`))
			if err != nil {
				t.Fatal(err)
			}

			request.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			r.newHandler(peerAuthenticator{gid: c.gid}).ServeHTTP(w, request)

			if w.Code != want {
				t.Errorf("%s, %s: %d, want %d", name, plan, w.Code, want)
			}
		}
	}

	r := newRig(t)

	for _, path := range []string{"/node", "/node/stream", "/node/history", "/health", "/recommendations"} {
		wantProblem(t, r.do(peerAuthenticator{gid: -1}, "GET", "/api/v1"+path, ""), 401, api.Unauthenticated)
	}
}

func TestTLS(t *testing.T) {
	a := newAuthority(t)
	stranger := newAuthority(t)
	path := writeConfig(t, a, `
tls: {cert_file: cert.pem, key_file: key.pem, client_ca_file: ca.pem}
clients: [{cn: operator, rights: [read]}]
tokens: [{name: ci, sha256: `+hashOf("s3cret")+`, rights: [read]}]
kubernetes: true
`)
	r := newRig(t, func(o *Options, _ *limits) {
		o.ListenAddress, o.ConfigFile, o.Reviewer = "127.0.0.1:0", path, new(fakeReviewer)
	})
	url := "https://" + r.start(t)[0].String() + "/api/v1/operations"
	pair := func(by *authority, cn string, usage x509.ExtKeyUsage) tls.Certificate {
		cert, key := by.issue(t, cn, usage)

		p, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}

		return p
	}

	operator := pair(a, "operator", x509.ExtKeyUsageClientAuth)
	for name, c := range map[string]struct {
		certs         []tls.Certificate
		authorization string
		status        int
	}{
		"nothing":              {nil, "", 401},
		"token":                {nil, "Bearer s3cret", 200},
		"hash as token":        {nil, "Bearer " + hashOf("s3cret"), 503}, // the reviewer cannot tell
		"basic":                {nil, "Basic czNjcmV0", 401},
		"certificate":          {[]tls.Certificate{operator}, "", 200},
		"other name":           {[]tls.Certificate{pair(a, "someone", x509.ExtKeyUsageClientAuth)}, "", 403},
		"server's certificate": {[]tls.Certificate{pair(a, "operator", x509.ExtKeyUsageServerAuth)}, "", 0},
		// in the handshake
		"strange authority":     {[]tls.Certificate{pair(stranger, "operator", x509.ExtKeyUsageClientAuth)}, "", 0},
		"wrong token first":     {[]tls.Certificate{operator}, "Bearer kube-unknown", 401},
		"kubernetes":            {nil, "Bearer kube-reader", 200},
		"unknown to kubernetes": {nil, "Bearer kube-unknown", 401},
		"no API server":         {nil, "Bearer kube-down", 503},
	} {
		var header []string
		if c.authorization != "" {
			header = []string{"Authorization", c.authorization}
		}

		if status, body := get(t, a.client(c.certs...), url, header...); status != c.status {
			t.Errorf("%s: %d %s, want %d", name, status, body, c.status)
		}
	}

	plain := strings.Replace(url, "https", "http", 1)
	if status, body := get(t, http.DefaultClient, plain, "Authorization", "Bearer s3cret"); status == 200 {
		t.Errorf("without TLS: %d %s", status, body)
	}

	// The audit log has the id by which the API server's audit log knows who asked for a token.
	if status, body := send(t, a.client(), "POST", url, "Authorization", "Bearer kube-reader"); status != 403 {
		t.Errorf("a reader's change: %d %s", status, body)
	}

	entries := r.audit.entries(t)
	cmptest.Equal(t, "the credential", entries[len(entries)-1].Credential, "JTI=1")

	for _, leak := range []string{"s3cret", "kube-reader", "kube-down"} {
		if strings.Contains(r.audit.text(), leak) {
			t.Errorf("%q is in the audit log", leak)
		}
	}
}

// raw writes bytes to the socket and returns all that comes back until the server closes.
func raw(t *testing.T, path, text string) string {
	t.Helper()

	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(conn, text) // it may close before all is written
	answer, _ := io.ReadAll(conn)

	return string(answer)
}

func TestSlowAndHugeRequestsAreCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	r := newRig(t, func(o *Options, l *limits) {
		o.Socket = path
		l.header = 50 * time.Millisecond
		l.read = 100 * time.Millisecond
	})
	r.start(t)

	body := "POST /api/v1/operations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
	if got := raw(t, path, body); !strings.HasPrefix(got, "HTTP/1.1 400") ||
		!strings.Contains(got, string(api.Malformed)) {
		t.Errorf("a slow body: %q", got)
	}

	if got := raw(t, path, "GET /api/v1/node HTTP/1.1\r\nHost: x\r\nX-Slow"); strings.Contains(got, "200") {
		t.Errorf("a slow header: %q", got)
	}

	if got := raw(t, path, ""); got != "" {
		t.Errorf("silence: %q", got)
	}

	flood := "GET /api/v1/node HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("X-Flood: "+strings.Repeat("x", 1000)+"\r\n",
		64) + "\r\n"
	if got := raw(t, path, flood); !strings.HasPrefix(got, "HTTP/1.1 431") {
		t.Errorf("a flood of headers: %q", got)
	}

	withheld := "GET /api/v1/operations HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
	if got := raw(t, path, withheld); !strings.HasPrefix(got, "HTTP/1.1 400") || !strings.Contains(got, "no body") {
		t.Errorf("a GET with a body that does not come: %q", got)
	}

	if r.backend.called() != 0 {
		t.Error("the backend was called")
	}
}

// The library's own answer to OPTIONS * would need no authentication, and have no line in the audit
// log.
func TestOptionsOfTheServerAreNoWayAround(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	r := newRig(t, func(o *Options, _ *limits) { o.Socket = path })
	r.start(t)

	if got := raw(t, path, "OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(got,
		"HTTP/1.1 404") {
		t.Errorf("got %q", got)
	}

	if e := r.audit.entries(t); len(e) != 1 || e[0].Status != 404 {
		t.Errorf("audit: %+v", e)
	}
}

// An unknown caller does not keep a connection: there are few.
func TestStrangersAreHungUpOn(t *testing.T) {
	a := newAuthority(t)
	path := writeConfig(t, a,
		"tls: {cert_file: cert.pem, key_file: key.pem}\ntokens: [{name: ci, sha256: "+hashOf("s3cret")+", rights: [read]}]\n")
	r := newRig(t, func(o *Options, l *limits) {
		l.failuresBurst = 1
		o.ListenAddress = "127.0.0.1:0"
		o.ConfigFile = path
	})

	address := r.start(t)[0].String()
	for _, want := range []string{"HTTP/1.1 401", "HTTP/1.1 429"} {
		conn, err := tls.Dial("tcp", address, a.client().Transport.(*http.Transport).TLSClientConfig)
		if err != nil {
			t.Fatal(err)
		}

		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))

		_, _ = io.WriteString(conn, "GET /api/v1/node HTTP/1.1\r\nHost: x\r\n\r\n")
		if got, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(got), want) {
			t.Errorf("%q, %v; want %s and the end", got, err, want)
		}

		_ = conn.Close()
	}
}

// Two of one authority's clients with the same words in different fields are two actors.
func TestNamesOfCertificatesAreDistinct(t *testing.T) {
	const words = "spiffe://cluster.local/ns/batch/sa/scheduler"

	uri, err := url.Parse(words)
	if err != nil {
		t.Fatal(err)
	}

	a := newAuthority(t)
	path := writeConfig(t, a,
		"tls: {cert_file: cert.pem, key_file: key.pem, client_ca_file: ca.pem}\nclients: "+
			"[{uri: '"+words+"', rights: [read]}]\n")

	config, err := loadConfig(path)
	if err != nil {
		t.Fatal(err)
	}

	byURI, err := byCertificate(config, []*x509.Certificate{a.leaf(t, &x509.Certificate{URIs: []*url.URL{uri}})})
	if err != nil || !byURI.rights.Read {
		t.Errorf("by URI: %+v, %v", byURI, err)
	}

	byCN, err := byCertificate(config,
		[]*x509.Certificate{a.leaf(t, &x509.Certificate{Subject: pkix.Name{CommonName: words}})})
	if err != nil || byCN.rights.Read {
		t.Errorf("by common name: got %+v, %v, want no right to read", byCN, err)
	}

	if byCN.name == byURI.name {
		t.Errorf("by common name and by URI the caller is %q", byCN.name)
	}
}

func TestEvents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	r := newRig(t, func(o *Options, l *limits) { o.Socket, l.heartbeat = path, 10*time.Millisecond })
	r.backend.events = make(chan api.Event)
	r.start(t)

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		"http://control/api/v1/operations/op-1/events", nil)
	if err != nil {
		t.Fatal(err)
	}

	request.Header.Set("Last-Event-ID", "6")

	response, err := unixClient(path).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()

	if got := response.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("Content-Type: %s", got)
	}

	lines := bufio.NewScanner(response.Body)
	for lines.Scan() && lines.Text() != ": still here" {
	}

	r.backend.events <- api.Event{Seq: 7, Kind: "state", State: api.Running, Text: "two\nlines"}
	close(r.backend.events)
	var got []string

	for lines.Scan() {
		if text := lines.Text(); text != "" && text[0] != ':' {
			got = append(got, text)
		}
	}

	want := []string{"id: 7", "event: state",
		`data: {"seq":7,"time":"0001-01-01T00:00:00Z","kind":"state","state":"running","text":"two\nlines"}`}
	if strings.Join(got, "\n") != strings.Join(want, "\n") || r.backend.after != 6 {
		t.Errorf("after %d: %q, want %q", r.backend.after, got, want)
	}

	if status, body := get(t, unixClient(path), "http://control/api/v1/operations/op-1/events", "Last-Event-ID",
		"-1"); status != 400 {
		t.Errorf("bad id: %d %s", status, body)
	}
}

func TestSlowReaderOfEventsIsLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	r := newRig(t, func(o *Options, l *limits) { o.Socket, l.eventWrite, l.streams = path, 50*time.Millisecond, 1 })
	r.backend.events = make(chan api.Event)
	r.start(t)

	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET /api/v1/operations/op-1/events HTTP/1.1\r\nHost: x\r\n\r\n")
	r.backend.events <- api.Event{Seq: 1}

	if status, _ := get(t, unixClient(path), "http://control/api/v1/operations/op-1/events"); status != 429 {
		t.Errorf("a stream too many: %d", status)
	}

	r.backend.mu.Lock()
	ctx := r.backend.ctx
	r.backend.mu.Unlock()
	text := strings.Repeat("x", 64<<10)

	for seq := 2; ctx.Err() == nil; seq++ { // until the connection's buffers are full and the deadline has passed
		select {
		case r.backend.events <- api.Event{Seq: seq, Text: text}:
		case <-ctx.Done():
		}
	}
}

func TestShutdownEndsStreams(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	r := newRig(t, func(o *Options, _ *limits) { o.Socket = path })
	r.backend.events = make(chan api.Event)
	ctx, cancel := context.WithCancel(t.Context())

	listeners, err := r.openListeners(ctx)
	if err != nil {
		t.Fatal(err)
	}

	ended := make(chan error, 1)
	go func() { ended <- r.serve(ctx, listeners) }()

	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET /api/v1/operations/op-1/events HTTP/1.1\r\nHost: x\r\n\r\n")
	r.backend.events <- api.Event{Seq: 1}
	cancel()

	if err := <-ended; err != nil {
		t.Error(err)
	}

	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is there after the end: %v", err)
	}
}
