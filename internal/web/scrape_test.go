package web

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	openMetricsAccept = "application/openmetrics-text;version=1.0.0"
	protobufAccept    = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
	// prometheusAccept is what Prometheus asks for with native histograms off.
	prometheusAccept = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)

// A counter whose name does not end in _total keeps its type.
func TestNoOpenMetrics(t *testing.T) {
	reg := newRegistry(t)
	reg.reg.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
		Help: "Retries."}))

	h := testHandler(Options{NoOpenMetrics: true}, publish(nodeFixture()), reg, freshRegistry())
	for _, test := range []struct{ accept, want string }{
		{"", "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"},
		{openMetricsAccept, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"},
		{prometheusAccept, "text/plain; version=0.0.4; charset=utf-8; escaping=allow-utf-8"},
		{protobufAccept, "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited; " +
			"escaping=underscores"},
	} {
		w := get(h, "/metrics", "Accept", test.accept)
		if got := w.Header().Get("Content-Type"); w.Code != http.StatusOK || got != test.want {
			t.Errorf("Accept %q: got %d %q, want %q", test.accept, w.Code, got, test.want)
		}

		if strings.HasPrefix(test.want, "text/plain") &&
			!strings.Contains(w.Body.String(), "# TYPE DCGM_FI_DEV_PCIE_REPLAY_COUNTER counter\n") {
			t.Errorf("Accept %q: the counter is none:\n%s", test.accept, w.Body.String())
		}
	}
}

func TestScrapeFormats(t *testing.T) {
	for _, test := range []struct{ accept, want string }{
		{"", "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"},
		{"*/*", "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"},
		{"text/html", "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"},
		{openMetricsAccept, "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores"},
		{protobufAccept, "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited; " +
			"escaping=underscores"},
		{prometheusAccept, "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=allow-utf-8"},
		{protobufAccept + ";q=0.6," + openMetricsAccept + ";q=0.5",
			"application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited; " +
				"escaping=underscores"},
	} {
		for _, coding := range []string{"", "gzip"} {
			h := testHandler(Options{}, publish(nodeFixture()), newRegistry(t), freshRegistry())
			for range 2 { // encoded, then kept
				w := get(h, "/metrics", "Accept", test.accept, "Accept-Encoding", coding)
				if got := w.Header().Get("Content-Type"); w.Code != http.StatusOK || got != test.want {
					t.Fatalf("Accept %q: got %d %q, want %q", test.accept, w.Code, got, test.want)
				}

				if got, want := w.Header().Get("Content-Length"), w.Body.Len(); got != itoa(want) {
					t.Errorf("Accept %q %q: Content-Length %s, body has %d", test.accept, coding, got, want)
				}

				if got := w.Header().Values("Vary"); strings.Join(got, ",") != "Accept,Accept-Encoding" {
					t.Errorf("Vary: %q", got)
				}

				body := w.Body.Bytes()
				if got := w.Header().Get("Content-Encoding"); got != coding {
					t.Errorf("Content-Encoding: got %q, want %q", got, coding)
				}

				if coding == "gzip" {
					body = gunzip(t, body)
				}

				checkFamilies(t, expfmt.Format(test.want), body)
			}
		}
	}
}

