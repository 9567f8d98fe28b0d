package promtest

import (
	"bytes"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/prometheus/model/labels"
)

func TestQuerySeesEveryScrape(t *testing.T) {
	e := NewPrometheus(t)
	for i, text := range []string{"joules_total 10\n", "joules_total 40\n", "joules_total 70\n"} {
		e.AddScrape(t, scraped().Add(time.Duration(i)*15*time.Second), Text, []byte(text))
	}

	for expr, want := range map[string]float64{`joules_total`: 70, `irate(joules_total[1m])`: 2} {
		if got := e.queryValue(t, expr); got != want {
			t.Errorf("%s: got %v, want %v", expr, got, want)
		}
	}
}

func TestSeriesThatEndsIsStaleAtOnce(t *testing.T) {
	e := NewPrometheus(t)
	e.AddScrape(t, scraped(), Text, []byte("up{gi=\"1\"} 1\nup{gi=\"2\"} 1\n"))
	e.AddScrape(t, scraped().Add(time.Second), Text, []byte("up{gi=\"1\"} 1\n"))

	if v := e.Query(t, `up`); len(v) != 1 || v[0].Metric.Get("gi") != "1" {
		t.Errorf("%v, want the series with gi 1 alone", v)
	}
}

func TestOpenMetricsIsRead(t *testing.T) {
	e := NewPrometheus(t)
	e.AddScrape(t, scraped(), OpenMetrics, []byte("# TYPE j counter\nj_total 4\nj_created 1.5\n# EOF\n"))

	if got := e.queryValue(t, `j_total`); got != 4 {
		t.Errorf("got %v, want 4", got)
	}

	if v := e.Query(t, `j_created`); len(v) != 0 {
		t.Errorf("the created timestamp became the series %v", v)
	}
}

// TestNativeHistogramIsRead: schema 0 has buckets that double; bucket 1 ends at 2, bucket 2 at 4.
func TestNativeHistogramIsRead(t *testing.T) {
	h := &dto.Histogram{
		SampleCount: new(uint64(4)), SampleSum: new(10.0),
		Schema: new(int32(0)), ZeroThreshold: new(1e-128), ZeroCount: new(uint64(0)),
		PositiveSpan:  []*dto.BucketSpan{{Offset: new(int32(1)), Length: new(uint32(2))}},
		PositiveDelta: []int64{2, 0},
	}
	kind := dto.MetricType_HISTOGRAM
	var body bytes.Buffer

	enc := expfmt.NewEncoder(&body, expfmt.NewFormat(expfmt.TypeProtoDelim))
	if err := enc.Encode(&dto.MetricFamily{Name: new("used_bytes"), Type: &kind,
		Metric: []*dto.Metric{{Histogram: h}}}); err != nil {
		t.Fatal(err)
	}

	e := NewPrometheus(t)
	e.AddScrape(t, scraped(), Protobuf, body.Bytes())

	if got := e.queryValue(t, `histogram_fraction(2, 4, used_bytes)`); got != 0.5 {
		t.Errorf("fraction above 2: got %v, want 0.5", got)
	}
}

func TestBadScrapesAreRefusedWhole(t *testing.T) {
	for _, c := range []struct{ name, text, err string }{
		{"no exposition", "up 1\nnonsense{\n", "expected label name"},
		{"a series that occurs twice", "up{a=\"1\"} 1\nup{a=\"1\"} 2\n", `series {__name__="up", a="1"} occurs twice`},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := NewPrometheus(t)
			if err := e.addScrape(labels.EmptyLabels(), scraped(), Text, []byte(c.text)); err == nil ||
				!strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, want %q", err, c.err)
			}

			e.AddScrape(t, scraped().Add(time.Second), Text, []byte("ok 1\n"))

			if v := e.Query(t, `up`); len(v) != 0 {
				t.Errorf("%v is left of the refused scrape", v)
			}
		})
	}
}

func TestScrapesComeInOrder(t *testing.T) {
	e := NewPrometheus(t)
	e.AddScrape(t, scraped(), Text, []byte("up 1\n"))

	if err := e.addScrape(labels.EmptyLabels(), scraped(), Text, []byte("up 0\n")); err == nil ||
		!strings.Contains(err.Error(), "not later") {
		t.Errorf("a second scrape of the same time: %v", err)
	}
}

func TestEvalSaysWhatIsWrong(t *testing.T) {
	e := NewPrometheus(t)
	for i := range 2 {
		e.AddScrape(t, scraped().Add(time.Duration(i)*time.Second), Text, []byte("a{x=\"1\"} 1\na{x=\"2\"} 1\nb 1\n"))
	}

	for expr, want := range map[string]string{
		`sum(`:                "unclosed left parenthesis",
		`b * on () a`:         "many-to-many matching not allowed",
		`1 + 1`:               "not a Vector",
		`rate(b[5m])`:         "metric might not be a counter",
		`b * on () group_x b`: "parse error",
	} {
		_, err := e.Eval(expr)
		for _, part := range []string{want, expr} {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: got %v, want an error with %q", expr, err, part)
			}
		}
	}
}
