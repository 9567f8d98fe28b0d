package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

const emptyVector = `{"status":"success","data":{"resultType":"vector","result":[]}}`

// clientOf returns a client that waits for nothing, and how long it would have waited.
func clientOf(t *testing.T, url string) (*Client, func() []time.Duration) {
	t.Helper()

	c, err := NewClient(ClientOptions{URL: url, Timeout: time.Minute, UserAgent: "test"})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(c.Close)
	var mu sync.Mutex
	var waits []time.Duration
	c.wait = func(_ context.Context, d time.Duration) error {
		mu.Lock()
		defer mu.Unlock()
		waits = append(waits, d)

		return nil
	}

	return c, func() []time.Duration {
		mu.Lock()
		defer mu.Unlock()

		return waits
	}
}

// serve answers with the handlers in turn, and then with the last.
func serve(t *testing.T, handlers ...http.HandlerFunc) string {
	t.Helper()
	var mu sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()

		h := handlers[0]
		if len(handlers) > 1 {
			handlers = handlers[1:]
		}

		mu.Unlock()
		h(w, r)
	}))
	t.Cleanup(server.Close)

	return server.URL
}

func says(status int, contentType, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)

		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}

		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

func problem(status int, kind, message string, headers ...string) http.HandlerFunc {
	return says(status, "application/json", fmt.Sprintf(`{"status":"error","errorType":%q,"error":%q}`, kind, message), headers...)
}

func weekly() Options {
	return Options{Window: 7 * 24 * time.Hour, End: time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC), ClusterLabel: "cluster", Advise: advise.DefaultOptions()}
}

// badServer is what is no Prometheus, or one that refuses, and what is said of it.
type badServer struct {
	url       string
	text      string
	hint      string
	unreached bool
}

// badAnswers are servers that answer.
func badAnswers(t *testing.T) map[string]badServer {
	return map[string]badServer{
		"a web page":      {url: serve(t, says(200, "text/html; charset=utf-8", "<html>Grafana</html>")), text: `answered with "text/html; charset=utf-8"`, hint: "that is no Prometheus"},
		"a 404 page":      {url: serve(t, says(404, "text/plain", "404 page not found\n")), text: "404 Not Found: 404 page not found", hint: "path prefix"},
		"a 404 as HTML":   {url: serve(t, says(404, "text/html", "<html>\x1b[31m nothing</html>")), text: "404 Not Found", hint: "path prefix"},
		"other JSON":      {url: serve(t, says(200, "application/json", `{"databases":["x"]}`)), text: "answered with JSON that is not of Prometheus' API", hint: "check the host"},
		"a list":          {url: serve(t, says(200, "application/json", `[1,2]`)), text: "not of Prometheus' API", hint: "check the host"},
		"JSON that ends":  {url: serve(t, says(200, "application/json", emptyVector[:40])), text: "not of Prometheus' API", hint: "check the host"},
		"another type":    {url: serve(t, says(200, "application/json", `{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}`)), text: "API: a scalar; expected a vector", hint: "check the host"},
		"no credentials":  {url: serve(t, says(401, "text/plain", "Unauthorized")), text: "401 Unauthorized", hint: "--prometheus.config.file"},
		"forbidden":       {url: serve(t, says(403, "text/html", "<html>")), text: "403 Forbidden", hint: "--prometheus.config.file"},
		"a login":         {url: serve(t, says(302, "text/html", "", "Location", "/login")), text: "302 Found: it redirects to /login", hint: "a login"},
		"another URL":     {url: serve(t, says(301, "text/html", "", "Location", "https://h/api/v1/query")), text: "301 Moved Permanently: it redirects to https://h/api", hint: "give the URL"},
		"a moved page":    {url: serve(t, says(308, "text/html", "", "Location", "/login"), says(200, "text/html", "<form>")), text: "text/html", hint: "a login"},
		"a query timeout": {url: serve(t, problem(503, "timeout", "query timed out in expression evaluation")), text: "503 Service Unavailable: query timed out", hint: "--query.timeout"},
		"not ready":       {url: serve(t, says(503, "text/plain", "Service Unavailable")), text: "503", hint: "not ready"},
		"too much":        {url: serve(t, problem(422, "execution", "query processing would load too many samples")), text: "422 Unprocessable Entity: query processing", hint: "--query.max-samples"},
		"always busy":     {url: serve(t, problem(429, "", "too many requests", "Retry-After", "3")), text: "429 Too Many Requests", hint: "stayed busy"},
		"an empty server": {url: serve(t, says(200, "application/json", emptyVector)), text: "there is no GPU in the 1w before 2026-03-04T12:00:00Z: none of nvidia_gpu_info", hint: "--match, --window and --time"},
		"an old server":   {url: serve(t, problem(400, "bad_data", `unknown function with name "present_over_time"`)), text: "400 Bad Request: unknown function", hint: "2.29 or later"},
		"a failure":       {url: serve(t, problem(500, "internal", "expanding series: boom")), text: "500 Internal Server Error: expanding", hint: "its log"},
		"a gateway":       {url: serve(t, says(502, "text/html", "<html>")), text: "502 Bad Gateway", hint: "no Prometheus behind it"},
		"a wrong content": {url: serve(t, says(200, "application/json", "login")), text: "not of Prometheus' API: invalid character", hint: "check the host"},
		"Loki":            {url: serve(t, says(200, "application/json", `{"status":"success","data":{"resultType":"streams","result":[]}}`)), text: `unknown value type "streams"`, hint: "check the host"},
		"an empty one that warns": {url: serve(t, says(200, "application/json", strings.Replace(emptyVector, "{", `{"warnings":["store a is away"],`, 1))),
			text: "has a sample; it warns: store a is away", hint: "--match"},
	}
}