// checkFamilies reads an exposition back. All families must be there, the fresh one among them.
func checkFamilies(t *testing.T, format expfmt.Format, body []byte) {
	t.Helper()

	if format.FormatType() == expfmt.TypeOpenMetrics {
		text := string(body)
		if n := strings.Count(text, "# EOF\n"); n != 1 || !strings.HasSuffix(text, "# EOF\n") {
			t.Errorf("%d end markers in\n%s", n, text)
		}

		for _, want := range []string{"test_generation 42.0\n", "fresh_gathers ",
			`test_energy_joules_total{pod="a\"b\\c\nd"} 12.5`} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}

		if strings.Contains(text, "test_memory_distribution") {
			t.Errorf("a native histogram in\n%s", text)
		}

		if strings.Contains(text, "_created") {
			t.Errorf("created lines, which Prometheus takes for series of their own:\n%s", text)
		}

		return
	}

	families := decode(t, format, body)
	for _, name := range []string{"test_generation", "test_energy_joules_total", "fresh_gathers"} {
		if families[name] == nil {
			t.Errorf("%s: no %s", format, name)
		}
	}

	if format.FormatType() != expfmt.TypeProtoDelim {
		if families["test_memory_distribution"] != nil {
			t.Errorf("%s: a native histogram", format)
		}

		return
	}

	if got := families["test_energy_joules_total"].Metric[0].Counter.GetCreatedTimestamp().
		AsTime(); !got.Equal(fixtureTime) {
		t.Errorf("created timestamp: got %s, want %s", got, fixtureTime)
	}

	if h := families["test_memory_distribution"].Metric[0].Histogram; h.GetSchema() == 0 || len(h.PositiveSpan) == 0 {
		t.Errorf("no native histogram: %v", h)
	}
}

func decode(t *testing.T, format expfmt.Format, body []byte) map[string]*dto.MetricFamily {
	t.Helper()
	dec := expfmt.NewDecoder(bytes.NewReader(body), format)
	families := make(map[string]*dto.MetricFamily)

	for {
		var family dto.MetricFamily

		err := dec.Decode(&family)
		if errors.Is(err, io.EOF) {
			return families
		}

		if err != nil {
			t.Fatalf("decode %s: %v", format, err)
		}

		if families[family.GetName()] != nil {
			t.Errorf("%s is there twice", family.GetName())
		}

		families[family.GetName()] = &family
	}
}

func TestScrapeEscaping(t *testing.T) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "fresh.dotted", Help: "-"}, func() float64 {
		return 1
	}))

	h := testHandler(Options{}, publish(nil), nil, reg)
	for escaping, want := range map[string]string{
		model.AllowUTF8:         `{"fresh.dotted"} 1`,
		model.EscapeUnderscores: "fresh_dotted 1",
		model.EscapeDots:        "fresh_dot_dotted 1",
	} {
		if body := get(h, "/metrics", "Accept",
			"text/plain;version=0.0.4;escaping="+escaping).Body.String(); !strings.Contains(body, want) {
			t.Errorf("%s: no %q in %q", escaping, want, body)
		}
	}
}

func TestScrapeGathersOncePerSnapshot(t *testing.T) {
	metrics := newRegistry(t)
	snaps := publish(nodeFixture())
	h := testHandler(Options{}, snaps, metrics, freshRegistry())
	bodies := map[string]bool{}

	for range 3 {
		for _, accept := range []string{"", openMetricsAccept, protobufAccept} {
			get(h, "/metrics", "Accept", accept, "Accept-Encoding", "gzip")
			bodies[get(h, "/metrics", "Accept", accept).Body.String()] = true
		}
	}

	if got := metrics.calls.Load(); got != 1 {
		t.Errorf("gathered %d times for one Snapshot", got)
	}

	if len(bodies) != 9 {
		t.Errorf("%d different bodies of 9: the fresh part is not fresh", len(bodies))
	}

	next := nodeFixture()
	next.Generation = 43
	snaps.Store(next)

	if body := get(h, "/metrics").Body.String(); !strings.Contains(body, "test_generation 43\n") {
		t.Errorf("the new Snapshot is not served:\n%s", body)
	}

	if got := metrics.calls.Load(); got != 2 {
		t.Errorf("gathered %d times for two Snapshots", got)
	}
}

// stalled is a client that reads nothing until the test lets it.
type stalled struct {
	*httptest.ResponseRecorder
	writing, release chan struct{}
}

func (s *stalled) Write(b []byte) (int, error) {
	s.writing <- struct{}{}
	<-s.release

	return len(b), nil
}

