package collector

import (
	"bytes"
	"slices"
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

// Render appends the metrics of a Snapshot to dst, byte for byte as Gather, Filter with the names and an encoder of the expfmt
// package give them but for the duration of the collectors. It reports whether it could: it renders text and OpenMetrics 1.0
// only, and nothing that the registry refuses in part. If it could not, nothing was appended. The error is that of Gather.
// All selections of a Snapshot share one gathering and one template.
func (c *Collector) Render(dst *bytes.Buffer, s *gpu.Snapshot, format expfmt.Format, names []string) (ok bool, err error) {
	if !isText(format) {
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
	if !r.fill(dst, format, c.groupOf, c.selection(names)) {
		return false, nil
	}
	return true, r.err
}

// isText reports whether a format is text or OpenMetrics 1.0.
func isText(format expfmt.Format) bool {
	if isOpenMetrics(format) {
		return !strings.Contains(string(format), "version="+expfmt.OpenMetricsVersion_2_0_0)
	}
	return strings.HasPrefix(string(format), "text/plain")
}

func isOpenMetrics(format expfmt.Format) bool {
	return strings.HasPrefix(string(format), expfmt.OpenMetricsType)
}

// groupFunc returns the index of the group that a series of a family belongs to.
type groupFunc func(family string, m *dto.Metric) int

// fill appends the selected metrics to dst and reports whether they could be rendered.
func (r *rendered) fill(dst *bytes.Buffer, format expfmt.Format, groupOf groupFunc, selected selection) bool {
	t, made := r.templates[format]
	if !made {
		t = r.newTemplate(format, groupOf)
		r.templates[format] = t
	}
	if t != nil {
		t.fill(dst, r.metrics, selected)
	}
	return t != nil
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
func (r *rendered) newTemplate(format expfmt.Format, groupOf groupFunc) *textTemplate {
	families, err := gather(r.metrics)
	if err != nil {
		return nil
	}
	index := make(map[*float64]int, len(r.metrics))
	for i := range r.metrics {
		index[&r.metrics[i].value] = i
	}
	t := &textTemplate{openMetrics: isOpenMetrics(format), slots: make([]slot, 0, len(r.metrics))}
	var all, one bytes.Buffer
	encoder := expfmt.NewEncoder(&one, format)
	for _, family := range families {
		one.Reset()
		if err := encoder.Encode(family); err != nil || !t.add(one.Bytes(), family, index, groupOf) {
			return nil
		}
		all.Write(one.Bytes())
	}
	t.text, t.families, t.slots = slices.Clip(t.text), slices.Clip(t.families), slices.Clip(t.slots)
	var filled bytes.Buffer
	t.fill(&filled, r.metrics, nil)
	if !bytes.Equal(filled.Bytes(), all.Bytes()) {
		return nil
	}
	for _, other := range r.templates { // escaping schemes seldom make a difference
		if other != nil && other.equal(t) {
			return other
		}
	}
	return t
}

// valueOf returns where the value of a metric is.
func valueOf(m *dto.Metric) *float64 {
	if m.Gauge != nil {
		return m.Gauge.Value
	}
	return m.GetCounter().Value
}
