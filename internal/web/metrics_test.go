package web

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-kit/log"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/history"
)

// plainMetrics has what is alike in all Metrics of these tests: each family is a collector by its
// name, and nothing is rendered without an encoder.
type plainMetrics struct{}

func (plainMetrics) CheckCollectors(names []string) error {
	for _, name := range names {
		if !strings.HasPrefix(name, "test_") && name != "own" {
			return fmt.Errorf("unknown collector %q", name)
		}
	}

	return nil
}

func (plainMetrics) Filter(families []*dto.MetricFamily, names []string) []*dto.MetricFamily {
	return slices.DeleteFunc(slices.Clone(families), func(f *dto.MetricFamily) bool {
		return len(names) > 0 && !slices.Contains(names, f.GetName())
	})
}

func (plainMetrics) Render(*bytes.Buffer, *gpu.Snapshot, expfmt.Format, []string) (bool, error) {
	return false, nil
}

// registry is a Metrics that gathers the same families of any Snapshot, and a gauge with its
// generation.
type registry struct {
	plainMetrics
	reg     *prometheus.Registry
	current prometheus.Gauge
	err     error         // added to what was gathered
	hold    chan struct{} // if not nil, Gather waits until it is closed
	calls   atomic.Int64
}

// newRegistry has one family of each kind that formats treat differently.
func newRegistry(t testing.TB) *registry {
	t.Helper()
	r := &registry{reg: prometheus.NewRegistry(), current: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "test_generation", Help: "The Snapshot's generation."})}
	created := prometheus.MustNewConstMetricWithCreatedTimestamp(
		prometheus.NewDesc("test_energy_joules_total", "A counter that started again.", []string{"pod"}, nil),
		prometheus.CounterValue, 12.5, fixtureTime, "a\"b\\c\nd")
	hist := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "test_memory_distribution", Help: "A native histogram.",
		NativeHistogramBucketFactor: 1.1})
	hist.Observe(3)
	r.reg.MustRegister(r.current, hist, constant{created})

	return r
}

func (r *registry) Gather(snap *gpu.Snapshot) ([]*dto.MetricFamily, error) {
	r.calls.Add(1)

	if r.hold != nil {
		<-r.hold
	}

	r.current.Set(float64(snap.Generation))

	families, err := r.reg.Gather()
	if err != nil {
		return families, err
	}

	return families, r.err
}

// constant collects one metric.
type constant struct{ metric prometheus.Metric }

func (c constant) Describe(ch chan<- *prometheus.Desc) { ch <- c.metric.Desc() }
func (c constant) Collect(ch chan<- prometheus.Metric) { ch <- c.metric }

// freshRegistry counts how often it was gathered.
func freshRegistry() *prometheus.Registry {
	var n atomic.Int64
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fresh_gathers", Help: "Gathers so far."},
		func() float64 { return float64(n.Add(1)) }))

	return reg
}

func testHandler(opts Options, snaps Snapshots, metrics Metrics, fresh prometheus.Gatherer) http.Handler {
	if opts.Now == nil {
		opts.Now = func() time.Time { return fixtureTime.Add(time.Second) }
	}

	if p, ok := snaps.(Publisher); ok && opts.Node == nil {
		opts.Node = NewNode(p, history.New(time.Minute), judge(p), log.NewNopLogger())
	}

	return NewHandler(opts, snaps, metrics, fresh, log.NewNopLogger())
}

// get asks the handler; headers are pairs of name and value.
func get(h http.Handler, path string, headers ...string) *httptest.ResponseRecorder {
	return ask(h, http.MethodGet, path, headers...)
}

func ask(h http.Handler, method, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}

	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)

	return w
}

// logged keeps the lines that a logger was given.
type logged struct {
	mu    sync.Mutex
	lines []string
}

func (l *logged) Log(keyvals ...any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprint(keyvals...))

	return nil
}

// text returns the lines.
func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()

	return strings.Join(l.lines, "\n")
}

func (l *logged) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()

	return len(l.lines)
}

// synthetic gives 2,500 series in 25 families.
type synthetic struct {
	plainMetrics
	reg *prometheus.Registry
}

func newSynthetic() synthetic {
	reg := prometheus.NewRegistry()

	for f := range 25 {
		vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: fmt.Sprintf("nvidia_test_%d_bytes", f), Help: "A family."},
			[]string{"gpu", "uuid", "gpu_instance", "mig_profile", "namespace", "pod", "container"})
		for i := range 100 {
			vec.WithLabelValues(fmt.Sprint(i/10), fmt.Sprintf("GPU-5c1f6a2e-0000-4d1b-9f00-%012d", i/10), fmt.Sprint(i%10),
				"1g.5gb",
				"team-a", fmt.Sprintf("train-%d-x2x4z", i), "main").Set(float64(i * 1234567))
		}

		reg.MustRegister(vec)
	}

	return synthetic{reg: reg}
}

func (s synthetic) Gather(*gpu.Snapshot) ([]*dto.MetricFamily, error) { return s.reg.Gather() }

// discard is a ResponseWriter that keeps nothing.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return io.Discard.Write(b) }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Flush()                      {}

func BenchmarkScrape(b *testing.B) {
	for _, form := range []struct{ name, accept, coding string }{
		{"text", "", ""},
		{"text-gzip", "", "gzip"},
		{"openmetrics-gzip", "application/openmetrics-text;version=1.0.0", "gzip"},
		{"protobuf", protobufAccept, ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Accept", form.accept)
		r.Header.Set("Accept-Encoding", form.coding)
		snaps := publish(nodeFixture())
		h := testHandler(Options{MaxScrapes: 40}, snaps, newSynthetic(), freshRegistry())
		w := &discard{header: http.Header{}}
		b.Run("first/"+form.name, func(b *testing.B) {
			b.ReportAllocs()

			for b.Loop() {
				snaps.Store(&gpu.Snapshot{})
				clear(w.header)
				h.ServeHTTP(w, r)
			}
		})
		b.Run("cached/"+form.name, func(b *testing.B) {
			b.ReportAllocs()

			for b.Loop() {
				clear(w.header)
				h.ServeHTTP(w, r)
			}
		})
	}
}
