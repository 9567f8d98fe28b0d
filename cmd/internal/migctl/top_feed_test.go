package migctl

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// serveNode starts an exporter's listener with some routes.
func serveNode(t *testing.T, routes map[string]http.HandlerFunc) *httptest.Server {
	t.Helper()

	server := httptest.NewServer(&fake{routes: routes})
	t.Cleanup(server.Close)

	return server
}

// nodeStream sends documents as the stream of a node does, and then the events in ending; after
// those it waits.
func nodeStream(ending string, docs ...nodedoc.Document) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "retry: 3000\n\n")

		for i := range docs {
			fmt.Fprintf(w, "id: %d\nevent: node\ndata: %s\n\n: a comment\n\n", i, encode(docs[i]))
		}

		io.WriteString(w, ending)
		w.(http.Flusher).Flush()

		if ending == "" {
			<-r.Context().Done()
		}
	}
}

// follow runs a feed and returns its next messages.
func follow(t *testing.T, address string, count int) []topMessage {
	t.Helper()

	c, err := newExporterClient(&options{Timeout: 5 * time.Second}, address)
	if err != nil {
		t.Fatal(err)
	}

	messages := make(chan topMessage)
	go (&feed{client: c, firstPause: time.Millisecond}).run(t.Context(), messages)

	var got []topMessage
	for len(got) < count {
		select {
		case m := <-messages:
			if _, ok := m.(historyMessage); !ok {
				got = append(got, m)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("only %d of %d messages", len(got), count)
		}
	}

	return got
}

// TestFeedReconnects: a stream that the exporter ends is followed again.
func TestFeedReconnects(t *testing.T) {
	doc := nodedoc.Document{Generation: 1}
	again := nodedoc.Document{Generation: 2}
	server := serveNode(t, map[string]http.HandlerFunc{
		"GET /node/stream": inTurn(nodeStream("event: end\ndata: the exporter stops\n\n", doc), nodeStream("", again)),
	})

	got := follow(t, server.URL, 3)
	cmptest.Equal(t, "first reading", got[0].(readingMessage).doc.Generation, 1)
	cmptest.Equal(t, "trouble", got[1].(troubleMessage).text, "the exporter has ended the stream")
	cmptest.Equal(t, "reading of the second stream", got[2].(readingMessage).doc.Generation, 2)
}

// TestFeedPolls: an exporter that refuses its stream is asked for its document.
func TestFeedPolls(t *testing.T) {
	server := serveNode(t, map[string]http.HandlerFunc{
		"GET /node/stream": refuse(api.Problem{Type: "watchers", Title: "Too many streams are open", Status: 503}),
		"GET /node":        answer(nodedoc.Document{Generation: 7}),
	})

	got := follow(t, server.URL, 2)
	cmptest.Equal(t, "reading", got[0].(readingMessage).doc.Generation, 7)
	trouble := got[1].(troubleMessage)
	cmptest.Equal(t, "trouble", trouble.text, "Too many streams are open")
	cmptest.Equal(t, "pause", trouble.retryAfter, pollEvery)
	cmptest.Equal(t, "polled", trouble.polled, true)
}

// TestFeedBreaks: a stream that breaks off, a server that is no exporter and one that is not
// there are reported.
func TestFeedBreaks(t *testing.T) {
	broken := serveNode(t, map[string]http.HandlerFunc{
		"GET /node/stream": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "event: node\ndata: {\"generation\":")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
	})
	garbled := serveNode(t, map[string]http.HandlerFunc{"GET /node/stream": raw("event: node\ndata: nonsense\n\n")})
	foreign := httptest.NewServer(http.NotFoundHandler())
	gone := httptest.NewServer(http.NotFoundHandler())

	t.Cleanup(foreign.Close)
	gone.Close()

	for address, want := range map[string]string{
		broken.URL:  "unexpected EOF",
		garbled.URL: "this does not seem to be a mig-exporter that serves its state (--web.state): it answers with no JSON object",
		foreign.URL: "this does not seem to be a mig-exporter that serves its state (--web.state): it answers 404",
		gone.URL:    "connection refused",
	} {
		cmptest.HasTexts(t, follow(t, address, 1)[0].(troubleMessage).text, want)
	}
}