func TestSlowReaderHoldsNoSlot(t *testing.T) {
	h := testHandler(Options{MaxScrapes: 1}, publish(nodeFixture()), newRegistry(t), freshRegistry())
	slow := &stalled{httptest.NewRecorder(), make(chan struct{}, 10), make(chan struct{})}
	var reading sync.WaitGroup
	reading.Go(func() { h.ServeHTTP(slow, httptest.NewRequest(http.MethodGet, "/metrics", nil)) })
	<-slow.writing

	if code := get(h, "/metrics").Code; code != http.StatusOK {
		t.Errorf("beside a slow reader: got %d", code)
	}

	close(slow.release)
	reading.Wait()
}

// arriving signals each request for a Snapshot.
type arriving struct {
	snap *gpu.Snapshot
	seen chan struct{}
}

func (a *arriving) Current() *gpu.Snapshot {
	a.seen <- struct{}{}
	return a.snap
}

func TestConcurrentScrapersShareOneEncode(t *testing.T) {
	const scrapers = 8
	metrics := newRegistry(t)
	metrics.hold = make(chan struct{})
	snaps := &arriving{snap: nodeFixture(), seen: make(chan struct{})}
	h := testHandler(Options{}, snaps, metrics, prometheus.NewRegistry())
	bodies := make([]string, scrapers)

	var all sync.WaitGroup
	for i := range scrapers {
		all.Go(func() { bodies[i] = get(h, "/metrics", "Accept-Encoding", "gzip").Body.String() })
	}

	for range scrapers {
		<-snaps.seen
	}

	close(metrics.hold)
	all.Wait()

	if got := metrics.calls.Load(); got != 1 {
		t.Errorf("gathered %d times", got)
	}

	for i, body := range bodies {
		if body != bodies[0] || body == "" {
			t.Errorf("scraper %d got another body than scraper 0", i)
		}
	}
}

// TestExpositionEncodesOnce: one encoding per form, whose bytes all callers share.
func TestExpositionEncodesOnce(t *testing.T) {
	e := newExposition(nodeFixture(), newRegistry(t), new(buffers), func(err error) { t.Error(err) })
	for _, form := range []outputForm{
		{format: expfmt.FmtText, coding: codingIdentity},
		{format: expfmt.FmtText, coding: codingGzip},
		{format: expfmt.FmtProtoDelim, coding: codingGzip},
	} {
		a, errA := e.prefix(form, selection{})

		b, errB := e.prefix(form, selection{})
		if err := errors.Join(errA, errB); err != nil || a.size == 0 {
			t.Fatalf("%v: %d bytes, %v", form, a.size, err)
		}

		if &a.bytes[0] != &b.bytes[0] {
			t.Errorf("%v: encoded twice", form)
		}
	}
}

func TestScrapeBeforeFirstSnapshot(t *testing.T) {
	metrics := newRegistry(t)

	h := testHandler(Options{}, publish(nil), metrics, freshRegistry())
	for accept, want := range map[string]string{
		"":                "# HELP fresh_gathers Gathers so far.\n# TYPE fresh_gathers gauge\nfresh_gathers ",
		openMetricsAccept: "# HELP fresh_gathers Gathers so far.\n# TYPE fresh_gathers gauge\nfresh_gathers ",
	} {
		w := get(h, "/metrics", "Accept", accept)
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Body.String(), want) {
			t.Errorf("got %d %q", w.Code, w.Body)
		}
	}

	if metrics.calls.Load() != 0 {
		t.Error("gathered without a Snapshot")
	}
}

// failing gives families and an error.
type failing struct {
	plainMetrics
	families []*dto.MetricFamily
	err      error
}

func (f failing) Gather(*gpu.Snapshot) ([]*dto.MetricFamily, error) { return f.families, f.err }

