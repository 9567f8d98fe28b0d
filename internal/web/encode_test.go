package web

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestGaugeBesideItsCounter: OpenMetrics leaves out a gauge that has the name of a counter without
// _total; other formats have both.
func TestGaugeBesideItsCounter(t *testing.T) {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector())
	h := testHandler(Options{}, publish(nodeFixture()), newRegistry(t), r)

	text := get(h, "/metrics").Body.String()
	cmptest.HasTexts(t, text, "\ngo_memstats_alloc_bytes ", "\ngo_memstats_alloc_bytes_total ")

	open := get(h, "/metrics", "Accept", openMetricsAccept).Body.String()
	cmptest.HasTexts(t, open, "\ngo_memstats_alloc_bytes_total ", "\ngo_memstats_heap_alloc_bytes ")
	cmptest.LacksTexts(t, open, "\ngo_memstats_alloc_bytes ")

	if n := strings.Count(open, "# TYPE go_memstats_alloc_bytes "); n != 1 {
		t.Errorf("%d families of one name, want 1", n)
	}
}

// TestCreatedLines: no text says when counters began; protobuf does.
func TestCreatedLines(t *testing.T) {
	const line = "\ntest_energy_joules_created{"

	h := testHandler(Options{}, publish(nodeFixture()), newRegistry(t), freshRegistry())
	for _, accept := range []string{openMetricsAccept, string(expfmt.FmtText)} {
		cmptest.LacksTexts(t, get(h, "/metrics", "Accept", accept).Body.String(), line)
	}
}