// badConnections are servers that give no whole answer.
func badConnections(t *testing.T) map[string]badServer {
	refused := httptest.NewServer(http.NotFoundHandler())
	refused.Close()
	secure := httptest.NewUnstartedServer(says(200, "application/json", emptyVector))
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)

	return map[string]badServer{
		"nothing listens":     {url: refused.URL, text: "connection refused", hint: "is Prometheus running there?", unreached: true},
		"an unknown signer":   {url: secure.URL, text: "x509:", hint: "ca_file", unreached: true},
		"TLS without":         {url: strings.Replace(secure.URL, "https", "http", 1), text: "400 Bad Request", hint: "https://"},
		"half an answer":      {url: serve(t, halfAnswer), text: "the connection ended before the answer did: unexpected EOF", hint: "ended the query"},
		"no answer":           {url: serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), text: "the connection ended before the answer did: EOF", hint: "ended the query", unreached: true},
		"endless redirects":   {url: serve(t, says(307, "text/html", "", "Location", "/again")), text: "stopped after 10 redirects", hint: "redirects without an end", unreached: true},
		"no TLS, and no HTTP": {url: "https://" + speakNothing(t), text: "tls:", hint: "does not speak TLS", unreached: true},
		"no such host":        {url: "http://prometheus.invalid:9090", text: "prometheus.invalid", hint: "host name", unreached: true},
		"no TLS": {url: strings.Replace(serve(t, says(200, "application/json", emptyVector)), "http", "https", 1), text: "HTTP response to HTTPS client",
			hint: "http://", unreached: true},
	}
}

// TestBadServers: what is no Prometheus, or one that refuses, has an answer that says so, and no
// analysis hangs.
func TestBadServers(t *testing.T) {
	all := badAnswers(t)
	maps.Copy(all, badConnections(t))

	for name, c := range all {
		t.Run(name, func(t *testing.T) {
			client, _ := clientOf(t, c.url)
			_, err := Analyze(t.Context(), client, weekly())

			var e *QueryError
			if !errors.As(err, &e) {
				t.Fatalf("error %v; want %q", err, c.text)
			}

			if !strings.Contains(e.Error(), c.text) || !strings.Contains(e.Hint, c.hint) || e.Reached == c.unreached {
				t.Errorf("error %q, hint %q, reached %v; want %q, %q, %v", e, e.Hint, e.Reached, c.text, c.hint, !c.unreached)
			}

			if strings.Contains(e.Error(), "query=") || strings.Contains(e.Error(), "<") {
				t.Errorf("the error repeats the query or a page: %q", e)
			}
		})
	}
}

