package web

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// serveHealthy answers 200 as long as the process runs: a missing driver or a hung GPU is no reason
// to restart it.
func serveHealthy(w http.ResponseWriter, _ *http.Request) {
	writePlain(w, http.StatusOK, "healthy\n")
}

// readyHandler reports whether the metrics are current.
type readyHandler struct {
	snaps  Snapshots
	maxAge time.Duration
	now    func() time.Time
	notes  func() []string
}

// ServeHTTP answers 200, or 503 with the reasons as text.
func (h *readyHandler) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	snap := h.snaps.Current()
	if reasons := unreadyReasons(snap, h.now(), h.maxAge); len(reasons) > 0 {
		writePlain(w, http.StatusServiceUnavailable, "not ready: "+strings.Join(reasons, "; ")+"\n")
		return
	}

	var b strings.Builder
	b.WriteString("ready\n")

	for _, s := range snap.Sources {
		if !s.Up {
			fmt.Fprintf(&b, "%s: %s\n", s.Name, sourceReason(s))
		}
	}

	if h.notes != nil {
		for _, note := range h.notes() {
			b.WriteString(note + "\n")
		}
	}

	writePlain(w, http.StatusOK, b.String())
}

// unreadyReasons returns why a Snapshot does not represent the node now; none means ready. Only the
// driver counts: without the kubelet only the pods are missing.
func unreadyReasons(snap *gpu.Snapshot, now time.Time, maxAge time.Duration) []string {
	if snap == nil {
		return []string{"no snapshot yet, the first reading of this node has not ended"}
	}

	var reasons []string
	if age := now.Sub(snap.Time); maxAge > 0 && age > maxAge {
		reasons = append(
			reasons,
			fmt.Sprintf(
				"the last snapshot is %s old, more than %s",
				age.Round(time.Second),
				maxAge,
			),
		)
	}

	driver, known := sourceState(snap, gpu.SourceNVML)
	switch {
	case !known:
		reasons = append(reasons, gpu.SourceNVML+" has not been asked yet")
	case !driver.Up:
		reasons = append(reasons, sourceReason(driver))
	}

	return reasons
}

// sourceState returns the state of the source with a name.
func sourceState(snap *gpu.Snapshot, name string) (gpu.SourceState, bool) {
	for _, s := range snap.Sources {
		if s.Name == name {
			return s, true
		}
	}

	return gpu.SourceState{}, false
}

// sourceReason says why a source is not up.
func sourceReason(s gpu.SourceState) string {
	reason := s.Name + " does not answer"
	if s.Err != nil {
		reason = s.Err.Error()
	}

	if s.Stale {
		reason += " (what it said last is still in use)"
	}

	return reason
}

func writePlain(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}
