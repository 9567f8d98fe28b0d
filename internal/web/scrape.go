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

// scrapeHandler serves metrics: the encoded Snapshot, shared by all scrapers, and after it the fresh families.
type scrapeHandler struct {
	metrics     Metrics
	expositions perSnapshot[*exposition]
	endings     *endings
	own         string // the collector that the fresh families belong to; empty for none
	formats     []expfmt.Format
	slots       chan struct{} // nil: no bound
	complaints  *complaints
	served      atomic.Uint64
	rejected    atomic.Uint64
}

func newScrapeHandler(opts Options, snaps Snapshots, metrics Metrics, fresh prometheus.Gatherer, pool *buffers, logger log.Logger) *scrapeHandler {
	h := &scrapeHandler{
		metrics:    metrics,
		own:        opts.FreshCollector,
		formats:    expfmt.DefaultOpenMetricsAcceptedFormats(),
		complaints: &complaints{logger: logger, now: opts.Now},
	}
	report := h.complaints.add
	h.endings = &endings{
		fresh: fresh, keep: opts.FreshFor, pool: pool, report: report,
		kept: make(map[endingForm]*keptEnding),
	}
	if opts.NoOpenMetrics {
		h.formats = expfmt.DefaultAcceptedFormats()
	}
	if opts.Register != nil {
		opts.Register.MustRegister(scrapeCounter("served", &h.served), scrapeCounter("rejected", &h.rejected))
	}
	if opts.MaxScrapes > 0 {
		h.slots = make(chan struct{}, opts.MaxScrapes)
	}
	h.expositions = perSnapshot[*exposition]{snaps: snaps, make: func(snap *gpu.Snapshot) *exposition {
		return newExposition(snap, metrics, pool, report)
	}}
	return h
}

// scrapeCounter counts scrapes of one result; it carries no time of its own, so that equal runs serve equal bytes.
func scrapeCounter(result string, n *atomic.Uint64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name:        "mig_exporter_scrapes_total",
		Help:        "Scrapes by result: served, or rejected because too many were being served (--web.max-scrapes).",
		ConstLabels: prometheus.Labels{"result": result},
	}, func() float64 { return float64(n.Load()) })
}

// ServeHTTP serves one scrape.
func (h *scrapeHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	chosen, err := selected(r.URL.RawQuery, h.metrics)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !h.enter() {
		h.rejected.Add(1)
		w.Header().Set("Retry-After", "1")
		http.Error(w, fmt.Sprintf("%d scrapes are being served, which is the limit: try again later", cap(h.slots)),
			http.StatusServiceUnavailable)
		return
	}
	form := wire{format: expfmt.NegotiateAccept(r.Header, h.formats...), coding: negotiateCoding(r.Header)}
	parts, err := h.encode(form, chosen)
	if err != nil {
		http.Error(w, "nothing could be gathered and encoded: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(form.format))
	w.Header().Add("Vary", "Accept")
	answer(w, form.coding, parts...)
	h.served.Add(1)
}

// encode returns the parts of an answer: the Snapshot, and the families that are gathered again with what ends an
// exposition. It gives up its slot before the answer is written, so that slow readers do not block others. What is missing is
// logged; it is an error only where nothing else is left.
func (h *scrapeHandler) encode(form wire, chosen selection) ([][]byte, error) {
	defer h.leave()
	var open opening
	var err error
	current, ok := h.expositions.current()
	if ok {
		open, err = current.opening(form, chosen)
	}
	last := h.endings.of(form, current, !chosen.all() && !slices.Contains(chosen.names, h.own))
	if err = errors.Join(err, last.err); err != nil && open.size == 0 && last.empty {
		return nil, err
	}
	if form.coding == codingGzip {
		return closeGzip(open, last), nil
	}
	return [][]byte{open.bytes, last.text}, nil
}

func (h *scrapeHandler) enter() bool {
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

func (h *scrapeHandler) leave() {
	if h.slots != nil {
		<-h.slots
	}
}

// complaints logs errors of scraping, one a minute at most: an error that lasts comes with every Snapshot.
type complaints struct {
	logger log.Logger
	now    func() time.Time

	mu         sync.Mutex
	logged     time.Time // zero: never
	suppressed int
}

const complaintInterval = time.Minute

func (c *complaints) add(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if !c.logged.IsZero() && now.Sub(c.logged) < complaintInterval {
		c.suppressed++
		return
	}
	_ = level.Error(c.logger).Log("msg", "Some metrics are missing from scrapes", "err", err, "suppressed", c.suppressed)
	c.logged, c.suppressed = now, 0
}
