// Package web is what the node says over HTTP: metrics, health, the JSON state, the page that people look at, and the
// server itself. Everything is read from the last Snapshot: no request ever calls a driver.
package web

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-kit/log"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Snapshots gives the last published Snapshot, nil before the first. It must not block, and never goes back to an
// older Snapshot.
type Snapshots interface {
	Current() *gpu.Snapshot
}

// Metrics turns a Snapshot into metrics. Its methods may be called from several goroutines at once. With an error they give
// what could be gathered all the same.
type Metrics interface {
	// CheckCollectors returns an error that says what was expected unless each name is that of a collector that is on.
	CheckCollectors(names []string) error
	// Gather returns the metric families. It is called once per Snapshot at most; the families are owned by the caller.
	Gather(*gpu.Snapshot) ([]*dto.MetricFamily, error)
	// Filter returns what the named collectors have in families that Gather returned; no names are all.
	Filter(families []*dto.MetricFamily, names []string) []*dto.MetricFamily
	// Render appends to dst what an encoder of the format makes of the filtered families, which is quicker, and reports
	// true. Or it appends nothing and reports false: Gather, Filter and an encoder do it then.
	Render(dst *bytes.Buffer, s *gpu.Snapshot, format expfmt.Format, names []string) (bool, error)
}

// Options say what the handler serves. The zero value of a field is the default that its comment names.
type Options struct {
	// TelemetryPath is where metrics are served; "/metrics". See CheckTelemetryPath.
	TelemetryPath string
	// NoOpenMetrics leaves OpenMetrics out of the formats that are offered: it makes counters whose names do not end in
	// _total, as dcgm-exporter's, into metrics of unknown type.
	NoOpenMetrics bool
	// MaxScrapes bounds the scrapes gathered and encoded at the same time, those beyond it get a 503; 0 is no bound.
	MaxScrapes int
	// FreshFor is for how long, in real time, scrapers share what was gathered again for one of them; 0 is not at all.
	FreshFor time.Duration
	// FreshCollector is the collector that the fresh families belong to: a scrape that picks others does not get them. Empty is
	// none.
	FreshCollector string
	// ReadyMaxAge is the age of the last Snapshot from which the process is not ready; 0 is no bound.
	ReadyMaxAge time.Duration
	// Notes, if not nil, are lines that the readiness answer has besides those of its sources.
	Notes func() []string
	// State serves the Snapshot as JSON and shows it on the page.
	State bool
	// Hosts are the node's own names. On a loopback address the state and the page are served for these, localhost and IP addresses.
	Hosts []string
	// Pprof serves net/http/pprof under /debug/pprof/.
	Pprof bool
	// Simulated marks the page: its GPUs exist in a simulation only.
	Simulated bool
	Version   string
	// Now is the clock that the ages of Snapshots are taken by; time.Now.
	Now func() time.Time
	// Register takes the handler's own counters; nil is nowhere. The registry should be the fresh one.
	Register prometheus.Registerer
	// Extra are further handlers by their http.ServeMux pattern.
	Extra map[string]http.Handler
}

// TelemetryPathDefault is where metrics are served if nothing else is said.
const TelemetryPathDefault = "/metrics"

// The fixed paths.
const (
	pathHealthy = "/-/healthy"
	pathReady   = "/-/ready"
	pathNode    = "/api/v1/node"
	pathPprof   = "/debug/pprof/"
)

// CheckTelemetryPath says whether metrics can be served at path: an absolute path other than those of this package.
func CheckTelemetryPath(path string) error {
	switch {
	case !strings.HasPrefix(path, "/"):
		return fmt.Errorf("telemetry path %q: expected a path that begins with /", path)
	case path == "/" || strings.HasPrefix(path, "/-/") || strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/debug/"):
		return fmt.Errorf("telemetry path %q: it is in use for something else", path)
	case strings.ContainsAny(path, "{}?#% \t") || strings.Contains(path, "//") || strings.Contains(path, "/."):
		return fmt.Errorf("telemetry path %q: expected a plain path, such as %s", path, TelemetryPathDefault)
	}
	return nil
}

// NewHandler serves everything. fresh is gathered again for scrapes (go_*, process_* and the like), see Options.FreshFor,
// and must not have a family in common with metrics. It panics if the telemetry path or a pattern of Extra cannot be served.
func NewHandler(opts Options, snaps Snapshots, metrics Metrics, fresh prometheus.Gatherer, logger log.Logger) http.Handler {
	if opts.TelemetryPath == "" {
		opts.TelemetryPath = TelemetryPathDefault
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if err := CheckTelemetryPath(opts.TelemetryPath); err != nil {
		panic(err)
	}
	pool := new(buffers)
	mux := http.NewServeMux()
	mux.Handle("GET "+opts.TelemetryPath, withWriteDeadline(newScrapeHandler(opts, snaps, metrics, fresh, pool, logger)))
	mux.Handle("GET "+pathHealthy, withWriteDeadline(http.HandlerFunc(serveHealthy)))
	mux.Handle("GET "+pathReady, withWriteDeadline(&readyHandler{snaps: snaps, maxAge: opts.ReadyMaxAge, now: opts.Now, notes: opts.Notes}))
	var page http.Handler = newPageHandler(opts, snaps, pool, logger)
	if opts.State {
		page = withLocalHost(opts.Hosts, page)
		mux.Handle("GET "+pathNode, withWriteDeadline(withLocalHost(opts.Hosts, newStateHandler(snaps, pool, logger))))
	}
	mux.Handle("GET /{$}", withWriteDeadline(page))
	if opts.Pprof {
		handlePprof(mux)
	}
	for pattern, h := range opts.Extra {
		mux.Handle(pattern, h)
	}
	return withHeaders(mux)
}

// writeTimeout bounds how long a slow reader may hold an answer in memory.
const writeTimeout = 30 * time.Second

// withWriteDeadline bounds the time in which an answer is written. It is not the server's WriteTimeout, which would
// cut profiles (/debug/pprof/profile?seconds=60) short.
func withWriteDeadline(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A writer that knows no deadlines, as in tests, has no slow reader either.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
		h.ServeHTTP(w, r)
	})
}

// withHeaders forbids browsers to guess content types.
func withHeaders(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setDefault(w.Header(), "X-Content-Type-Options", "nosniff")
		h.ServeHTTP(w, r)
	})
}

// setDefault sets a header unless it is set: the operator's web configuration, which is applied before, comes first.
func setDefault(h http.Header, key, value string) {
	if h.Get(key) == "" {
		h.Set(key, value)
	}
}
