package collector

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// metricWriter collects the metrics of one group. It leaves out a metric that cannot be served, and
// adds the reason to err.
type metricWriter struct {
	metrics metrics
	err     error
	// text is set for text formats, which have no native histograms.
	text bool
}

// add writes one value.
func (w *metricWriter) add(f *family, l labels, value float64) {
	w.addSeries(f, l, value, time.Time{})
}

// addBool writes 1 for true and 0 for false.
func (w *metricWriter) addBool(f *family, l labels, set bool) { w.add(f, l, boolToFloat(set)) }

// addCounter writes a counter and the time at which it began.
func (w *metricWriter) addCounter(f *family, l labels, c gpu.Counter) {
	w.addSeries(f, l, c.Value, c.Since)
}

// addTimestamp writes a time in seconds since the epoch; the zero time is not written.
func (w *metricWriter) addTimestamp(f *family, l labels, t time.Time) {
	if !t.IsZero() {
		w.add(f, l, float64(t.UnixNano())/1e9)
	}
}

func (w *metricWriter) addSeries(f *family, l labels, value float64, since time.Time) {
	if math.IsNaN(value) || math.IsInf(value, 0) || f.counter && value < 0 {
		w.addError(fmt.Errorf("%s: value %v", f.desc, value))
		return
	}

	w.metrics = append(w.metrics, series{family: f, labels: l, value: value, since: since})
}

// addError records why something had to be left out.
func (w *metricWriter) addError(err error) { w.err = errors.Join(w.err, err) }

// addOpt writes a value if it is present.
func addOpt[T ~int | ~uint64 | ~float64](w *metricWriter, f *family, l labels, value gpu.Opt[T]) {
	if v, ok := value.Get(); ok {
		w.add(f, l, float64(v))
	}
}

// addOptBool writes a boolean if it is present.
func addOptBool(w *metricWriter, f *family, l labels, value gpu.Opt[bool]) {
	if v, ok := value.Get(); ok {
		w.addBool(f, l, v)
	}
}

// addOptCounter writes a counter if it is present.
func addOptCounter(w *metricWriter, f *family, l labels, value gpu.Opt[gpu.Counter]) {
	if c, ok := value.Get(); ok {
		w.addCounter(f, l, c)
	}
}

// addUseCounter writes a counter of use if it is present. If the labels name a holder that got the
// device after the counter began, we leave out when it began: Prometheus would credit the whole
// counter to that holder.
func addUseCounter(w *metricWriter, f *family, d *deviceLabels, value gpu.Opt[gpu.Counter]) {
	if c, ok := value.Get(); ok {
		if c.Since.Before(d.heldSince) {
			c.Since = time.Time{}
		}

		w.addCounter(f, d.use, c)
	}
}

// series is a prometheus.Metric. Unlike the library's constant metrics, it shares its label pairs
// with the other metrics of its device: building them for every metric is most of the cost of a
// gathering.
type series struct {
	family    *family
	labels    labels
	value     float64
	since     time.Time      // when a counter began; zero if unknown
	histogram *dto.Histogram // nil unless the series is a histogram
}

// Desc implements prometheus.Metric.
func (s *series) Desc() *prometheus.Desc { return s.family.desc }

// Write implements prometheus.Metric. It writes a pointer to the value of the series, not a copy.
func (s *series) Write(out *dto.Metric) error {
	out.Label = s.labels.pairList()
	switch {
	case s.histogram != nil:
		out.Histogram = s.histogram
	case !s.family.counter:
		out.Gauge = &dto.Gauge{Value: &s.value}
	default:
		out.Counter = &dto.Counter{Value: &s.value}
		if !s.since.IsZero() {
			out.Counter.CreatedTimestamp = timestamppb.New(s.since)
		}
	}

	return nil
}