// halfAnswer ends in the middle of an answer.
func halfAnswer(w http.ResponseWriter, r *http.Request) {
	says(200, "application/json", emptyVector[:20])(w, r)
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

// speakNothing returns the address of a server that answers whatever comes with a line of text.
func speakNothing(t *testing.T) string {
	t.Helper()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}

			c.Read(make([]byte, 1024))
			io.WriteString(c, "220 mail.example ready\r\n")
			c.Close()
		}
	}()

	return listener.Addr().String()
}

// TestSlowServer: an answer that does not come ends with the timeout, one that the operator does
// not wait for with the context.
func TestSlowServer(t *testing.T) {
	release := make(chan struct{})
	url := serve(t, func(http.ResponseWriter, *http.Request) { <-release })
	t.Cleanup(func() { close(release) }) // before the server is closed
	c, _ := clientOf(t, url)
	c.timeout = time.Millisecond
	_, err := Analyze(t.Context(), c, weekly())

	var e *QueryError
	if !errors.As(err, &e) {
		t.Fatalf("error %v, want a QueryError", err)
	}

	cmptest.Equal(t, "reached", e.Reached, true)
	cmptest.HasTexts(t, e.Error(), "no answer within 1ms")
	cmptest.HasTexts(t, e.Hint, "--match or --window")
	c.timeout = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	if _, err := Analyze(ctx, c, weekly()); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestBusyServer: the client waits as long as the server says, or longer each time.
func TestBusyServer(t *testing.T) {
	busy := func(after string) http.HandlerFunc {
		return problem(429, "", "too many requests", "Retry-After", after)
	}

	c, waits := clientOf(t, serve(t, busy("7"), busy("no number"), busy("86400"), says(200, "application/json", emptyVector)))
	if _, err := c.vector(t.Context(), "up", time.Now()); err != nil {
		t.Fatal(err)
	}

	cmptest.Equal(t, "waits", waits(), []time.Duration{7 * time.Second, 2 * time.Second, longestWait})
}

// TestFailingServer: a server that has answered is asked again if it fails, one that has not is
// given up.
func TestFailingServer(t *testing.T) {
	ok := says(200, "application/json", emptyVector)
	bad := says(502, "text/html", "<html>")

	c, waits := clientOf(t, serve(t, ok, bad, halfAnswer, ok, bad))
	for range 2 {
		if _, err := c.vector(t.Context(), "up", time.Now()); err != nil {
			t.Fatal(err)
		}
	}

	cmptest.Equal(t, "waits", waits(), []time.Duration{time.Second, 2 * time.Second})

	if _, err := c.vector(t.Context(), "up", time.Now()); err == nil || len(waits()) != 5 {
		t.Errorf("%v after %v", err, waits())
	}

	c, waits = clientOf(t, serve(t, bad, ok))
	if _, err := c.vector(t.Context(), "up", time.Now()); err == nil || len(waits()) != 0 {
		t.Errorf("%v after %v", err, waits())
	}
}

// TestLongAnswer: an answer that does not end is given up, as too much to ask for at once.
func TestLongAnswer(t *testing.T) {
	endless := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, emptyVector[:len(emptyVector)-3])

		for blank := strings.Repeat(" ", 1<<20); ; {
			if _, err := io.WriteString(w, blank); err != nil {
				return
			}
		}
	}

	c, _ := clientOf(t, serve(t, endless))
	if _, err := c.vector(t.Context(), "up", time.Now()); !isTooMuch(err) {
		t.Errorf("%v", err)
	}
}

