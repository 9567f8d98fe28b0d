package web

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/history"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// watched is a server whose node a test changes.
type watched struct {
	*published
	node *Node
	url  string
	*served
}

func watch(t *testing.T, snap *gpu.Snapshot) *watched {
	t.Helper()

	w := &watched{published: publish(snap)}
	w.node = NewNode(w.published, history.New(time.Minute), judge(w.published), log.NewNopLogger())
	handler := testHandler(Options{State: true, Node: w.node}, w.published, newRegistry(t), freshRegistry())

	for _, view := range w.node.stream.views {
		view.every = 0
	}

	w.served = start(t, ServerOptions{ShutdownTimeout: time.Minute, OnShutdown: w.node.Close}, handler, log.NewNopLogger())
	w.url = "http://" + w.addrs[0].String()

	return w
}

// open opens a stream and returns its text, decoded.
func (w *watched) open(t *testing.T, path, encoding string) *bufio.Reader {
	t.Helper()

	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}

	r.Header.Set("Accept-Encoding", encoding) // without it the client asks for gzip and hides that

	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = answer.Body.Close() })
	cmptest.Equal(t, "status", answer.StatusCode, http.StatusOK)
	cmptest.Equal(t, "type", answer.Header.Get("Content-Type"), "text/event-stream")
	cmptest.Equal(t, "coding", answer.Header.Get("Content-Encoding"), strings.TrimPrefix(encoding, "identity"))

	if encoding != "gzip" {
		return bufio.NewReader(answer.Body)
	}

	unpacked, err := gzip.NewReader(answer.Body)
	if err != nil {
		t.Fatal(err)
	}

	unpacked.Multistream(false) // browsers stop at the end of the first member

	return bufio.NewReader(unpacked)
}

// nextEvent returns the lines of the next event or comment.
func nextEvent(t *testing.T, r *bufio.Reader) string {
	t.Helper()

	var lines strings.Builder

	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("%v after %q", err, lines.String())
		}

		if line == "\n" {
			return lines.String()
		}

		lines.WriteString(line)
	}
}

// generationOf returns the generation of an event's document.
func generationOf(t *testing.T, event string) uint64 {
	t.Helper()

	_, data, ok := strings.Cut(event, "\ndata: ")
	if !ok || !strings.Contains(event, "event: node\n") {
		t.Fatalf("no event of a node: %.200s", event)
	}

	var doc nodedoc.Document
	if err := json.Unmarshal([]byte(data), &doc); err != nil {
		t.Fatal(err)
	}

	return doc.Generation
}

func later(generation uint64) *gpu.Snapshot {
	snap := nodeFixture()
	snap.Generation = generation

	return snap
}

// TestStream: each client gets the node at once and then with each Snapshot, packed or not; at the
// end there is an event that says so, and what was packed is one whole member.
func TestStream(t *testing.T) {
	for _, encoding := range []string{"gzip", "identity"} {
		t.Run(encoding, func(t *testing.T) {
			w := watch(t, later(1))
			r := w.open(t, pathStream, encoding)

			cmptest.Equal(t, "opening", nextEvent(t, r), "retry: 3000\n")
			cmptest.Equal(t, "first", generationOf(t, nextEvent(t, r)), uint64(1))

			for generation := uint64(2); generation < 6; generation++ {
				w.Store(later(generation))
				cmptest.Equal(t, "next", generationOf(t, nextEvent(t, r)), generation)
			}

			if err := w.end(); err != nil {
				t.Errorf("the server ended with %v: expected it not to wait for streams", err)
			}

			cmptest.Equal(t, "ending", nextEvent(t, r), "event: end\ndata: the exporter stops\n")

			if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
				t.Errorf("after the end: %q, %v", rest, err)
			}
		})
	}
}

// TestStreamWithCurl: a decoder other than Go's has each event of the packed stream at once, and finds
// it whole at the end.
func TestStreamWithCurl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("NOT TESTED: the packed stream with another decoder: there is no curl")
	}

	w := watch(t, later(1))
	command := exec.CommandContext(t.Context(), curl, "--compressed", "--no-buffer", "--silent", "--show-error",
		"--max-time", "60", "--include", w.url+pathStream)

	var problems strings.Builder

	command.Stderr = &problems

	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}

	if err := command.Start(); err != nil {
		t.Fatal(err)
	}

	r := bufio.NewReader(out)
	coding := ""

	for line := ""; line != "\r\n"; {
		if line, err = r.ReadString('\n'); err != nil {
			t.Fatalf("headers: %v: %s", err, problems.String())
		}

		if name, value, _ := strings.Cut(line, ": "); strings.EqualFold(name, "Content-Encoding") {
			coding = strings.TrimSpace(value)
		}
	}

	cmptest.Equal(t, "coding", coding, "gzip")
	cmptest.Equal(t, "opening", nextEvent(t, r), "retry: 3000\n")
	cmptest.Equal(t, "first", generationOf(t, nextEvent(t, r)), uint64(1))
	w.Store(later(2))
	cmptest.Equal(t, "second", generationOf(t, nextEvent(t, r)), uint64(2))

	if err := w.end(); err != nil {
		t.Error(err)
	}

	cmptest.HasTexts(t, nextEvent(t, r), "event: end\n")

	if err := command.Wait(); err != nil {
		t.Errorf("curl: %v: %s", err, problems.String())
	}
}

