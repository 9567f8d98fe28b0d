package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// stateHandler serves the Snapshot as JSON.
type stateHandler struct {
	documents perSnapshot[*stateDocument]
	logger    log.Logger
}

// stateDocument is one Snapshot as JSON, encoded when first asked for.
type stateDocument struct {
	etag   string
	plain  func() ([]byte, error)
	packed func() ([]byte, error)
}

// NewStateHandler serves the last Snapshot as JSON, the document of /api/v1/node, for another listener than this package's.
func NewStateHandler(snaps Snapshots, logger log.Logger) http.Handler {
	return newStateHandler(snaps, new(buffers), logger)
}

func newStateHandler(snaps Snapshots, pool *buffers, logger log.Logger) *stateHandler {
	return &stateHandler{
		logger: logger,
		documents: perSnapshot[*stateDocument]{snaps: snaps, make: func(snap *gpu.Snapshot) *stateDocument {
			return newStateDocument(snap, pool)
		}},
	}
}

func newStateDocument(snap *gpu.Snapshot, pool *buffers) *stateDocument {
	plain := sync.OnceValues(func() ([]byte, error) {
		text, err := json.Marshal(nodedoc.New(snap))
		return append(text, '\n'), err
	})
	packed := sync.OnceValues(func() ([]byte, error) {
		text, err := plain()
		if err != nil {
			return nil, err
		}
		var buf bytes.Buffer
		pool.gzip(&buf, text)
		return buf.Bytes(), nil
	})
	return &stateDocument{
		// Weak, as the same state goes out in several codings. Generations start again with the process: the time tells
		// its Snapshots from those of the process before.
		etag:   fmt.Sprintf(`W/"%d-%x"`, snap.Generation, snap.Time.UnixNano()),
		plain:  plain,
		packed: packed,
	}
}

// ServeHTTP answers with the state, 304 where the client has it, or a problem document (RFC 9457).
func (h *stateHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	doc, ok := h.documents.current()
	if !ok {
		w.Header().Set("Retry-After", "1")
		writeProblem(w, http.StatusServiceUnavailable, "no-snapshot", "No snapshot yet",
			"the first reading of this node has not ended")
		return
	}
	header := w.Header()
	// Caches may keep it but have to ask whether it still holds.
	header.Set("Cache-Control", "no-cache")
	header.Set("ETag", doc.etag)
	coding := negotiateCoding(r.Header)
	encode := doc.plain
	if coding == codingGzip {
		encode = doc.packed
	}
	if matches(r.Header, doc.etag) {
		header.Add("Vary", "Accept-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body, err := encode()
	if err != nil {
		header.Del("ETag")
		_ = level.Error(h.logger).Log("msg", "The state could not be encoded", "err", err)
		writeProblem(w, http.StatusInternalServerError, "encoding", "The state could not be encoded", err.Error())
		return
	}
	header.Set("Content-Type", "application/json")
	answer(w, coding, body)
}

// matches reports whether If-None-Match names the tag, compared weakly as RFC 9110 (13.1.2) wants it for GET.
func matches(h http.Header, etag string) bool {
	opaque := strings.TrimPrefix(etag, "W/")
	for _, line := range h.Values("If-None-Match") {
		for tag := range strings.SplitSeq(line, ",") {
			tag = strings.TrimSpace(tag)
			if tag == "*" || strings.TrimPrefix(tag, "W/") == opaque {
				return true
			}
		}
	}
	return false
}

// problem is an error as RFC 9457 has it; programs tell errors apart by its type.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

func writeProblem(w http.ResponseWriter, status int, kind, title, detail string) {
	body, err := json.Marshal(problem{Type: "urn:mig-exporter:problem:" + kind, Title: title, Status: status, Detail: detail})
	if err != nil {
		body = []byte("{}")
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
