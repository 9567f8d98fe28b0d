package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// served is a server that a test has started.
type served struct {
	addrs []net.Addr
	stop  context.CancelFunc
	ended chan error
}

// start serves on free ports of the loopback until the test ends.
func start(t *testing.T, opts ServerOptions, h http.Handler, logger log.Logger) *served {
	t.Helper()

	if opts.Addresses == nil {
		opts.Addresses = []string{"127.0.0.1:0"}
	}

	listeners, err := openListeners(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())

	s := &served{stop: cancel, ended: make(chan error, 1)}
	for _, l := range listeners {
		s.addrs = append(s.addrs, l.Addr())
	}

	go func() { s.ended <- serveOn(ctx, listeners, opts, h, logger) }()

	return s
}

// end stops the server and gives what Serve returned.
func (s *served) end() error {
	s.stop()
	return <-s.ended
}

func hello(w http.ResponseWriter, _ *http.Request) { writePlain(w, http.StatusOK, "hello\n") }

func fetch(t *testing.T, client *http.Client, method, url string) (int, string, http.Header) {
	t.Helper()

	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}

	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()

	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}

	return answer.StatusCode, string(body), answer.Header
}

func TestServeOnSeveralAddresses(t *testing.T) {
	var lines logged

	s := start(t, ServerOptions{Addresses: []string{"127.0.0.1:0", "localhost:0"}, ShutdownTimeout: time.Minute},
		http.HandlerFunc(hello), &lines)
	for _, addr := range s.addrs {
		if code, body, _ := fetch(t, http.DefaultClient, "GET", "http://"+addr.String()); code != 200 || body != "hello\n" {
			t.Errorf("%s: got %d %q", addr, code, body)
		}

		var said int
		lines.mu.Lock()
		for _, line := range lines.lines {
			if strings.Contains(line, "listening") && strings.Contains(line, addr.String()) {
				said++
			}
		}

		lines.mu.Unlock()

		if said != 1 {
			t.Errorf("%s: said %d times in %q", addr, said, lines.lines)
		}
	}

	http.DefaultClient.CloseIdleConnections()

	if err := s.end(); err != nil {
		t.Errorf("Serve: %v", err)
	}

	for _, addr := range s.addrs {
		if conn, err := net.Dial("tcp", addr.String()); err == nil {
			_ = conn.Close()
			t.Errorf("%s still answers", addr)
		}
	}
}

// The log has the URL to open for each listener, on a wildcard address one that a browser accepts.
func TestServeLogsThePage(t *testing.T) {
	var lines logged

	s := start(t, ServerOptions{Addresses: []string{"127.0.0.1:0", ":0"}}, http.HandlerFunc(hello), &lines)
	if err := s.end(); err != nil {
		t.Fatal(err)
	}

	_, port, err := net.SplitHostPort(s.addrs[1].String())
	if err != nil {
		t.Fatal(err)
	}

	text := strings.Join(lines.lines, "\n")
	for _, want := range []string{"urlhttp://" + s.addrs[0].String() + "/", "urlhttp://localhost:" + port + "/"} {
		if !strings.Contains(text, want) {
			t.Errorf("the log lacks %q:\n%s", want, text)
		}
	}
}

// With TLS in the web configuration the URL is https.
func TestServeLogsThePageByTLS(t *testing.T) {
	dir := t.TempDir()
	writeCertificate(t, dir)

	config := filepath.Join(dir, "web.yml")
	writeFile(t, config, []byte(secureConfig))

	var lines logged

	s := start(t, ServerOptions{ConfigFile: config}, http.HandlerFunc(hello), &lines)
	if err := s.end(); err != nil {
		t.Fatal(err)
	}

	if want := "urlhttps://" + s.addrs[0].String() + "/"; !strings.Contains(strings.Join(lines.lines, "\n"), want) {
		t.Errorf("the log lacks %q: %q", want, lines.lines)
	}
}

func TestPageURL(t *testing.T) {
	for listener, want := range map[string]string{
		"[::]:9401":      "https://localhost:9401/",
		"0.0.0.0:443":    "https://localhost:443/",
		"[fd00::1]:9401": "https://[fd00::1]:9401/",
		"192.0.2.7:9401": "https://192.0.2.7:9401/",
	} {
		if got := pageURL("https", netip.MustParseAddrPort(listener)); got != want {
			t.Errorf("%s: got %s, want %s", listener, got, want)
		}
	}
}

