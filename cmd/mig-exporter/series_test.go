package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// The most series that eight H100 in 56 slices with a pod on each may have, all that a scrape gets
// included.
const (
	textBudget     = 2000
	protobufBudget = 2200
)

// seriesTable is a part of docs/metrics.md.
const seriesTable = "../../collector/testdata/series.md"

// TestDocsSeries counts the series of the bench by family, holds the budget, and holds the table of
// docs/metrics.md to it. With -update it rewrites the table, and `go test ./collector -run TestDocs
// -update` the page.
func TestDocsSeries(t *testing.T) {
	x := benchNode(t, benchGPUs)
	text := countSeries(t, x, expfmt.FmtText)
	protobuf := countSeries(t, x, expfmt.FmtProtoDelim)

	got := writeSeriesTable(text, protobuf)
	for _, format := range []struct {
		name          string
		count, budget int
	}{
		{"text", total(text), textBudget}, {"protobuf", total(protobuf), protobufBudget},
		{"OpenMetrics text", countOpenMetrics(t, x), textBudget},
	} {
		if format.count > format.budget || format.count < format.budget/2 {
			t.Errorf("%d series in %s, the budget is %d", format.count, format.name, format.budget)
		}
	}

	if *update {
		if err := os.WriteFile(seriesTable, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	want, err := os.ReadFile(seriesTable)
	if err != nil {
		t.Fatal(err)
	}

	if got != string(want) {
		t.Errorf("%s is out of date: make docs. It is now\n%s", seriesTable, got)
	}
}

// countSeries scrapes and counts the series by family, as Prometheus stores them. What the runtime
// and the process say is one family.
func countSeries(t *testing.T, x *exporter, format expfmt.Format) map[string]int {
	t.Helper()
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Header.Set("Accept", string(format))
	w := httptest.NewRecorder()
	x.handler.ServeHTTP(w, r)

	if got := w.Header().Get("Content-Type"); !strings.HasPrefix(got, strings.Split(string(format), ";")[0]) {
		t.Fatalf("got %s, want %s", got, format)
	}

	counts := map[string]int{}
	decoder := expfmt.NewDecoder(bytes.NewReader(w.Body.Bytes()), format)

	for {
		var family dto.MetricFamily
		if err := decoder.Decode(&family); errors.Is(err, io.EOF) {
			return counts
		} else if err != nil {
			t.Fatal(err)
		}

		name := family.GetName()
		for _, prefix := range []string{"go_", "process_"} {
			if strings.HasPrefix(name, prefix) {
				name = prefix + "*"
			}
		}

		for _, m := range family.GetMetric() {
			counts[name] += seriesOf(m)
		}
	}
}

// countOpenMetrics scrapes OpenMetrics text and counts its samples, each of which is a series.
func countOpenMetrics(t *testing.T, x *exporter) int {
	t.Helper()
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Header.Set("Accept", openMetricsType)
	w := httptest.NewRecorder()
	x.handler.ServeHTTP(w, r)

	if got := w.Header().Get("Content-Type"); !strings.HasPrefix(got, openMetricsType) {
		t.Fatalf("got %s, want %s", got, openMetricsType)
	}

	count := 0

	for line := range strings.Lines(w.Body.String()) {
		if !strings.HasPrefix(line, "#") {
			count++
		}
	}

	return count
}

// seriesOf counts the series of one metric: a native histogram is one, a classic one has its
// buckets, a sum and a count.
func seriesOf(m *dto.Metric) int {
	switch h := m.GetHistogram(); {
	case m.GetSummary() != nil:
		return len(m.GetSummary().GetQuantile()) + 2
	case h == nil || h.Schema != nil:
		return 1
	default:
		return len(h.GetBucket()) + 2
	}
}

func total(counts map[string]int) int {
	sum := 0
	for _, n := range counts {
		sum += n
	}

	return sum
}

// writeSeriesTable puts the families that have equal numbers of series in one row.
func writeSeriesTable(text, protobuf map[string]int) string {
	type row struct{ text, protobuf int }

	rows := map[row][]string{}
	for name, n := range protobuf {
		rows[row{text[name], n}] = append(rows[row{text[name], n}], name)
	}

	order := make([]row, 0, len(rows))
	for r := range rows {
		order = append(order, r)
	}

	slices.SortFunc(order, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.text, a.text), cmp.Compare(b.protobuf, a.protobuf))
	})
	var out strings.Builder
	out.WriteString("| Series in text | in protobuf | Families |\n|---:|---:|---|\n")

	for _, r := range order {
		slices.Sort(rows[r])
		fmt.Fprintf(&out, "| %s | %s | `%s` |\n", times(r.text, len(rows[r])), times(r.protobuf, len(rows[r])),
			strings.Join(rows[r], "`, `"))
	}

	fmt.Fprintf(&out, "| **%d** | **%d** | together |\n", total(text), total(protobuf))

	return out.String()
}

// times writes that so many families have n series each.
func times(n, families int) string {
	if families == 1 || n == 0 {
		return fmt.Sprint(n)
	}

	return fmt.Sprintf("%d × %d", families, n)
}
