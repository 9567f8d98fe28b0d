package collector

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// TestProcessIsOfTheLibrary: each family is one of the Prometheus library's collectors, with its name, type, help and labels,
// and with its value if that does not change.
func TestProcessIsOfTheLibrary(t *testing.T) {
	constant := []string{"go_info", "mig_exporter_build_info", "go_sched_gomaxprocs_threads", "go_gc_gomemlimit_bytes", "process_max_fds", "process_start_time_seconds"}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		versioncollector.NewCollector("mig_exporter"))
	theirs, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	library := map[string]*dto.MetricFamily{}
	for _, f := range theirs {
		library[f.GetName()] = f
	}
	ours, err := NewProcess().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range ours {
		of := library[f.GetName()]
		if of == nil {
			t.Errorf("%s: not of the library", f.GetName())
			continue
		}
		if f.GetHelp() != of.GetHelp() || f.GetType() != of.GetType() {
			t.Errorf("%s: got %s, %q, want %s, %q", f.GetName(), f.GetType(), f.GetHelp(), of.GetType(), of.GetHelp())
		}
		a, b := f.GetMetric()[0], of.GetMetric()[0]
		if len(f.GetMetric()) != 1 || labelsIn(a) != labelsIn(b) {
			t.Errorf("%s: got %v, want %v", f.GetName(), f.GetMetric(), of.GetMetric())
		}
		got, want := valueIn(a), valueIn(b)
		if got <= 0 || slices.Contains(constant, f.GetName()) && got != want {
			t.Errorf("%s: got %v, the library has %v", f.GetName(), got, want)
		}
	}
	for _, name := range []string{"process_start_time_seconds", "process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds", "go_goroutines"} {
		if !has(ours, name) {
			t.Errorf("no %s", name)
		}
	}
}

// labelsIn are the labels that are not empty.
func labelsIn(m *dto.Metric) string {
	text := ""
	for _, pair := range m.GetLabel() {
		if pair.GetValue() != "" {
			text += fmt.Sprintf("%s=%q,", pair.GetName(), pair.GetValue())
		}
	}
	return text
}

func has(families []*dto.MetricFamily, name string) bool {
	for _, f := range families {
		if f.GetName() == name {
			return true
		}
	}
	return false
}

func valueIn(m *dto.Metric) float64 { return m.GetGauge().GetValue() + m.GetCounter().GetValue() }

// TestProcessRendered: text is rendered as the library encodes it.
func TestProcessRendered(t *testing.T) {
	p := NewProcess()
	for i := range p.families { // values that stand still
		f := &p.families[i]
		f.read, f.names = func() (float64, error) { return math.Sqrt(float64(i)), nil }, nil
	}
	families, err := p.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range rendersIn {
		var want bytes.Buffer
		encoder := expfmt.NewEncoder(&want, format)
		for _, f := range families {
			if err := encoder.Encode(f); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			var got bytes.Buffer
			if ok, err := p.Render(&got, format); !ok || err != nil || got.String() != want.String() {
				t.Errorf("%s: rendered %v, %v:\n%s\nwant\n%s", format, ok, err, got.String(), want.String())
			}
		}
	}
	for _, format := range []expfmt.Format{expfmt.FmtProtoDelim, expfmt.FmtOpenMetrics_2_0_0} {
		if ok, err := p.Render(&bytes.Buffer{}, format); ok || err != nil {
			t.Errorf("%s: rendered %v, %v", format, ok, err)
		}
	}
}

// TestProcessIsFresh: every call reads anew, from several goroutines at once, and costs little.
func TestProcessIsFresh(t *testing.T) {
	p := NewProcess()
	var n float64
	p.families[0].read = func() (float64, error) { n++; return n, nil }
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 10 {
				if _, err := p.Render(&bytes.Buffer{}, expfmt.FmtText); err != nil {
					t.Error(err)
				}
				if _, err := p.Gather(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n != 80 {
		t.Errorf("read %v times of 80", n)
	}
	var out bytes.Buffer
	if allocations := testing.AllocsPerRun(20, func() {
		out.Reset()
		p.Render(&out, expfmt.FmtText)
	}); allocations > 30 {
		t.Errorf("%v allocations", allocations)
	}
}

// What cannot be read has no series.
func TestProcessWithFailures(t *testing.T) {
	p := NewProcess()
	complete, err := p.Gather()
	if err != nil {
		t.Fatal(err)
	}
	p.families[len(p.families)-1].read = func() (float64, error) { return 0, errors.New("no /proc") }
	partial, err := p.Gather()
	if err == nil || len(partial) != len(complete)-1 {
		t.Errorf("%d families of %d, %v", len(partial), len(complete), err)
	}
	var out bytes.Buffer
	if ok, err := p.Render(&out, expfmt.FmtText); !ok || err == nil || samples(out.String()) != len(partial) {
		t.Errorf("rendered %v, %v:\n%s", ok, err, out.String())
	}
}
