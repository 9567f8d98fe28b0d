package web

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
)

// Limits of streams. They are no flags: a page polls if its stream is refused or dropped.
const (
	// maxWatchers limits the streams that are open at once on all listeners. Scrapes have a limit
	// of their own.
	maxWatchers = 64
	// eventEvery is the least time between two events. We may read GPUs more often than that, for
	// scrapes; a reader of the page would not notice.
	eventEvery = time.Second
	// heartbeatEvery is the time without an event after which a comment keeps proxies from closing
	// the connection.
	heartbeatEvery = 15 * time.Second
	// pageStaleAfter is the age from which on a new watcher does not get the page as we encoded it for
	// others: the page says how old readings were at that time.
	pageStaleAfter = 2 * time.Second
	// eventTimeout is how long a watcher may take to accept one event.
	eventTimeout = 10 * time.Second
	// writeBuffer is how many bytes the kernel may keep for a watcher; Linux doubles it for its own
	// overhead. By default it may be several megabytes. Minutes of old events would then wait for a
	// slow link, and we would notice only after minutes that a client doesn't read at all.
	writeBuffer = 32 << 10
)

// The views of a stream, by the parameter view.
const (
	viewDocument = ""     // the document of /api/v1/node
	viewPage     = "page" // the part of the status page that changes, as HTML
)

// streamHandler sends the state of the node as server-sent events: one for each Snapshot, at most
// one a second. All watchers share the bytes of an event; without watchers nothing is encoded.
type streamHandler struct {
	views    map[string]*eventSource
	watchers chan struct{} // one for each open stream
	timeout  time.Duration // for accepting an event
	closing  context.Context
	close    context.CancelFunc
	logger   log.Logger
}

func newStreamHandler(document *eventSource, logger log.Logger) *streamHandler {
	closing, cancel := context.WithCancel(context.Background())

	return &streamHandler{
		views:    map[string]*eventSource{viewDocument: document},
		watchers: make(chan struct{}, maxWatchers),
		timeout:  eventTimeout,
		closing:  closing,
		close:    cancel,
		logger:   logger,
	}
}

// ServeHTTP streams until the client leaves or reads too slowly, or the program stops.
func (h *streamHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("view")

	source := h.views[name]
	if source == nil {
		writeProblem(w, http.StatusBadRequest, "view", "There is no such view", fmt.Sprintf(
			"view=%.64q: expected none, for the document of %s, or page, for the page's content", name, pathNode))

		return
	}

	select {
	case h.watchers <- struct{}{}:
		defer h.leave()
	default:
		w.Header().Set("Retry-After", "30")
		writeProblem(w, http.StatusServiceUnavailable, "watchers", "Too many streams are open",
			fmt.Sprintf("%d streams are open, which is the limit: ask %s instead", maxWatchers, pathNode))

		return
	}

	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stopWatching := context.AfterFunc(h.closing, cancel) // Node.Close ends the stream
	defer stopWatching()

	limitWriteBuffer(r.Context())

	out := newEventWriter(w, r, h.timeout)
	if r.Method == http.MethodHead {
		return
	}

	if err := source.stream(ctx, out); errors.Is(err, os.ErrDeadlineExceeded) {
		_ = level.Info(h.logger).Log("msg", "dropped a client that reads the node's stream too slowly",
			"client", r.RemoteAddr, "timeout", h.timeout)
	}
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// withConn is a server's ConnContext. It adds the connection, for limitWriteBuffer, to the context of
// its requests.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// limitWriteBuffer limits how much of the answer to a request the kernel keeps. It does nothing in the
// servers of internal/control/server, which limit it themselves.
func limitWriteBuffer(ctx context.Context) {
	conn, _ := ctx.Value(connKey{}).(net.Conn)
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}

	if c, ok := conn.(interface{ SetWriteBuffer(bytes int) error }); ok {
		_ = c.SetWriteBuffer(writeBuffer) // if it fails, we notice a slow client later
	}
}

// leave makes room for another watcher. When the last one has left it drops the events, which keep
// their Snapshot in memory.
func (h *streamHandler) leave() {
	<-h.watchers

	if len(h.watchers) == 0 {
		for _, source := range h.views {
			source.forget()
		}
	}
}

// stream sends events until ctx ends, and then the ending event. It returns an error if it cannot
// send.
func (s *eventSource) stream(ctx context.Context, out *eventWriter) error {
	err := out.send(s.opening)

	var sent *event

	for err == nil {
		next := s.await(ctx, sent)

		switch {
		case next != nil:
			sent = next
			err = out.send(next)
		case ctx.Err() == nil:
			err = out.send(s.heartbeat)
		default:
			return out.end(s.ending)
		}
	}

	return err
}

// eventWriter writes events to one client. With gzip its answer is one member, since browsers
// ignore what follows the first one: the header, the shared blocks of each event, and at the end
// the trailer.
type eventWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration // for accepting an event
	coding  coding
	sum     uint32 // CRC-32 of the text so far
	size    uint32 // of the text so far, modulo 2^32
}

// newEventWriter writes the headers of the answer, and the beginning of its coding.
func newEventWriter(w http.ResponseWriter, r *http.Request, timeout time.Duration) *eventWriter {
	out := &eventWriter{
		w:       w,
		control: http.NewResponseController(w),
		timeout: timeout,
		coding:  negotiateCoding(r.Header),
	}
	// The server's limit for reading a request would end the stream. A client that is gone is
	// noticed with the next event, or by TCP's keep-alive.
	_ = out.control.SetReadDeadline(time.Time{})

	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no") // proxies must not collect events
	header.Add("Vary", "Accept-Encoding")

	if out.coding == codingGzip {
		header.Set("Content-Encoding", string(codingGzip))
	}

	w.WriteHeader(http.StatusOK)

	return out
}

// send writes an event, and blocks until the client has accepted it or the timeout has passed.
func (o *eventWriter) send(e *event) error {
	text := e.text()
	if o.coding != codingGzip {
		return o.write(text)
	}

	packed := e.packed()
	if o.size == 0 { // it is the first event
		packed = append([]byte(gzipHeader), packed...)
	}

	o.sum = crc32.Update(o.sum, crc32.IEEETable, text)
	o.size += uint32(len(text))

	return o.write(packed)
}

// end writes the last event.
func (o *eventWriter) end(e *event) error {
	err := o.send(e)
	if err == nil && o.coding == codingGzip {
		err = o.write(gzipTrailer(o.sum, o.size))
	}

	// The server writes the last chunk after us: that may not block for long either.
	_ = o.control.SetWriteDeadline(time.Now().Add(o.timeout))

	return err
}

func (o *eventWriter) write(b []byte) error {
	// A writer without deadlines, as in tests, has no slow client either.
	_ = o.control.SetWriteDeadline(time.Now().Add(o.timeout))

	if _, err := o.w.Write(b); err != nil {
		return err
	}

	if err := o.control.Flush(); err != nil {
		return err
	}

	// HTTP/2 resets a stream whose deadline passes, even if nothing waits to be written.
	_ = o.control.SetWriteDeadline(time.Time{})

	return nil
}