// TestTopSaysWhyThereIsNoAnswer: an exporter that asks for a password, or speaks TLS, says so itself.
func TestTopSaysWhyThereIsNoAnswer(t *testing.T) {
	guarded := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", "Basic")
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
	}))
	encrypted := httptest.NewUnstartedServer(http.NotFoundHandler())
	encrypted.Config.ErrorLog = log.New(io.Discard, "", 0) // of the handshake that fails
	encrypted.StartTLS()

	t.Cleanup(guarded.Close)
	t.Cleanup(encrypted.Close)

	for address, says := range map[string][]string{
		guarded.URL: {"it asks for a user and a password, or refuses those of the URL: it answers 401 Unauthorized",
			"https://USER:PASSWORD@HOST:PORT"},
		strings.Replace(encrypted.URL, "https", "http", 1): {
			`it answers 400 Bad Request "Client sent an HTTP request to an HTTPS server."`},
	} {
		got := runner{}.run(t, "", "top", "--once", "--url="+address)
		cmptest.Equal(t, "exit code", got.code, exitUnreachable)
		cmptest.HasTexts(t, flat(got.err), says...)
	}
}

func TestTopOnce(t *testing.T) {
	server := serveNode(t, map[string]http.HandlerFunc{"GET /node": answer(hostileNode(t))})
	other := serveNode(t, map[string]http.HandlerFunc{"GET /node": file(t, "node-rtxpro.json")})

	for _, args := range [][]string{{"--once"}, {}} { // standard output is no terminal
		got := runner{}.run(t, defaultAddress, append([]string{"top", "--url", server.URL, "--url", other.URL}, args...)...)
		cmptest.Equal(t, "exit code and errors", outcome{code: got.code, err: got.err}, outcome{})
		fits(t, got.out)
		cmptest.HasTexts(t, got.out, "dgx-a100", "rtx-pro-6", "1g.24gb+me@0")

		if i := strings.IndexFunc(got.out, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%q", got.out[i:])
		}
	}

	wide := runner{env: map[string]string{"LANG": "C.UTF-8", "COLUMNS": "120"}}.run(t, defaultAddress, "top", "--url", other.URL)
	golden(t, "top-once.txt", wide.out)

	narrow := runner{env: map[string]string{"LANG": "C.UTF-8", "COLUMNS": "3"}}.run(t, defaultAddress, "top", "--url", other.URL)
	cmptest.Equal(t, "exit code and errors", outcome{code: narrow.code, err: narrow.err}, outcome{})

	colored := runner{}.run(t, defaultAddress, "--color=always", "top", "--once", "--url", other.URL)
	cmptest.HasTexts(t, colored.out, "\x1b[1m")
}

func TestTopJSON(t *testing.T) {
	doc := hostileNode(t)
	server := serveNode(t, map[string]http.HandlerFunc{
		"GET /node":        answer(doc),
		"GET /node/stream": nodeStream("event: end\ndata: bye\n\n", doc, doc),
	})

	check := func(line string) {
		var got nodedoc.Document
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatalf("%v: %s", err, line)
		}

		cmptest.Equal(t, "the node's name", got.Node.Hostname, doc.Node.Hostname)

		if i := strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%q", line[i:min(i+20, len(line))])
		}
	}

	once := runner{}.run(t, defaultAddress, "top", "--once", "-o", "json", "--url", server.URL)
	cmptest.Equal(t, "lines", strings.Count(once.out, "\n"), 1)
	check(strings.TrimSuffix(once.out, "\n"))

	reader, writer := io.Pipe()
	t.Cleanup(func() { reader.Close() })

	go runner{out: writer}.run(t, defaultAddress, "top", "-o", "json", "--url", server.URL)

	decoder := json.NewDecoder(reader)

	for range 3 { // the third is of another stream
		var line json.RawMessage
		if err := decoder.Decode(&line); err != nil {
			t.Fatal(err)
		}

		check(string(line))
	}
}