// TestStreamOfThePage: the view of the page is its content, escaped as the page is.
func TestStreamOfThePage(t *testing.T) {
	snap := later(1)
	snap.Hostname = "<script>\nalert(1)"
	w := watch(t, snap)
	r := w.open(t, pathStream+"?view=page", "gzip")

	nextEvent(t, r)
	got := nextEvent(t, r)

	for _, line := range strings.Split(strings.TrimSpace(got), "\n")[2:] {
		if !strings.HasPrefix(line, "data: ") {
			t.Errorf("line %q: expected data", line)
		}
	}

	cmptest.HasTexts(t, got, `data: <main id="node"`, `data: </main>`, "&lt;script&gt;\ndata: alert(1)")
	cmptest.LacksTexts(t, got, "<script>", "<html")
}

// TestStreamKeepsLinesTogether: to a reader of events a carriage return ends a line, too. A name that
// has one loses nothing, and begins no field or event of its own.
func TestStreamKeepsLinesTogether(t *testing.T) {
	snap := later(1)
	snap.Hostname = "a\rdata: b\r\revent: end\r\nc\r"
	w := watch(t, snap)
	r := w.open(t, pathStream+"?view=page", "identity")

	nextEvent(t, r)
	got := nextEvent(t, r)

	cmptest.LacksTexts(t, got, "\r")
	cmptest.HasTexts(t, got, "<h1>a\ndata: data: b\ndata: \ndata: event: end\ndata: c\ndata: </h1>", "data: </main>")
}

// TestStreamBeforeTheFirstSnapshot: a stream waits for the first reading.
func TestStreamBeforeTheFirstSnapshot(t *testing.T) {
	w := watch(t, nil)
	r := w.open(t, pathStream, "identity")
	nextEvent(t, r)
	w.Store(later(7))
	cmptest.Equal(t, "first", generationOf(t, nextEvent(t, r)), uint64(7))
}

// TestEventsAreShared: however many watch, a Snapshot is encoded once, and not at all without a
// client.
func TestEventsAreShared(t *testing.T) {
	w := watch(t, later(1))

	var encoded atomic.Int32

	source := w.node.stream.views[viewDocument]
	inner := source.encode
	source.encode = func(dst *bytes.Buffer, s *gpu.Snapshot) error {
		encoded.Add(1)
		return inner(dst, s)
	}

	w.Store(later(2))
	cmptest.Equal(t, "encoded without a client", encoded.Load(), int32(0))

	var all []*bufio.Reader
	for range 20 {
		all = append(all, w.open(t, pathStream, "gzip"))
	}

	for _, r := range all {
		nextEvent(t, r)
		cmptest.Equal(t, "first", generationOf(t, nextEvent(t, r)), uint64(2))
	}

	w.Store(later(3))

	for _, r := range all {
		cmptest.Equal(t, "second", generationOf(t, nextEvent(t, r)), uint64(3))
	}

	cmptest.Equal(t, "encoded", encoded.Load(), int32(2))
}

// TestWatchersAreBounded: the one too many is refused, with what to do instead; scrapes are served
// all the same.
func TestWatchersAreBounded(t *testing.T) {
	w := watch(t, later(1))
	for range maxWatchers {
		nextEvent(t, w.open(t, pathStream, "identity"))
	}

	status, body, header := fetch(t, http.DefaultClient, http.MethodGet, w.url+pathStream)
	cmptest.Equal(t, "status", status, http.StatusServiceUnavailable)
	cmptest.Equal(t, "retry", header.Get("Retry-After"), "30")
	cmptest.HasTexts(t, body, "urn:mig-exporter:problem:watchers", "64 streams are open", pathNode)

	for _, path := range []string{pathMetrics, pathNode, "/"} {
		status, _, _ := fetch(t, http.DefaultClient, http.MethodGet, w.url+path)
		cmptest.Equal(t, path, status, http.StatusOK)
	}
}