// TestServingRecord: the line about a listener has its URL. Without TLS there is no HTTP/2 to speak
// of.
func TestServingRecord(t *testing.T) {
	for scheme, want := range map[string]string{
		"https": "[http2=false url=https://192.0.2.7:9401/]",
		"http":  "[url=http://192.0.2.7:9401/]",
	} {
		r := slog.NewRecord(time.Time{}, slog.LevelInfo, "", 0)
		r.Add("http2", false, "address", "192.0.2.7:9401")

		var attrs []slog.Attr

		serving := servingRecord(&r, scheme)
		serving.Attrs(func(a slog.Attr) bool {
			attrs = append(attrs, a)
			return true
		})

		cmptest.Equal(t, scheme, fmt.Sprint(attrs), want)
	}
}

func TestServeHead(t *testing.T) {
	s := start(t, ServerOptions{}, testHandler(Options{State: true}, publish(nodeFixture()), newRegistry(t),
		freshRegistry()), log.NewNopLogger())
	for _, path := range []string{"/metrics", "/", "/api/v1/node", "/-/ready"} {
		url := "http://" + s.addrs[0].String() + path

		code, body, header := fetch(t,
			&http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}, "HEAD", url)
		if code != 200 || body != "" {
			t.Errorf("HEAD %s: got %d %q, want 200 without a body", path, code, body)
		}

		if header.Get("Content-Type") == "" {
			t.Errorf("HEAD %s: no Content-Type in %v", path, header)
		}
	}

	if err := s.end(); err != nil {
		t.Error(err)
	}
}

func TestListenErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()

	in := taken.Addr().String()
	for _, test := range []struct {
		opts ServerOptions
		want string
	}{
		{ServerOptions{Addresses: []string{"127.0.0.1:0", in}}, "listen on " + in + ": address already in use"},
		{ServerOptions{Addresses: []string{"9401"}}, "listen on 9401: missing port in address"},
		{ServerOptions{Addresses: []string{"127.0.0.1:99999"}}, "listen on 127.0.0.1:99999: invalid port"},
		{ServerOptions{}, "no address to listen on"},
		{ServerOptions{Addresses: []string{in}, ConfigFile: "testdata/unknown-key.bad.yml"},
			"web config testdata/unknown-key.bad.yml: line 2: field cert_fil not found in type web.TLSConfig"},
		{ServerOptions{SystemdSocket: true}, "systemd passes 0 sockets: expected stream sockets"},
	} {
		err := Serve(t.Context(), test.opts, http.NotFoundHandler(), log.NewNopLogger())
		if err == nil || err.Error() != test.want {
			t.Errorf("%v: got %v, want %s", test.opts.Addresses, err, test.want)
		}

		if strings.Contains(test.want, "in use") && !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%v is not EADDRINUSE", err)
		}
	}
}

// hanging answers only when it is released or its client is gone.
type hanging struct {
	began, release chan struct{}
}

func (h *hanging) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	close(h.began)

	select {
	case <-h.release:
		hello(w, r)
	case <-r.Context().Done():
	}
}