// TestPostIsRefused: a proxy that only lets GET through is asked so.
func TestPostIsRefused(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusForbidden)
			return
		}

		says(200, "application/json", emptyVector)(w, r)
	})

	c, _ := clientOf(t, url)
	if _, err := c.vector(t.Context(), "up", time.Now()); err != nil {
		t.Error(err)
	}
}

// TestRedirects: a redirect that keeps the query is followed, unless the configuration forbids it.
func TestRedirects(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stay.yml")
	if err := os.WriteFile(file, []byte("follow_redirects: false\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	moved := says(308, "text/html", "", "Location", "/there")
	ok := says(200, "application/json", emptyVector)

	c, _ := clientOf(t, serve(t, moved, ok))
	if _, err := c.vector(t.Context(), "up", time.Now()); err != nil {
		t.Error(err)
	}

	c, err := NewClient(ClientOptions{URL: serve(t, moved, ok), ConfigFile: file, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(c.Close)

	if _, err := c.vector(t.Context(), "up", time.Now()); err == nil || !strings.Contains(err.Error(), "it redirects to /there") {
		t.Error(err)
	}
}

// TestClientConfiguration: TLS and credentials come from a file in Prometheus' own form, with paths
// relative to it.
func TestClientConfiguration(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		return path
	}
	write("password", "secret\n")
	good := write("good.yml", "basic_auth: {username: ops, password_file: password}\ntls_config: {insecure_skip_verify: true}\n")
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "ops" || password != "secret" || r.UserAgent() != "test" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}

		says(200, "application/json", emptyVector)(w, r)
	}))
	t.Cleanup(server.Close)

	c, err := NewClient(ClientOptions{URL: server.URL + "/", ConfigFile: good, Timeout: time.Minute, UserAgent: "test"})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(c.Close)

	if _, err := c.vector(t.Context(), "up", time.Now()); err != nil {
		t.Error(err)
	}

	for _, file := range []string{filepath.Join(dir, "absent.yml"), write("bad.yml", "basic_auth: {user: ops}\n"), write("none.yml", "\x00"),
		write("ca.yml", "tls_config: {ca_file: nowhere.pem}\n"),
		write("user.yml", "basic_auth: {username_file: nowhere}\n"), write("pass.yml", "basic_auth: {username: a, password_file: nowhere}\n"),
		write("token.yml", "authorization: {credentials_file: nowhere}\n"), write("bearer.yml", "bearer_token_file: nowhere\n"),
		write("oauth.yml", "oauth2: {client_id: a, client_secret_file: nowhere, token_url: http://h}\n"),
		write("two.yml", "basic_auth: {username: a}\nauthorization: {credentials: b}\n"), write("cert.yml", "tls_config: {cert_file: password, key_file: password}\n")} {
		if _, err := NewClient(ClientOptions{URL: server.URL, ConfigFile: file}); err == nil || !strings.Contains(err.Error(), filepath.Base(file)) {
			t.Errorf("%s: %v", file, err)
		}
	}

	write("empty", "\n")
	write("lines", "hidden\nhidden")

	for _, file := range []string{write("a.yml", "bearer_token_file: empty\n"), write("b.yml", "authorization: {credentials_file: lines}\n"),
		write("c.yml", "basic_auth: {username: a, password_file: empty}\n"), write("d.yml", `authorization: {credentials: "hidden\0"}`)} {
		_, err := NewClient(ClientOptions{URL: server.URL, ConfigFile: file})
		if err == nil || !strings.Contains(err.Error(), filepath.Base(file)) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", file, err)
		}
	}

	for _, url := range []string{"", "prometheus:9090", "ftp://h", "http://", "http://h?x=1", "http://h#a", "http://[::1", "file:///etc"} {
		if _, err := NewClient(ClientOptions{URL: url}); err == nil || !strings.Contains(err.Error(), "expected http://") {
			t.Errorf("%q: %v", url, err)
		}
	}

	c, err = NewClient(ClientOptions{URL: "http://me:secret@127.0.0.1:1/", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}

	if _, err := Analyze(t.Context(), c, weekly()); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a password is in %v", err)
	}
}

