package web

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-kit/log"
	"github.com/go-kit/log/level"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// scrapeHandler serves metrics. An answer is the encoded Snapshot, which all scrapers share, and after
// it the trailer with the fresh families (go_*, process_*), which scrapers share only for a moment.
type scrapeHandler struct {
	metrics     Metrics
	expositions snapshotCache[*exposition]
	trailers    *trailerCache
	// freshCollector is the collector of the fresh families; empty if there is none.
	freshCollector string
	formats        []expfmt.Format
	slots          chan struct{} // one for each scrape in progress; nil: no limit
	errorLog       *limitedLogger
	served         atomic.Uint64
	rejected       atomic.Uint64
}

func newScrapeHandler(
	opts Options,
	snaps Snapshots,
	metrics Metrics,
	fresh prometheus.Gatherer,
	pool *buffers,
	logger log.Logger,
) *scrapeHandler {
	h := &scrapeHandler{
		metrics:        metrics,
		freshCollector: opts.FreshCollector,
		formats:        expfmt.DefaultOpenMetricsAcceptedFormats(),
		errorLog:       &limitedLogger{logger: logger, now: opts.Now},
	}
	report := h.errorLog.logError

	h.trailers = &trailerCache{
		fresh: fresh, keep: opts.FreshFor, pool: pool, report: report,
		cached: make(map[trailerForm]*cachedTrailer),
	}
	if opts.NoOpenMetrics {
		h.formats = expfmt.DefaultAcceptedFormats()
	}

	if opts.Register != nil {
		opts.Register.MustRegister(
			scrapeCounter("served", &h.served),
			scrapeCounter("rejected", &h.rejected),
		)
	}

	if opts.MaxScrapes > 0 {
		h.slots = make(chan struct{}, opts.MaxScrapes)
	}

	h.expositions = snapshotCache[*exposition]{
		snaps: snaps,
		create: func(snap *gpu.Snapshot) *exposition {
			return newExposition(snap, metrics, pool, report)
		},
	}

	return h
}

// scrapeCounter returns a counter of the scrapes with one result. It has no created timestamp, so
// that equal runs serve equal bytes.
func scrapeCounter(result string, n *atomic.Uint64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name:        "mig_exporter_scrapes_total",
		Help:        "Scrapes by result: served, or rejected because too many were being served.",
		ConstLabels: prometheus.Labels{"result": result},
	}, func() float64 { return float64(n.Load()) })
}

// ServeHTTP serves one scrape.
func (h *scrapeHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	chosen, err := parseSelection(r.URL.RawQuery, h.metrics)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}

	if !h.acquireSlot() {
		h.rejected.Add(1)
		w.Header().Set("Retry-After", "1")

		text := fmt.Sprintf("%d scrapes are being served, which is the limit: try again later", cap(h.slots))
		http.Error(w, text, http.StatusServiceUnavailable)

		return
	}

	form := outputForm{
		format: expfmt.NegotiateAccept(r.Header, h.formats...),
		coding: negotiateCoding(r.Header),
	}

	parts, err := h.encode(form, chosen) // releases the slot
	if err != nil {
		http.Error(
			w,
			"nothing could be gathered and encoded: "+err.Error(),
			http.StatusInternalServerError,
		)

		return
	}

	w.Header().Set("Content-Type", string(form.format))
	w.Header().Add("Vary", "Accept")
	writeEncoded(w, form.coding, parts...)
	h.served.Add(1)
}

// encode returns the parts of an answer: the encoded Snapshot, and a trailer with the fresh
// families. It releases the slot that ServeHTTP has acquired, so that a client that reads the
// answer slowly does not block others. It returns an error only if there are no metrics at all; if
// only some are missing, the caches have logged why.
func (h *scrapeHandler) encode(form outputForm, chosen selection) ([][]byte, error) {
	defer h.releaseSlot()

	var prefix bodyPrefix
	var err error

	current, ok := h.expositions.currentValue()
	if ok {
		prefix, err = current.prefix(form, chosen)
	}

	// A scrape that selects collectors gets the fresh families only if it names theirs.
	omitFresh := !chosen.isAll() && !slices.Contains(chosen.names, h.freshCollector)

	trailer := h.trailers.get(form, current, omitFresh)
	if err = errors.Join(err, trailer.err); err != nil && prefix.size == 0 && trailer.empty {
		return nil, err
	}

	if form.coding == codingGzip {
		return joinGzip(prefix, trailer), nil
	}

	return [][]byte{prefix.bytes, trailer.text}, nil
}

func (h *scrapeHandler) acquireSlot() bool {
	if h.slots == nil {
		return true
	}

	select {
	case h.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func (h *scrapeHandler) releaseSlot() {
	if h.slots != nil {
		<-h.slots
	}
}

// limitedLogger logs at most one error of scraping in errorLogInterval, since a lasting error occurs
// with every Snapshot. The next line says how many it has left out.
type limitedLogger struct {
	logger log.Logger
	now    func() time.Time

	mu         sync.Mutex
	logged     time.Time // zero: never
	suppressed int       // how many errors it has not logged since
}

const errorLogInterval = time.Minute

func (l *limitedLogger) logError(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	now := l.now()
	if !l.logged.IsZero() && now.Sub(l.logged) < errorLogInterval {
		l.suppressed++
		return
	}

	_ = level.Error(l.logger).Log(
		"msg", "metrics are missing from scrapes",
		"err", err,
		"suppressed", l.suppressed,
	)
	l.logged = now
	l.suppressed = 0
}
