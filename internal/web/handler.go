// Package web serves metrics, health, the state as JSON and the status page over HTTP. Everything
// is read from the last Snapshot: no request ever calls a driver.
package web

import (
	"bytes"
	"net/http"
	"time"

	"github.com/go-kit/log"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Snapshots provides the last published Snapshot.
type Snapshots interface {
	// Current returns nil before the first Snapshot, and never an older one than before. It must
	// not block.
	Current() *gpu.Snapshot
}

// Metrics turns a Snapshot into metrics. It is safe for concurrent use. Methods that return an
// error also return what could be gathered.
type Metrics interface {
	// CheckCollectors returns an error unless each name names an enabled collector. The error says
	// what was expected.
	CheckCollectors(names []string) error
	// Gather returns the metric families. It is called once per Snapshot at most; the families are
	// owned by the caller.
	Gather(*gpu.Snapshot) ([]*dto.MetricFamily, error)
	// Filter returns the part of gathered families that belongs to the named collectors, or all
	// families if there are no names.
	Filter(families []*dto.MetricFamily, names []string) []*dto.MetricFamily
	// Render appends to dst the same bytes as Gather, Filter and an encoder of the format would, but
	// faster, and returns true. If it can't, it appends nothing and returns false.
	Render(dst *bytes.Buffer, s *gpu.Snapshot, format expfmt.Format, names []string) (bool, error)
}

// Options configure the handler. The comment of a field names the default for its zero value.
type Options struct {
	// NoOpenMetrics turns OpenMetrics off. That format gives the type "unknown" to counters whose
	// names do not end in _total, such as dcgm-exporter's.
	NoOpenMetrics bool
	// MaxScrapes limits the scrapes that are gathered and encoded at once; further ones are
	// answered with 503. 0 is no limit.
	MaxScrapes int
	// FreshFor is how long, in real time, scrapers share the fresh families that were gathered for
	// one of them; 0: they do not share them.
	FreshFor time.Duration
	// FreshCollector is the collector that the fresh families belong to: a scrape that selects
	// others does not get them. Empty is none.
	FreshCollector string
	// ReadyMaxAge is the age of the last Snapshot above which the process is not ready; 0 is no
	// limit.
	ReadyMaxAge time.Duration
	// Notes, if not nil, returns further lines of the readiness answer.
	Notes func() []string
	// State enables the Snapshot as JSON and on the page, and Recommendations.
	State bool
	// Node has the handlers of the state; it is needed only with State.
	Node *Node
	// Recommendations, if not nil, returns a pointer to the last report about right-sizing (for
	// allGPUs), or to the part of it about one GPU; nil if there is none yet.
	Recommendations func(gpu.UUID) any
	// Findings, if not nil, returns what check-node finds amiss on the node, for the page; nil until
	// that is known.
	Findings func() *[]Finding
	// Hosts are the node's own names. On a loopback address the state and the page are served for
	// these, localhost and IP addresses.
	Hosts []string
	// Pprof enables net/http/pprof under /debug/pprof/.
	Pprof bool
	// Simulated marks the node on the page as simulated.
	Simulated bool
	Version   string
	// Now is the clock for the ages of Snapshots; time.Now.
	Now func() time.Time
	// Register, if not nil, registers the handler's own counters. It should be the registry of the
	// fresh families.
	Register prometheus.Registerer
	// Extra are further handlers, by http.ServeMux pattern.
	Extra map[string]http.Handler
}

// The paths. They are no flags: /metrics is what Prometheus scrapes by default, and a proxy can serve
// all of them under another path.
const (
	pathMetrics = "/metrics"
	pathHealthy = "/-/healthy"
	pathReady   = "/-/ready"
	pathNode    = "/api/v1/node"
	pathStream  = "/api/v1/node/stream"
	pathHistory = "/api/v1/node/history"
	pathHealth  = "/api/v1/health"
	pathAdvice  = "/api/v1/recommendations"
	pathPprof   = "/debug/pprof/"
)

// NewHandler returns the handler of all paths. The families of fresh (go_*, process_* and the like)
// are gathered again for scrapes, see Options.FreshFor; none of them may be in metrics. NewHandler
// panics if a pattern of Extra is invalid.
func NewHandler(opts Options, snaps Snapshots, metrics Metrics, fresh prometheus.Gatherer,
	logger log.Logger) http.Handler {
	if opts.Now == nil {
		opts.Now = time.Now
	}

	pool := new(buffers)
	mux := http.NewServeMux()
	mux.Handle(
		"GET "+pathMetrics,
		withWriteDeadline(newScrapeHandler(opts, snaps, metrics, fresh, pool, logger)),
	)
	mux.Handle("GET "+pathHealthy, withWriteDeadline(http.HandlerFunc(serveHealthy)))
	mux.Handle(
		"GET "+pathReady,
		withWriteDeadline(
			&readyHandler{snaps: snaps, maxAge: opts.ReadyMaxAge, now: opts.Now, notes: opts.Notes},
		),
	)

	pages := newPageHandler(opts, snaps, pool, logger)

	var page http.Handler = pages

	if opts.State {
		node := opts.Node
		node.addPageView(pages)

		page = withLocalHost(opts.Hosts, page)

		mux.Handle("GET "+pathNode, withWriteDeadline(withLocalHost(opts.Hosts, node.State)))
		mux.Handle("GET "+pathHistory, withWriteDeadline(withLocalHost(opts.Hosts, node.History)))
		mux.Handle("GET "+pathHealth, withWriteDeadline(withLocalHost(opts.Hosts, node.Health)))
		mux.Handle("GET "+pathStream, withLocalHost(opts.Hosts, node.Stream)) // with a deadline for each event
	}

	if opts.State && opts.Recommendations != nil {
		h := &adviceHandler{snaps: snaps, report: opts.Recommendations, pool: pool, logger: logger}
		mux.Handle("GET "+pathAdvice, withWriteDeadline(withLocalHost(opts.Hosts, h)))
	}

	mux.Handle("GET /{$}", withWriteDeadline(page))

	if opts.Pprof {
		registerPprof(mux)
	}

	for pattern, h := range opts.Extra {
		mux.Handle(pattern, h)
	}

	return withNoSniff(mux)
}

// writeTimeout is how long a slow client may keep an answer in memory.
const writeTimeout = 30 * time.Second

// withWriteDeadline limits the time for writing an answer. The server's WriteTimeout would cut off
// profiles (/debug/pprof/profile?seconds=60).
func withWriteDeadline(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A writer without deadlines, as in tests, has no slow client either.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
		h.ServeHTTP(w, r)
	})
}

// withNoSniff forbids browsers to guess content types.
func withNoSniff(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setDefault(w.Header(), "X-Content-Type-Options", "nosniff")
		h.ServeHTTP(w, r)
	})
}

// setDefault sets a header unless it is set: the operator's web configuration, which is applied
// first, has precedence.
func setDefault(h http.Header, key, value string) {
	if h.Get(key) == "" {
		h.Set(key, value)
	}
}
