package main

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

const openMetricsType = "application/openmetrics-text; version=1.0.0"

// scrapeOpenMetrics scrapes a program, as OpenMetrics.
func scrapeOpenMetrics(t *testing.T, p *program) string {
	t.Helper()

	r := p.request(http.MethodGet, "/metrics", map[string]string{"Accept": openMetricsType})
	if r.status != http.StatusOK || !strings.HasPrefix(r.header.Get("Content-Type"), openMetricsType) {
		t.Fatalf("GET /metrics: %d, %s", r.status, r.header.Get("Content-Type"))
	}

	return string(r.body)
}

// TestOpenMetrics holds that every shipped scenario is served in a form that a strict parser
// takes, without the lines of created timestamps.
func TestOpenMetrics(t *testing.T) {
	for _, g := range goldens {
		if strings.HasSuffix(g.name, ".dcgm") {
			continue // names of dcgm-exporter are not served in this form
		}

		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			checkOpenMetrics(t, simulate(t, g.scenario, g.args...), g.steps)
		})
	}
}

func checkOpenMetrics(t *testing.T, p *program, steps []time.Duration) {
	t.Helper()

	for _, by := range append([]time.Duration{time.Second, time.Second, time.Minute}, steps...) {
		p.advance(by)
	}

	body := scrapeOpenMetrics(t, p)

	families, err := parseStrictly(body)
	if err != nil {
		t.Error(err)
	}

	if len(families) < 50 {
		t.Errorf("%d families: expected those of the program", len(families))
	}

	if strings.Contains(body, "_created{") {
		t.Error("created timestamps, which are further series to Prometheus")
	}
}

// TestStrictParserRefuses holds that the parser of these tests refuses what the specification does.
func TestStrictParserRefuses(t *testing.T) {
	const gauge = "# TYPE a gauge\n"
	for name, c := range map[string]struct{ text, want string }{
		"good":         {gauge + "a{b=\"c\\\"\\\\\\n\",d=\"\"} 1.5\na 2\n# EOF\n", ""},
		"no end":       {gauge + "a 1\n", "# EOF"},
		"empty line":   {gauge + "\na 1\n# EOF\n", "line 2"},
		"comment":      {"# a comment, which has no place\n# EOF\n", "line 1"},
		"no type":      {"# HELP a text\na 1\n# EOF\n", "family without a type"},
		"wrong type":   {"# TYPE a untyped\n# EOF\n", "not a type"},
		"type twice":   {gauge + gauge + "# EOF\n", "given twice"},
		"no total":     {"# TYPE a counter\na 1\n# EOF\n", "not a sample of a counter"},
		"negative":     {"# TYPE a counter\na_total -1\n# EOF\n", "a counter of -1"},
		"escape":       {gauge + "a{b=\"\\t\"} 1\n# EOF\n", "not a list of labels"},
		"label twice":  {gauge + "a{b=\"\",b=\"\"} 1\n# EOF\n", "the label b twice"},
		"comma":        {gauge + "a{b=\"\",} 1\n# EOF\n", "not a list of labels"},
		"two spaces":   {gauge + "a  1\n# EOF\n", "expected one space"},
		"hexadecimal":  {gauge + "a 0x1\n# EOF\n", "expected one space"},
		"series twice": {gauge + "a 1\na 2\n# EOF\n", "twice"},
		"mixed series": {gauge + "a{b=\"1\"} 1\na 1\na{b=\"1\"} 1\n# EOF\n", "behind another metric"},
		"foreign":      {gauge + "b 1\n# EOF\n", "not of the family a"},
		"clash":        {gauge + "a 1\n# TYPE a counter\na_total 1\n# EOF\n", "the name a is that of"},
		"suffix clash": {"# TYPE a counter\na_total 1\n# TYPE a_created gauge\na_created 1\n# EOF\n", "a_created is that of"},
		"unit":         {"# TYPE a gauge\n# UNIT a bytes\na 1\n# EOF\n", "end with the unit"},
		"created first": {"# TYPE a counter\na_created 1.0\na_total 1\n# EOF\n",
			"created, but without a total"},
		"bound": {"# TYPE a histogram\na_bucket{le=\"1\"} 1\n# EOF\n", "expected a number with a point"},
		"count": {"# TYPE a histogram\na_bucket{le=\"+Inf\"} 1\na_count 2\na_sum 1\n# EOF\n", "a count of 2"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseStrictly(c.text)
			if c.want == "" && err != nil {
				t.Errorf("refused: %v", err)
			}

			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}