func TestScrapePartial(t *testing.T) {
	name := "test_good"
	help := "-"
	value := 1.0
	good := &dto.MetricFamily{Name: &name, Help: &help, Type: dto.MetricType_GAUGE.Enum(),
		Metric: []*dto.Metric{{Gauge: &dto.Gauge{Value: &value}}}}
	empty := "test_empty"
	bad := &dto.MetricFamily{Name: &empty, Help: &help, Type: dto.MetricType_GAUGE.Enum(), Metric: []*dto.Metric{{}}}

	collide := errors.New("collector memory: boom")
	for _, test := range []struct {
		name    string
		metrics failing
		fresh   prometheus.Gatherer
		code    int
		want    string
	}{
		{"gather error keeps what was gathered", failing{families: []*dto.MetricFamily{good}, err: collide},
			prometheus.NewRegistry(), 200, "test_good 1\n"},
		{"family that cannot be encoded is left out whole", failing{families: []*dto.MetricFamily{bad, good}, err: nil},
			prometheus.NewRegistry(), 200, "# HELP test_good -\n# TYPE test_good gauge\ntest_good 1\n"},
		{"nothing gathered but fresh", failing{err: collide}, freshRegistry(), 200, "fresh_gathers "},
		{"nothing at all", failing{err: collide}, prometheus.NewRegistry(), 500,
			"nothing could be gathered and encoded: gather: collector memory: boom\n"},
		{"nothing to say", failing{}, prometheus.NewRegistry(), 200, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, coding := range []string{"", "gzip"} {
				h := testHandler(Options{}, publish(nodeFixture()), test.metrics, test.fresh)
				w := get(h, "/metrics", "Accept-Encoding", coding)

				body := w.Body.Bytes()
				if w.Header().Get("Content-Encoding") == "gzip" {
					body = gunzip(t, body)
				}

				got := string(body)
				if w.Code != test.code || !strings.Contains(got, test.want) {
					t.Errorf("%q: got %d %q, want %d %q", coding, w.Code, got, test.code, test.want)
				}

				if strings.Contains(got, empty) {
					t.Errorf("%q: %q is in %q", coding, empty, got)
				}
			}
		})
	}
}

func TestScrapeErrorsAreLoggedOnceAMinute(t *testing.T) {
	var lines logged
	now := fixtureTime
	snaps := publish(nil)
	h := NewHandler(Options{Now: func() time.Time { return now }}, snaps, failing{err: errors.New("boom")},
		freshRegistry(), &lines)

	for second := range 121 {
		now = fixtureTime.Add(time.Duration(second) * time.Second)
		snaps.Store(nodeFixture())
		get(h, "/metrics")
	}

	if lines.count() != 3 {
		t.Fatalf("%d lines in two minutes: %q", lines.count(), lines.lines)
	}

	if !strings.Contains(lines.lines[1], "boom") || !strings.Contains(lines.lines[1], "suppressed59") {
		t.Errorf("second line: %q", lines.lines[1])
	}
}

func TestMaxScrapes(t *testing.T) {
	metrics := newRegistry(t)
	metrics.hold = make(chan struct{})
	snaps := &arriving{snap: nodeFixture(), seen: make(chan struct{}, 10)}
	reg := prometheus.NewRegistry()
	h := testHandler(Options{MaxScrapes: 2, Register: reg}, snaps, metrics, reg)

	var held sync.WaitGroup
	for range 2 {
		held.Go(func() {
			if code := get(h, "/metrics").Code; code != http.StatusOK {
				t.Errorf("a scrape within the limit got %d", code)
			}
		})
	}

	<-snaps.seen
	<-snaps.seen

	w := get(h, "/metrics")
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
		t.Errorf("beyond the limit: got %d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
	}

	close(metrics.hold)
	held.Wait()

	body := get(h, "/metrics").Body.String()
	for _, want := range []string{`mig_exporter_scrapes_total{result="rejected"} 1`,
		`mig_exporter_scrapes_total{result="served"} 2`} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("no %q in\n%s", want, body)
		}
	}
}