func TestShutdownWaitsForRequests(t *testing.T) {
	h := &hanging{began: make(chan struct{}), release: make(chan struct{})}
	s := start(t, ServerOptions{ShutdownTimeout: time.Minute}, h, log.NewNopLogger())
	answer := make(chan string, 1)
	go func() {
		r, err := http.Get("http://" + s.addrs[0].String())
		if err != nil {
			answer <- err.Error()
			return
		}
		defer r.Body.Close()
		body, _ := io.ReadAll(r.Body)
		answer <- string(body)
	}()
	<-h.began
	s.stop()
	// The listener closes while the request is still served.
	for {
		conn, err := net.Dial("tcp", s.addrs[0].String())
		if err != nil {
			break
		}

		_ = conn.Close()
	}

	close(h.release)

	if got := <-answer; got != "hello\n" {
		t.Errorf("the request in flight got %q", got)
	}

	if err := <-s.ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

func TestShutdownCutsOffAtTheDeadline(t *testing.T) {
	var lines logged
	h := &hanging{began: make(chan struct{}), release: make(chan struct{})}
	s := start(t, ServerOptions{ShutdownTimeout: 20 * time.Millisecond}, h, &lines)
	failed := make(chan error, 1)
	go func() {
		r, err := http.Get("http://" + s.addrs[0].String())
		if err == nil {
			_ = r.Body.Close()
		}

		failed <- err
	}()
	<-h.began

	if err := s.end(); err != nil { // hangs, and the test with it, if the deadline does not hold
		t.Errorf("Serve: %v", err)
	}

	if err := <-failed; err == nil {
		t.Error("the hanging request was answered")
	}

	if last := lines.lines[lines.count()-1]; !strings.Contains(last, "closed requests") {
		t.Errorf("not in the log: %q", lines.lines)
	}
}

// TestShutdownIsNotHeldUp: a client that connected and said nothing is cut off at once, while a
// request on another address goes on.
func TestShutdownIsNotHeldUp(t *testing.T) {
	h := &hanging{began: make(chan struct{}), release: make(chan struct{})}
	s := start(t, ServerOptions{Addresses: []string{"127.0.0.1:0", "127.0.0.1:0"}, ShutdownTimeout: time.Minute}, h,
		log.NewNopLogger())

	silent, err := net.Dial("tcp", s.addrs[1].String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	answer := make(chan string, 1)
	go func() {
		r, err := http.Get("http://" + s.addrs[0].String())
		if err != nil {
			answer <- err.Error()
			return
		}
		defer r.Body.Close()
		body, _ := io.ReadAll(r.Body)
		answer <- string(body)
	}()
	<-h.began
	s.stop()

	if err := silent.SetReadDeadline(time.Now().Add(4 * time.Second)); err != nil { // net/http closes it after 5 s
		t.Fatal(err)
	}

	if _, err := silent.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the silent connection: %v, want it closed", err)
	}

	close(h.release)

	if got := <-answer; got != "hello\n" {
		t.Errorf("the request in flight got %q", got)
	}

	if err := <-s.ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// TestMain is the child of TestSystemdSockets if the environment says so.
func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}

	if err := serveSystemdSocket(); err != nil {
		_, _ = io.WriteString(os.Stderr, err.Error())
		os.Exit(1)
	}
}

// childVariable is set in the child, to its web configuration.
const childVariable = "MIG_EXPORTER_TEST_SYSTEMD"

// serveSystemdSocket serves on the sockets that were passed, until it is asked to stop.
func serveSystemdSocket() error {
	if err := os.Setenv("LISTEN_PID", itoa(os.Getpid())); err != nil {
		return err
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	opts := ServerOptions{SystemdSocket: true, ConfigFile: os.Getenv(childVariable), ShutdownTimeout: time.Minute}

	return Serve(ctx, opts, http.HandlerFunc(hello), log.NewNopLogger())
}

// socketFile is a listening socket as systemd passes one, and its URL.
func socketFile(t *testing.T) (*os.File, string) {
	t.Helper()

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()

	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}

	return file, "http://" + l.Addr().String()
}

// TestSystemdSockets passes two sockets. The limit of one request reports whether each has a server
// of its own: a shared one is wrapped twice, so that the second socket's requests count against the
// first's limit.
func TestSystemdSockets(t *testing.T) {
	config := filepath.Join(t.TempDir(), "web.yml")
	writeFile(t, config, []byte("rate_limit: {interval: 1h, burst: 1}\n"))
	a, urlA := socketFile(t)
	b, urlB := socketFile(t)
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), childVariable+"="+config, "LISTEN_FDS=2")
	child.ExtraFiles = []*os.File{a, b} // descriptors 3 and 4, where systemd puts the first
	var said strings.Builder

	child.Stderr = &said
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}

	_, _ = a.Close(), b.Close()

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, url := range []string{urlA, urlB} {
		if code, body, _ := fetch(t, client, "GET", url); code != 200 || body != "hello\n" {
			t.Errorf("%s: got %d %q", url, code, body)
		}
	}

	if err := child.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}

	if err := child.Wait(); err != nil {
		t.Errorf("child: %v: %s", err, said.String())
	}
}