func TestWarnings(t *testing.T) {
	c, _ := clientOf(t, serve(t, says(200, "application/json", strings.Replace(emptyVector, "{", `{"warnings":["store a is away","store a is away"],`, 1))))
	for range 3 {
		if _, err := c.vector(t.Context(), "up", time.Now()); err != nil {
			t.Fatal(err)
		}
	}

	cmptest.Equal(t, "warnings", c.Warnings(), []string{"store a is away"})
}

// TestPartialHistory: if a part of the history may be missing, replicas and servers may be in it: no slice is
// final. What Prometheus says of a query makes no answer partial.
func TestPartialHistory(t *testing.T) {
	for warning, isPartial := range map[string]bool{
		"receive series from sidecar-b:10901: unavailable":                           true,
		"PromQL warning: metric might not be a counter, name does not end in _total": false,
	} {
		d := narrow(weekly())
		s := analysisOf(weekly())
		s.client = &Client{}
		s.client.keepWarnings([]string{warning})
		s.gpus = []*fleetGPU{d}
		judgeOne(s, d)
		r := s.report()
		cmptest.Equal(t, warning, r.GPUs[0].Provisional, isPartial)
		cmptest.Equal(t, warning+": slices", r.Fleet.Slices, 1)
		cmptest.Equal(t, warning+": noted", strings.Contains(strings.Join(r.Notes, "\n"), "All slices are provisional"), isPartial)
	}
}

// TestMarkedPartial: a cluster of VictoriaMetrics marks answers that lack what a storage node has. It warns
// of nothing. However many other warnings there are, a partial answer is not lost among them.
func TestMarkedPartial(t *testing.T) {
	marked := func(mark string) string {
		return strings.Replace(emptyVector, `"data"`, `"isPartial":`+mark+`,"data"`, 1)
	}
	many := `{"warnings":[`

	for i := range 2 * maxWarnings {
		many += fmt.Sprintf(`"PromQL warning %d",`, i)
	}

	many = strings.Replace(emptyVector, "{", many+`"store a is away"],`, 1)

	for answer, isPartial := range map[string]bool{
		marked("true"):  true,
		marked("false"): false,
		strings.Replace(emptyVector, `"result":[]`, `"result":[],"isPartial":true`, 1): false, // of no known server
		many: true,
	} {
		c, _ := clientOf(t, serve(t, says(200, "application/json", answer)))
		if _, err := c.vector(t.Context(), "up", time.Now()); err != nil {
			t.Fatal(err)
		}

		cmptest.Equal(t, answer, c.isPartial(), isPartial)

		if isPartial && answer != many {
			cmptest.Equal(t, "warnings", c.Warnings(), []string{partialWarning})
		}
	}
}

// TestHidePassword: no message shows a password, even if the URL is malformed.
func TestHidePassword(t *testing.T) {
	for address, want := range map[string]string{
		"http://h:1":              "http://h:1",
		"http://u@h:1":            "http://u@h:1",
		"http://u:secret@h:1":     "http://u:xxxxx@h:1",
		"http://u:se@cret@h:1":    "http://u:xxxxx@h:1",
		"http://u:se%cret@h:1":    "xxxxx@h:1",
		"http://u:se cret@h:1":    "xxxxx@h:1",
		"http://u:12/secret@h:1":  "xxxxx@h:1",
		"http:///u:secret@h:1":    "xxxxx@h:1",
		"u:secret@h:9401":         "xxxxx@h:9401",
		"unix:///run/user@1/sock": "unix:///run/user@1/sock",
		"/run/user@1/sock":        "/run/user@1/sock",
	} {
		cmptest.Equal(t, address, HidePassword(address), want)
	}

	for _, u := range []string{"http://u:se%cret@h:1", "ftp://u:secret@h"} {
		if _, err := NewClient(ClientOptions{URL: u}); err == nil || strings.Contains(err.Error(), "cret") {
			t.Errorf("%s: %v", u, err)
		}
	}
}
