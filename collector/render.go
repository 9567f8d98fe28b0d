package collector

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A text exposition is mostly names and labels, which change with a layout or a holder, while values change with every
// Snapshot. Render therefore has the Prometheus library check, sort and encode the series once, keeps that text without its
// values as a template, and fills in the values of each Snapshot for as long as the series are the same. All that is done
// here besides is to format numbers.

// rendered is what Render keeps. Collector.mu guards it.
type rendered struct {
	snap *gpu.Snapshot // that metrics are of; nil for none
	// metrics are all series of snap in the order in which they were collected. The memory is used again.
	metrics metrics
	err     error // what the groups could not write
	// layout is the series of the metrics that the templates were made of; only family and labels are used.
	layout    []layoutSeries
	templates map[expfmt.Format]*textTemplate // of layout; nil for a format in which it cannot be rendered
}

type layoutSeries struct {
	family *family
	labels labels
}

// textTemplate is a text exposition of a layout without its values.
type textTemplate struct {
	text        []byte
	slots       []slot
	openMetrics bool // numbers are written as in OpenMetrics
}

// slot is a place in a template at which a value goes.
type slot struct {
	end    int // of the text before it, which begins at the end of the slot before
	series int // index in rendered.metrics
}

// Render appends the metrics of a Snapshot to dst, byte for byte as Gather and an encoder of the expfmt package give them but
// for the duration of the collectors. It reports whether it could: it renders text and OpenMetrics 1.0 only, and nothing
// that the registry refuses in part. If it could not, nothing was appended. The error is that of Gather.
func (c *Collector) Render(dst *bytes.Buffer, s *gpu.Snapshot, format expfmt.Format) (ok bool, err error) {
	openMetrics := strings.HasPrefix(string(format), expfmt.OpenMetricsType)
	if strings.Contains(string(format), "version="+expfmt.OpenMetricsVersion_2_0_0) {
		return false, nil
	}
	if !openMetrics && !strings.HasPrefix(string(format), "text/plain") {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &c.rendered
	if r.snap != s {
		r.snap = nil // if this panics, the metrics are of no Snapshot
		k := sink{metrics: r.metrics[:0], text: true}
		r.err = joinErrors(c.collectLocked(&k, s))
		r.metrics, r.snap = k.metrics, s
		r.keepLayout()
	}
	t, made := r.templates[format]
	if !made {
		t = r.newTemplate(format, openMetrics)
		r.templates[format] = t
	}
	if t == nil {
		return false, nil
	}
	t.fill(dst, r.metrics)
	return true, r.err
}

// keepLayout drops the templates if the series are others than those that they were made of.
func (r *rendered) keepLayout() {
	same := slices.EqualFunc(r.layout, r.metrics, func(a layoutSeries, b series) bool {
		return a.family == b.family && a.labels.equal(b.labels)
	})
	r.layout = slices.Grow(r.layout[:0], len(r.metrics))
	for i := range r.metrics {
		r.layout = append(r.layout, layoutSeries{r.metrics[i].family, r.metrics[i].labels})
	}
	if !same || r.templates == nil {
		r.templates = make(map[expfmt.Format]*textTemplate)
	}
}

// newTemplate has the library gather and encode the metrics and takes the values out of the text. It returns nil if
// anything is refused, or if the text is not what fill makes of the template.
func (r *rendered) newTemplate(format expfmt.Format, openMetrics bool) *textTemplate {
	families, err := gather(r.metrics)
	if err != nil {
		return nil
	}
	index := make(map[*float64]int, len(r.metrics))
	for i := range r.metrics {
		index[&r.metrics[i].value] = i
	}
	t := &textTemplate{openMetrics: openMetrics, slots: make([]slot, 0, len(r.metrics))}
	var all, one bytes.Buffer
	encoder := expfmt.NewEncoder(&one, format)
	for _, family := range families {
		one.Reset()
		if err := encoder.Encode(family); err != nil || !t.add(one.Bytes(), family, index) {
			return nil
		}
		all.Write(one.Bytes())
	}
	t.text, t.slots = slices.Clip(t.text), slices.Clip(t.slots)
	var filled bytes.Buffer
	t.fill(&filled, r.metrics)
	if !bytes.Equal(filled.Bytes(), all.Bytes()) {
		return nil
	}
	for _, other := range r.templates { // escaping schemes seldom make a difference
		if other != nil && other.openMetrics == t.openMetrics && slices.Equal(other.slots, t.slots) && bytes.Equal(other.text, t.text) {
			return other
		}
	}
	return t
}

// add appends an encoded family without its values, which stand at the ends of the lines that are no comments. index says
// which series a value is of. It reports whether there is a value for each line.
func (t *textTemplate) add(text []byte, family *dto.MetricFamily, index map[*float64]int) bool {
	metrics := family.GetMetric()
	for line := range bytes.Lines(text) {
		if line[0] == '#' {
			t.text = append(t.text, line...)
			continue
		}
		if len(metrics) == 0 {
			return false
		}
		i, ok := index[valueOf(metrics[0])]
		at := bytes.LastIndexByte(line, ' ') + 1
		if !ok || at == 0 {
			return false
		}
		t.text = append(t.text, line[:at]...)
		t.slots = append(t.slots, slot{end: len(t.text), series: i})
		t.text = append(t.text, '\n')
		metrics = metrics[1:]
	}
	return len(metrics) == 0
}

// valueOf returns where the value of a metric is.
func valueOf(m *dto.Metric) *float64 {
	if m.Gauge != nil {
		return m.Gauge.Value
	}
	return m.GetCounter().Value
}

// fill appends the text to dst with the values of the metrics in it.
func (t *textTemplate) fill(dst *bytes.Buffer, m metrics) {
	dst.Grow(len(t.text) + 12*len(t.slots))
	begin := 0
	for i := range t.slots {
		at := &t.slots[i]
		dst.Write(t.text[begin:at.end])
		begin = at.end
		dst.Write(appendFloat(dst.AvailableBuffer(), m[at.series].value, t.openMetrics))
	}
	dst.Write(t.text[begin:])
}

// appendFloat appends a number as the text format has it or, with a point or an exponent in it, as OpenMetrics has it.
func appendFloat(dst []byte, f float64, openMetrics bool) []byte {
	switch {
	case f == 0: // a negative zero, too
		dst = append(dst, '0')
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 0):
		return strconv.AppendFloat(dst, f, 'g', -1, 64)
	default:
		begin := len(dst)
		dst = strconv.AppendFloat(dst, f, 'g', -1, 64)
		if bytes.ContainsAny(dst[begin:], "e.") {
			return dst
		}
	}
	if openMetrics {
		dst = append(dst, '.', '0')
	}
	return dst
}
