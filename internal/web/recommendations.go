package web

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// allGPUs asks Options.Recommendations for the whole report.
const allGPUs gpu.UUID = ""

// adviceHandler serves the last report about right-sizing as JSON, whole or the part about one GPU.
type adviceHandler struct {
	snaps  Snapshots
	report func(gpu.UUID) any
	pool   *buffers
	logger log.Logger

	mu   sync.Mutex
	last any    // the whole report whose JSON text is; a pointer, as in adviceSource
	text []byte // kept, so that we encode a report once for all clients
}

// ServeHTTP answers with the report or with a problem document (RFC 9457).
func (h *adviceHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query, err := url.ParseQuery(r.URL.RawQuery)

	selectors := query["gpu"]
	delete(query, "gpu") // what is left is unknown

	if err != nil || len(query) > 0 || len(selectors) > 1 {
		writeProblem(w, http.StatusBadRequest, "malformed", "Unknown query",
			fmt.Sprintf("%.64q: expected nothing, or gpu once", r.URL.RawQuery))

		return
	}

	id := allGPUs

	if selector := strings.Join(selectors, ""); selector != "" {
		var known bool
		if id, known = h.findGPU(selector); !known {
			writeProblem(
				w,
				http.StatusNotFound,
				"not-found",
				"No such GPU",
				fmt.Sprintf(
					"gpu=%.64q: expected the index or the UUID of a GPU that can be read",
					selector,
				),
			)

			return
		}
	}

	report := h.report(id)
	if report == nil {
		w.Header().Set("Retry-After", "1")
		writeProblem(
			w,
			http.StatusServiceUnavailable,
			"no-recommendations",
			"No recommendations yet",
			"they are computed after the first reading of this node",
		)

		return
	}

	text, err := h.encode(report, id == allGPUs)
	if err != nil {
		_ = level.Error(h.logger).Log("msg", "cannot encode the recommendations", "err", err)
		writeProblem(
			w,
			http.StatusInternalServerError,
			"encoding",
			"The recommendations could not be encoded",
			err.Error(),
		)

		return
	}

	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("Content-Type", "application/json")

	coding := negotiateCoding(r.Header)
	if coding == codingGzip {
		buf := h.pool.get()
		defer h.pool.put(buf)
		h.pool.gzip(buf, text)
		text = buf.Bytes()
	}

	writeEncoded(w, coding, text)
}

// encode returns a report as JSON. It keeps the text of the whole report.
func (h *adviceHandler) encode(report any, whole bool) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if whole && h.last == report {
		return h.text, nil
	}

	text, err := json.Marshal(report)
	if err != nil {
		return nil, err
	}

	text = append(text, '\n')

	if whole {
		h.last = report
		h.text = text
	}

	return text, nil
}

// findGPU returns the UUID of the GPU that an index or a UUID names.
func (h *adviceHandler) findGPU(selector string) (gpu.UUID, bool) {
	s := h.snaps.Current()
	if s == nil {
		return allGPUs, true // we know no GPU yet, and there is no report either
	}

	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.UUID != "" &&
			(selector == strconv.Itoa(g.Index) || strings.EqualFold(selector, string(g.UUID))) {
			return g.UUID, true
		}
	}

	return "", false
}