// TestStreamRefusals: the stream, the history and the health are behind the guards of the state.
func TestStreamRefusals(t *testing.T) {
	w := watch(t, later(1))

	for _, path := range []string{pathStream, pathHistory, pathHealth} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}

		r.Host = "attacker.example"

		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}

		_ = answer.Body.Close()
		cmptest.Equal(t, path+" for a foreign host", answer.StatusCode, http.StatusMisdirectedRequest)
	}

	off := testHandler(Options{}, w.published, newRegistry(t), freshRegistry())

	for _, path := range []string{pathStream, pathHistory, pathHealth} {
		rec := httptest.NewRecorder()
		off.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		cmptest.Equal(t, path+" without the state", rec.Code, http.StatusNotFound)
	}

	status, body, _ := fetch(t, http.DefaultClient, http.MethodGet, w.url+pathStream+"?view=all")
	cmptest.Equal(t, "status", status, http.StatusBadRequest)
	cmptest.HasTexts(t, body, `view=\"all\"`, "or page")
}

// pipeListener accepts one connection that a test holds the other end of.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	close(l.closed)
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// TestSlowWatcherIsDropped: a client that stops to read loses its connection after the time for one
// event, and no sooner than that by the limits of the server; the log says why.
func TestSlowWatcherIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		snaps := publish(later(1))
		lines := new(logged)
		node := NewNode(snaps, history.New(time.Minute), judge(snaps), lines)
		server := newServer(node.Stream, log.NewNopLogger())
		client, conn := net.Pipe()
		l := &pipeListener{conns: make(chan net.Conn, 1), closed: make(chan struct{})}
		l.conns <- conn

		go func() { _ = server.Serve(l) }()

		if _, err := io.WriteString(client, "GET /api/v1/node/stream HTTP/1.1\r\nHost: n\r\n\r\n"); err != nil {
			t.Fatal(err)
		}

		// Without a new Snapshot there are heartbeats alone. The server's own limits must not end
		// the stream.
		_ = client.SetReadDeadline(time.Now().Add(5*time.Minute + time.Second))

		read, err := io.ReadAll(client)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the stream ended with %v", err)
		}

		cmptest.Equal(t, "heartbeats in five minutes", strings.Count(string(read), ": no new reading"), 20)
		cmptest.Equal(t, "dropped", lines.count(), 0)

		time.Sleep(heartbeatEvery + eventTimeout)
		synctest.Wait()
		cmptest.HasTexts(t, lines.text(), "dropped a client", "10s")

		_ = server.Close()
		_ = client.Close()
	})
}