func TestTopErrors(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()

	for args, want := range map[string]outcome{
		"top --once --url ftp://h":               {code: exitUsage, err: `--url (or MIGCTL_URL) "ftp://h": expected http://HOST:PORT`},
		"top --once --url http://u:pw@h/x":       {code: exitUsage, err: `--url (or MIGCTL_URL) "http://u:xxxxx@h/x": expected`},
		"top --once --url http://u:pw%@h:1":      {code: exitUsage, err: `--url (or MIGCTL_URL) "xxxxx@h:1": expected`},
		"top --once --url u:pw@h:9401":           {code: exitUsage, err: `--url (or MIGCTL_URL) "xxxxx@h:9401": expected`},
		"evaluate --url https://u:pw@h":          {code: exitUsage, err: `--url (or MIGCTL_URL) "https://u:xxxxx@h": expected`},
		"--address http://u:pw@h get":            {code: exitUsage, err: `--address "http://u:xxxxx@h": expected`},
		"--address https://u:pw@127.0.0.1:1 get": {code: exitUnreachable, err: "u:xxxxx@127.0.0.1:1"},
		"top --once -o yaml":                     {code: exitUsage, err: "expected text or json"},
		"top --once --url " + gone.URL:           {code: exitUnreachable, err: "--web.listen-address"},
		"--token-file " + token + " top --once --url http://node:9401": {
			code: exitUsage, err: "the token would travel unencrypted to node:9401: use https",
		},
		"--ca-file none top --once --url https://h": {code: exitUsage, err: "--ca-file"},
	} {
		got := runner{}.run(t, defaultAddress, strings.Fields(args)...)
		if got.code != want.code || !strings.Contains(flat(got.err), want.err) || strings.Contains(got.err, "pw") {
			t.Errorf("%s: %+v, want %+v", args, got, want)
		}
	}
}

// TestTopAuthenticates: a token, and the name and password of a URL, are sent; the password is
// not shown.
func TestTopAuthenticates(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	node := &fake{routes: map[string]http.HandlerFunc{"GET /node": answer(nodedoc.Document{})}}
	server := httptest.NewServer(node)
	t.Cleanup(server.Close)

	withPassword := strings.Replace(server.URL, "http://", "http://anna:pw@", 1)
	if got := (runner{}).run(t, defaultAddress, "--token-file", token, "top", "--url", server.URL); got.code != exitOK {
		t.Errorf("%+v", got)
	}

	if got := (runner{}).run(t, defaultAddress, "top", "--url", withPassword); got.code != exitOK {
		t.Errorf("%+v", got)
	}

	asked := node.requests("GET /node")
	cmptest.Equal(t, "token", asked[0].token, "Bearer secret")
	cmptest.Equal(t, "password", asked[1].token, "Basic YW5uYTpwdw==")

	state := newTopState([]string{withPassword})
	if out := frameText(t, state, true); strings.Contains(out, "pw") || !strings.Contains(out, "anna:xxxxx@") {
		t.Errorf("the password is shown: %s", out)
	}
}

// TestTopByTLS: --ca-file decides which listener is trusted.
func TestTopByTLS(t *testing.T) {
	server := httptest.NewTLSServer(&fake{routes: map[string]http.HandlerFunc{"GET /node": answer(nodedoc.Document{})}})
	t.Cleanup(server.Close)

	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}

	if err := os.WriteFile(ca, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}

	if got := (runner{}).run(t, defaultAddress, "--ca-file", ca, "top", "--url", server.URL); got.code != exitOK {
		t.Errorf("trusted: %+v", got)
	}

	got := runner{}.run(t, defaultAddress, "top", "--url", server.URL)
	if got.code != exitUnreachable || !strings.Contains(flat(got.err), "--ca-file") {
		t.Errorf("not trusted: %+v", got)
	}
}
