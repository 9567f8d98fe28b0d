package web

import (
	"encoding/json"
	"net/http"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"

	"github.com/mig-exporter/mig-exporter/internal/health"
)

// reportHandler serves the health report of the node. It also answers before the first Snapshot. It
// computes each answer anew: the health also depends on how old the Snapshot is.
type reportHandler struct {
	report func() *health.Report
	pool   *buffers
	logger log.Logger
}

// ServeHTTP answers 200 whatever the state is: the request has succeeded.
func (h *reportHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := json.Marshal(h.report())
	if err != nil {
		_ = level.Error(h.logger).Log("msg", "cannot encode the health", "err", err)
		writeProblem(w, http.StatusInternalServerError, "encoding", "The health could not be encoded", err.Error())

		return
	}

	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")

	text = append(text, '\n')

	if negotiateCoding(r.Header) == codingIdentity {
		writeEncoded(w, codingIdentity, text)
		return
	}

	packed := h.pool.get()
	defer h.pool.put(packed)
	h.pool.gzip(packed, text)
	writeEncoded(w, codingGzip, packed.Bytes())
}
