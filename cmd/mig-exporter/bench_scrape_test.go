package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-kit/log"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/mig-exporter/mig-exporter/collector"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/web"
)

const (
	acceptText     = "text/plain;version=0.0.4"
	acceptProtobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)

// benchForms are the forms in which a scrape is measured.
var benchForms = []struct{ name, accept, coding string }{
	{"text/identity", acceptText, "identity"},
	{"text/gzip", acceptText, "gzip"},
	{"protobuf/identity", acceptProtobuf, "identity"},
	{"protobuf/gzip", acceptProtobuf, "gzip"},
}

func scrapeRequest(tb testing.TB, url, accept, coding string) *http.Request {
	tb.Helper()

	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		tb.Fatal(err)
	}

	r.Header.Set("Accept", accept)
	r.Header.Set("Accept-Encoding", coding)

	return r
}

// discard is a ResponseWriter that counts what it is given.
type discard struct {
	header http.Header
	status int
	bytes  int
}

func (d *discard) Header() http.Header    { return d.header }
func (d *discard) WriteHeader(status int) { d.status = status }
func (d *discard) Write(b []byte) (int, error) {
	d.bytes += len(b)
	return len(b), nil
}

// scrapeDiscarding serves one scrape and returns how long that took and how many bytes it had.
func scrapeDiscarding(tb testing.TB, h http.Handler, r *http.Request) (time.Duration, int) {
	w := discard{header: make(http.Header, 8)}
	began := time.Now()
	h.ServeHTTP(&w, r)
	took := time.Since(began)

	if w.status != 0 && w.status != http.StatusOK {
		tb.Fatalf("status %d", w.status)
	}

	return took, w.bytes
}

// renewed is a Snapshot that is published again on demand.
type renewed struct{ atomic.Pointer[gpu.Snapshot] }

func (r *renewed) Current() *gpu.Snapshot { return r.Load() }

func (r *renewed) renew() {
	s := *r.Load()
	r.Store(&s)
}

// renewedHandler serves the current Snapshot of x, each time it is renewed as one that was not
// scraped yet.
func renewedHandler(x *exporter, freshFor time.Duration) (http.Handler, *renewed) {
	snaps := &renewed{}
	snaps.Store(x.poller.Current())
	fresh, _ := newProcessRegistry()
	opts := web.Options{Register: fresh, FreshFor: freshFor, FreshCollector: collector.ExporterGroup}

	return web.NewHandler(opts, snaps, x.metrics, fresh, log.NewNopLogger()), snaps
}

// TestScrapesOfTheBenchCallNoDriver: neither the first scrape of a Snapshot nor a later one, in any
// form.
func TestScrapesOfTheBenchCallNoDriver(t *testing.T) {
	x := benchNode(t, benchGPUs)
	h, snaps := renewedHandler(x, minFresh)
	before := x.source.DriverCalls()

	for _, f := range benchForms {
		snaps.renew()

		for range 2 {
			if _, n := scrapeDiscarding(t, h, scrapeRequest(t, "http://node/metrics", f.accept, f.coding)); n == 0 {
				t.Errorf("%s: nothing served", f.name)
			}
		}
	}

	if calls := x.source.DriverCalls() - before; calls != 0 {
		t.Errorf("scrapes made %d driver calls", calls)
	}

	pollOnce(t, x)

	if x.source.DriverCalls() == before {
		t.Error("a poll made no driver call: they are not counted")
	}
}

func benchScrape(b *testing.B, h http.Handler, accept, coding string, before func()) {
	r := scrapeRequest(b, "http://node/metrics", accept, coding)
	took := make([]time.Duration, 0, b.N)
	bytes := 0
	scrapeDiscarding(b, h, r)
	b.ReportAllocs()
	b.ResetTimer()

	for range b.N {
		before()
		d, n := scrapeDiscarding(b, h, r)
		took = append(took, d)
		bytes = n
	}

	b.StopTimer()
	b.ReportMetric(float64(bytes), "body-bytes")
	reportQuantiles(b, "", took)
}

// BenchmarkScrapeLone is the scrape of a lone Prometheus, which always meets a new Snapshot: it
// gathers and encodes it, and what the process says of itself.
func BenchmarkScrapeLone(b *testing.B) {
	x := benchNode(b, benchGPUs)
	h, snaps := renewedHandler(x, 0)

	for _, f := range benchForms {
		b.Run(f.name, func(b *testing.B) { benchScrape(b, h, f.accept, f.coding, snaps.renew) })
	}
}

