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
)

// stateHandler serves a document about the Snapshot as JSON.
type stateHandler struct {
	documents snapshotCache[*stateDocument]
	logger    log.Logger
}

// stateDocument is the document about one Snapshot as JSON. The first request that needs one of its
// forms encodes it.
type stateDocument struct {
	etag   string
	plain  func() ([]byte, error)
	packed func() ([]byte, error)
}

// newStateHandler serves what document returns for the current Snapshot.
func newStateHandler(snaps Snapshots, pool *buffers, logger log.Logger,
	document func(*gpu.Snapshot) any) *stateHandler {
	return &stateHandler{
		logger: logger,
		documents: snapshotCache[*stateDocument]{
			snaps: snaps,
			create: func(snap *gpu.Snapshot) *stateDocument {
				return newStateDocument(snap, pool, document)
			},
		},
	}
}

func newStateDocument(snap *gpu.Snapshot, pool *buffers, document func(*gpu.Snapshot) any) *stateDocument {
	plain := sync.OnceValues(func() ([]byte, error) {
		text, err := json.Marshal(document(snap))
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
		// Weak, since the same state is served in several codings. Generations restart with the
		// process: the time distinguishes its Snapshots from those of the previous process.
		etag:   fmt.Sprintf(`W/"%d-%x"`, snap.Generation, snap.Time.UnixNano()),
		plain:  plain,
		packed: packed,
	}
}

// ServeHTTP answers with the state, with 304 if the client has it, or with a problem document (RFC
// 9457).
func (h *stateHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	doc, ok := h.documents.currentValue()
	if !ok {
		w.Header().Set("Retry-After", "1")
		writeProblem(w, http.StatusServiceUnavailable, "no-snapshot", "No snapshot yet",
			"the first reading of this node has not ended")

		return
	}

	header := w.Header()
	header.Set("Cache-Control", "no-cache") // caches may keep it but must ask whether it is still valid
	header.Set("ETag", doc.etag)

	if matchesETag(r.Header, doc.etag) {
		header.Add("Vary", "Accept-Encoding")
		w.WriteHeader(http.StatusNotModified)

		return
	}

	coding := negotiateCoding(r.Header)

	encode := doc.plain
	if coding == codingGzip {
		encode = doc.packed
	}

	body, err := encode()
	if err != nil {
		header.Del("ETag")
		_ = level.Error(h.logger).Log("msg", "cannot encode the state", "err", err)
		writeProblem(
			w,
			http.StatusInternalServerError,
			"encoding",
			"The state could not be encoded",
			err.Error(),
		)

		return
	}

	header.Set("Content-Type", "application/json")
	writeEncoded(w, coding, body)
}

// matchesETag reports whether If-None-Match names the tag, by the weak comparison that RFC 9110
// (13.1.2) requires for GET.
func matchesETag(h http.Header, etag string) bool {
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

// problem is a problem document (RFC 9457). Programs distinguish errors by its type.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

func writeProblem(w http.ResponseWriter, status int, kind, title, detail string) {
	body, err := json.Marshal(
		problem{Type: "urn:mig-exporter:problem:" + kind, Title: title, Status: status,
			Detail: detail},
	)
	if err != nil {
		body = []byte("{}")
	}

	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
