package migctl

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

var update = flag.Bool("update", false, "write the golden files of testdata/migctl")

const testdata = "../../../testdata/migctl/"

// request is what the fake server was asked.
type request struct {
	line, key, token, last string
	body                   string
}

// fake answers with canned documents: routes by "METHOD /path" below /api/v1, and "*" for all others.
type fake struct {
	mu     sync.Mutex
	asked  []request
	routes map[string]http.HandlerFunc
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	line := r.Method + " " + strings.TrimPrefix(r.URL.EscapedPath(), "/api/v1")
	f.mu.Lock()
	f.asked = append(f.asked, request{
		line: line, key: r.Header.Get("Idempotency-Key"), token: r.Header.Get("Authorization"),
		last: r.Header.Get("Last-Event-ID"), body: string(body),
	})

	route := f.routes[line]
	if route == nil {
		route = f.routes["*"]
	}

	f.mu.Unlock()

	if route == nil {
		refuse(api.Problem{Type: api.NotFound, Title: "Not found", Status: 404, Detail: "There is no " + line + "."})(w, r)
		return
	}

	route(w, r)
}

func (f *fake) requests(prefix string) []request {
	f.mu.Lock()
	defer f.mu.Unlock()

	return slices.DeleteFunc(slices.Clone(f.asked), func(r request) bool { return !strings.HasPrefix(r.line, prefix) })
}

func file(t *testing.T, name string) http.HandlerFunc {
	t.Helper()

	data, err := os.ReadFile(testdata + name)
	if err != nil {
		t.Fatal(err)
	}

	return raw(string(data))
}

func raw(document string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, document)
	}
}

func answer(document any) http.HandlerFunc { return raw(string(encode(document))) }

// encode returns a document as the server writes it. A document of a test may leave out its version.
func encode(document any) []byte {
	data, err := json.Marshal(document)
	if err != nil {
		panic(err)
	}

	return bytes.Replace(data, []byte(`"apiVersion":""`), []byte(`"apiVersion":"`+api.Version+`"`), 1)
}

func refuse(p api.Problem) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(p.Status)
		json.NewEncoder(w).Encode(p)
	}
}

// stream sends events; then the connection ends, with broken in the middle of one.
func stream(broken bool, events ...api.Event) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, ": events of an operation\n\n")

		for _, e := range events {
			data, _ := json.Marshal(e)
			fmt.Fprintf(w, "id: %d\nevent: %s\ndata: %s\n\n", e.Seq, e.Kind, data)
		}

		w.(http.Flusher).Flush()

		if broken {
			io.WriteString(w, "id: 99\ndata: {\"se")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	}
}

// inTurn answers each request with the next handler, and then with the last.
func inTurn(handlers ...http.HandlerFunc) http.HandlerFunc {
	var mu sync.Mutex

	return func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()

		h := handlers[0]
		if len(handlers) > 1 {
			handlers = handlers[1:]
		}

		mu.Unlock()
		h(w, r)
	}
}

// serve starts a fake on a unix socket and returns it with its address.
func serve(t *testing.T, routes map[string]http.HandlerFunc) (*fake, string) {
	t.Helper()

	dir, err := os.MkdirTemp("", "migctl") //nolint:usetesting // t.TempDir's path may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")

	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}

	f := &fake{routes: routes}
	server := httptest.NewUnstartedServer(f)
	server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)

	return f, "unix://" + socket
}

// outcome is what a command line came to.
type outcome struct {
	code     int
	out, err string
}

// runner runs command lines as a user would: variables and a terminal, or none.
type runner struct {
	env      map[string]string
	in       string
	terminal bool
	columns  int // of the terminal
	rows     int
	ctx      context.Context
	out      io.Writer
}

func utf8Env() map[string]string { return map[string]string{"LANG": "C.UTF-8"} }

func (r runner) run(t *testing.T, address string, args ...string) outcome {
	t.Helper()
	var out, errOut bytes.Buffer

	env := r.env
	ctx := r.ctx

	if env == nil {
		env = utf8Env()
	}

	if ctx == nil {
		ctx = t.Context()
	}

	env["MIGCTL_ADDRESS"] = address

	s := &session{
		in: strings.NewReader(r.in), out: &out, errOut: &errOut,
		inTerminal: r.terminal, outTerminal: r.terminal, errTerminal: r.terminal,
		size:   func() (columns, rows int) { return r.columns, r.rows },
		lookup: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		retry:  time.Millisecond,
	}
	if r.out != nil {
		s.out = r.out
	}

	t.Setenv("MIGCTL_ADDRESS", address) // kingpin reads the process's own environment
	code := execute(ctx, args, s)

	return outcome{code: code, out: out.String(), err: errOut.String()}
}

// golden compares with a file byte by byte.
func golden(t *testing.T, name, got string) {
	t.Helper()

	if *update {
		if err := os.WriteFile(testdata+name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}

		return
	}

	want, err := os.ReadFile(testdata + name)
	if err != nil {
		t.Fatal(err)
	}

	if got != string(want) {
		t.Errorf("%s differs (go test ./cmd/internal/migctl -update writes it anew):\n%s", name, got)
	}
}

// bodies returns the bodies of requests that change something; each must have an idempotency key.
func (f *fake) bodies(t *testing.T, prefix string) []string {
	t.Helper()
	var all []string

	for _, r := range f.requests(prefix) {
		if r.key == "" {
			t.Errorf("%s: no idempotency key", r.line)
		}

		all = append(all, r.body)
	}

	return all
}

// expectGolden checks that a command has succeeded without an error, and has written a golden that
// fits a terminal.
func (o outcome) expectGolden(t *testing.T, name string) {
	t.Helper()

	if o.code != exitOK || o.err != "" {
		t.Fatalf("exit code %d: %s", o.code, o.err)
	}

	fits(t, o.out)
	golden(t, name, o.out)
}

// fits checks that no line is wider than a terminal.
func fits(t *testing.T, out string) {
	t.Helper()

	out = strings.ReplaceAll(out, "[y/N] ", "[y/N] \n") // a terminal echoes the answer
	for _, line := range strings.Split(out, "\n") {
		if n := utf8.RuneCountInString(line); n > tableWidth {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