// BenchmarkScrapeRepeated is a scrape of a Snapshot that another scraper has just had encoded.
func BenchmarkScrapeRepeated(b *testing.B) {
	x := benchNode(b, benchGPUs)
	for _, f := range benchForms {
		b.Run(f.name, func(b *testing.B) { benchScrape(b, x.handler, f.accept, f.coding, func() {}) })
	}
}

// TestLoneScrapeAllocatesLittle holds the bound of docs/performance.md for the scrape of a new
// Snapshot, without what the library allocates to gather go_* and process_*. The race detector
// empties pools, and is not there in test-growth.
func TestLoneScrapeAllocatesLittle(t *testing.T) {
	x := benchNode(t, benchGPUs)
	snaps := &renewed{}
	snaps.Store(x.poller.Current())
	h := web.NewHandler(web.Options{}, snaps, x.metrics, prometheus.NewRegistry(), log.NewNopLogger())

	for _, f := range benchForms {
		r := scrapeRequest(t, "http://node/metrics", f.accept, f.coding)
		scrape := func() {
			snaps.renew()
			scrapeDiscarding(t, h, r)
		}

		bound := 200.0
		if f.accept == acceptProtobuf {
			bound = 2500 // the library builds 192 native histograms for each Snapshot, with about ten allocations each
		}

		if allocations := testing.AllocsPerRun(50, scrape); allocations > bound {
			t.Errorf("%s: %v allocations", f.name, allocations)
		} else {
			t.Logf("%s: %v allocations", f.name, allocations)
		}
	}
}

// BenchmarkScrapeGrowth is the same on smaller and larger nodes.
func BenchmarkScrapeGrowth(b *testing.B) {
	for _, gpus := range growth {
		x := benchNode(b, gpus)
		h, snaps := renewedHandler(x, 0)
		b.Run(fmt.Sprintf("lone/gpus=%d", gpus), func(b *testing.B) { benchScrape(b, h, acceptText, "gzip", snaps.renew) })
		b.Run(fmt.Sprintf("plain/gpus=%d", gpus), func(b *testing.B) {
			benchScrape(b, h, acceptText, "identity", snaps.renew)
		})
	}
}

// BenchmarkLoopback compares scrapes over TCP with a bare handler that writes the same bytes. Each
// scraper asks both in turn, so that whatever disturbs the machine disturbs both.
func BenchmarkLoopback(b *testing.B) {
	x := benchNode(b, benchGPUs)

	for _, f := range benchForms {
		for _, scrapers := range []int{1, 8} {
			b.Run(fmt.Sprintf("%s/scrapers=%d", f.name, scrapers), func(b *testing.B) {
				benchLoopback(b, x.handler, f.accept, f.coding, scrapers)
			})
		}
	}
}

func benchLoopback(b *testing.B, h http.Handler, accept, coding string, scrapers int) {
	url := serveLoopback(b, h, bareHandler(b, h, accept, coding))
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: scrapers}}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	var bare, served []time.Duration
	rounds := (b.N + scrapers - 1) / scrapers
	b.ResetTimer()

	var all sync.WaitGroup
	for range scrapers {
		all.Go(func() {
			var own [2][]time.Duration

			for range rounds {
				for i, path := range []string{"/bare", "/metrics"} {
					own[i] = append(own[i], fetch(b, client, scrapeRequest(b, url+path, accept, coding)))
				}
			}

			mu.Lock()
			defer mu.Unlock()
			bare, served = append(bare, own[0]...), append(served, own[1]...)
		})
	}

	all.Wait()
	b.StopTimer()
	reportQuantiles(b, "", served)
	reportQuantiles(b, "bare-", bare)
	b.ReportMetric(float64(quantile(served, 0.5))/float64(quantile(bare, 0.5)), "p50-ratio")
}

// bareHandler writes what h serves now, headers included, and does nothing else.
func bareHandler(b *testing.B, h http.Handler, accept, coding string) http.Handler {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, scrapeRequest(b, "http://node/metrics", accept, coding))
	header := w.Header()
	body := w.Body.Bytes()

	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for k, v := range header {
			w.Header()[k] = v
		}

		w.Write(body)
	})
}

func serveLoopback(b *testing.B, h, bare http.Handler) string {
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.Handle("/bare", bare)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}

	server := &http.Server{Handler: mux}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	b.Cleanup(func() {
		server.Close()
		<-ended
	})

	return "http://" + l.Addr().String()
}

func fetch(b *testing.B, client *http.Client, r *http.Request) time.Duration {
	began := time.Now()

	resp, err := client.Do(r)
	if err != nil {
		b.Error(err)
		return 0
	}

	_, err = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()

	if err != nil || resp.StatusCode != http.StatusOK {
		b.Errorf("status %d, %v", resp.StatusCode, err)
	}

	return time.Since(began)
}