// TestStalledWatcherIsDropped: over TCP, too, a client that does not read is dropped soon: the
// kernel does not take megabytes of events for it.
func TestStalledWatcherIsDropped(t *testing.T) {
	const mostQueued = 512 << 10 // on both ends

	snaps := publish(later(1))
	lines := new(logged)
	node := NewNode(snaps, history.New(time.Minute), judge(snaps), lines)
	node.stream.timeout = 200 * time.Millisecond
	node.stream.views[viewDocument].every = 0
	server := start(t, ServerOptions{ShutdownTimeout: time.Minute, OnShutdown: node.Close}, node.Stream, log.NewNopLogger())

	client, err := new(net.Dialer).DialContext(t.Context(), "tcp", server.addrs[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	if err := client.(*net.TCPConn).SetReadBuffer(16 << 10); err != nil {
		t.Fatal(err)
	}

	if _, err := io.WriteString(client, "GET /api/v1/node/stream HTTP/1.1\r\nHost: n\r\n\r\n"); err != nil {
		t.Fatal(err)
	}

	begun := time.Now()
	for generation := uint64(2); lines.count() == 0; generation++ {
		if time.Since(begun) > time.Minute {
			t.Fatal("the client was not dropped")
		}

		snaps.Store(later(generation))
		time.Sleep(time.Millisecond)
	}

	cmptest.HasTexts(t, lines.text(), "dropped a client", "too slowly", client.LocalAddr().String())

	if queued, _ := io.Copy(io.Discard, client); queued > mostQueued {
		t.Errorf("%d bytes were queued for the client, want at most %d", queued, mostQueued)
	}
}

// TestHTTP2StreamOutlivesTheTimeout: the time for accepting an event is no limit for the time
// between two.
func TestHTTP2StreamOutlivesTheTimeout(t *testing.T) {
	t.Parallel()
	node := NewNode(publish(later(1)), history.New(time.Minute), judge(publish(later(1))), log.NewNopLogger())
	node.stream.timeout = 2 * time.Second // for an event: even a busy machine takes less
	node.stream.views[viewDocument].heartbeatAfter = 2500 * time.Millisecond

	server := httptest.NewUnstartedServer(node.Stream)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	t.Cleanup(node.Close)

	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}

	answer, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()

	cmptest.Equal(t, "protocol", answer.Proto, "HTTP/2.0")
	events := bufio.NewReader(answer.Body)
	nextEvent(t, events) // how long to wait before the next connection
	nextEvent(t, events) // the node

	cmptest.Equal(t, "after it", nextEvent(t, events), ": no new reading\n")
}

// TestNothingIsKeptWithoutWatchers: the last client that leaves takes the event and its Snapshot
// along.
func TestNothingIsKeptWithoutWatchers(t *testing.T) {
	w := watch(t, later(1))
	source := w.node.stream.views[viewDocument]
	r := w.open(t, pathStream, "identity")
	nextEvent(t, r)
	nextEvent(t, r)

	if err := w.end(); err != nil { // it waits for the streams
		t.Error(err)
	}

	source.mu.Lock()
	defer source.mu.Unlock()

	if source.last != nil || source.snap != nil {
		t.Error("the source keeps an event")
	}
}

// TestLateWatcherSeesTheTrueAge: a client that comes between two polls far apart gets the ages of
// now, not of when the page was encoded for others. These get no second event for that.
func TestLateWatcherSeesTheTrueAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		snap := later(1)
		snap.Time = time.Now()
		snaps := publish(snap)
		node := NewNode(snaps, history.New(time.Minute), judge(snaps), log.NewNopLogger())
		testHandler(Options{State: true, Node: node, Now: time.Now}, snaps, newRegistry(t), freshRegistry())

		source := node.stream.views[viewPage]
		source.heartbeatAfter = time.Minute
		first := source.await(t.Context(), nil)
		cmptest.HasTexts(t, string(first.text()), "less than 1 s ago")

		time.Sleep(time.Second)

		if source.await(t.Context(), nil) != first {
			t.Error("a client that comes at once does not share the event")
		}

		time.Sleep(19 * time.Second)
		cmptest.HasTexts(t, string(source.await(t.Context(), nil).text()), "20 s ago")

		if again := source.await(t.Context(), first); again != nil {
			t.Errorf("the first client gets the same reading again: %.80s", again.text())
		}
	})
}

// TestEventsAreNotTooOften: the first event comes at once, those after it a second apart however
// often we poll.
func TestEventsAreNotTooOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		snaps := publish(later(0))
		source := newEventSource(snaps, appendDocument, new(buffers), log.NewNopLogger())
		stop := make(chan struct{})

		go func() {
			for generation := uint64(1); ; generation++ {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
					snaps.Store(later(generation))
				}
			}
		}()

		begun := time.Now()

		var last *event
		for range 10 {
			last = source.await(t.Context(), last)
		}

		cmptest.Equal(t, "time of ten events", time.Since(begun).Round(100*time.Millisecond), 9*time.Second)
		close(stop)
	})
}

// BenchmarkStream: one Snapshot for 50 clients.
func BenchmarkStream(b *testing.B) {
	snaps := publish(nil)
	node := NewNode(snaps, history.New(time.Minute), judge(snaps), log.NewNopLogger())
	opts := Options{State: true, Now: time.Now, Node: node}
	page := newPageHandler(opts, snaps, new(buffers), log.NewNopLogger())

	for name, encode := range map[string]func(*bytes.Buffer, *gpu.Snapshot) error{
		"document": appendDocument, "page": page.renderNode,
	} {
		b.Run(name, func(b *testing.B) { benchmarkStream(b, encode) })
	}
}

func benchmarkStream(b *testing.B, encode func(*bytes.Buffer, *gpu.Snapshot) error) {
	snap := slicedNode()
	snaps := publish(snap)
	source := newEventSource(snaps, encode, new(buffers), log.NewNopLogger())
	source.every = 0

	var watchers []*eventWriter

	for range 50 {
		client := &discard{}
		watchers = append(watchers, &eventWriter{coding: codingGzip, timeout: time.Minute, w: client, control: http.NewResponseController(client)})
	}

	b.ReportAllocs()

	for b.Loop() {
		another := *snap
		snaps.Store(&another)

		next := source.await(b.Context(), nil)
		for _, w := range watchers {
			if err := w.send(next); err != nil {
				b.Fatal(err)
			}
		}
	}
}
