package web

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
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
	expositions perSnapshot[*exposition]
	fresh       prometheus.Gatherer
	formats     []expfmt.Format
	pool        *buffers
	slots       chan struct{} // nil: no bound
	complaints  *complaints
	served      atomic.Uint64
	rejected    atomic.Uint64
}

func newScrapeHandler(opts Options, snaps Snapshots, metrics Metrics, fresh prometheus.Gatherer, pool *buffers, logger log.Logger) *scrapeHandler {
	h := &scrapeHandler{
		fresh:      fresh,
		formats:    expfmt.DefaultOpenMetricsAcceptedFormats(),
		pool:       pool,
		complaints: &complaints{logger: logger, now: opts.Now},
	}
	if opts.Register != nil {
		opts.Register.MustRegister(scrapeCounter("served", &h.served), scrapeCounter("rejected", &h.rejected))
	}
	if opts.MaxScrapes > 0 {
		h.slots = make(chan struct{}, opts.MaxScrapes)
	}
	h.expositions = perSnapshot[*exposition]{snaps: snaps, make: func(snap *gpu.Snapshot) *exposition {
		return newExposition(snap, metrics, pool, h.complaints.add)
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
	if !h.enter() {
		h.rejected.Add(1)
		w.Header().Set("Retry-After", "1")
		http.Error(w, fmt.Sprintf("%d scrapes are being served, which is the limit: try again later", cap(h.slots)),
			http.StatusServiceUnavailable)
		return
	}
	form := wire{format: expfmt.NegotiateAccept(r.Header, h.formats...), coding: negotiateCoding(r.Header)}
	own := h.pool.get()
	defer h.pool.put(own)
	shared, err := h.encode(own, form)
	if err != nil {
		http.Error(w, "nothing could be gathered and encoded: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(form.format))
	w.Header().Add("Vary", "Accept")
	answer(w, form.coding, shared, own.Bytes())
	h.served.Add(1)
}

// encode gives the shared beginning of an answer, and appends to own the families that are gathered anew and what ends
// an exposition. It gives up its slot before the answer is written, so that slow readers keep nobody out. What is
// missing is logged; it is an error only where nothing else is left.
func (h *scrapeHandler) encode(own *bytes.Buffer, form wire) ([]byte, error) {
	defer h.leave()
	var open opening
	var sharedErr error
	if e, ok := h.expositions.current(); ok {
		open, sharedErr = e.opening(form)
	}
	plain := own
	if form.coding == codingGzip {
		plain = h.pool.get()
		defer h.pool.put(plain)
	}
	families, err := h.fresh.Gather()
	if err != nil {
		err = fmt.Errorf("gather: %w", err)
	}
	err = errors.Join(err, encodeFamilies(plain, form.format, families))
	empty := open.size == 0 && plain.Len() == 0
	err = errors.Join(err, finish(plain, form.format))
	if err != nil {
		h.complaints.add(err)
	}
	if err = errors.Join(sharedErr, err); err != nil && empty {
		return nil, err
	}
	if form.coding == codingGzip {
		h.pool.closeGzip(own, open, plain.Bytes())
	}
	return open.bytes, nil
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
