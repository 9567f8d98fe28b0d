package collector

import (
	"bytes"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// An exposition is mostly names and labels, which change with a layout or a holder, while values
// change with every Snapshot. Render therefore has the Prometheus library check, sort and encode
// the series once, keeps the encoding without the values as a template, and fills in the values of
// each Snapshot until the series change.

// renderState is what Render keeps between Snapshots. There is one for text formats and one for
// protobuf, which has native histograms, too. Collector.mu guards it.
type renderState struct {
	snapshot *gpu.Snapshot // that metrics were collected from; nil: none
	// metrics are all series of snapshot, in the order in which they were collected. The next
	// Snapshot reuses the memory.
	metrics metrics
	err     error // why groups left metrics out
	// layout has the series of metrics without their values. While it stays the same, so do the
	// templates.
	layout    []layoutSeries
	templates map[expfmt.Format]seriesTemplate // nil for a format in which we cannot render layout
}

type layoutSeries struct {
	family *family
	labels labels
	since  time.Time
}

// seriesTemplate is an exposition of a layout without its values. Text and protobuf have a type
// each, since they separate the values, and leave out groups, in different ways.
type seriesTemplate interface {
	// renderMetrics appends the exposition of the selected groups to dst with the values of the
	// metrics. After an error dst may have a part of it.
	renderMetrics(dst *bytes.Buffer, m metrics, selected groupSelection) error
}

// libraryFamily is a family as the library has gathered and encoded it. We make templates from it.
type libraryFamily struct {
	*dto.MetricFamily
	encoded []byte
	series  []int // for each metric, the index in renderState.metrics
}

// Render appends the metrics of a Snapshot to dst: byte for byte what Gather, Filter with the names
// and an encoder of the expfmt package return, except for the durations of the groups. err is the
// same as Gather's. ok is false, and dst unchanged, for formats other than text, OpenMetrics 1.0
// and delimited protobuf, and if the registry refuses metrics. All selections of a Snapshot share
// one collect for text and one for protobuf, and one template for each format.
func (c *Collector) Render(dst *bytes.Buffer, s *gpu.Snapshot, format expfmt.Format,
	names []string) (ok bool, err error) {
	r := &c.renderedText

	text := isText(format)
	if !text {
		if format.FormatType() != expfmt.TypeProtoDelim {
			return false, nil
		}

		r = &c.renderedProtobuf
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	if r.snapshot != s {
		r.snapshot = nil // in case of a panic
		w := metricWriter{metrics: r.metrics[:0], text: text}
		r.err = joinErrors(c.collectLocked(&w, s))
		r.metrics = w.metrics
		r.snapshot = s
		r.dropStaleTemplates()
	}

	if !r.renderSelected(dst, format, c.groupIndex, c.selectGroups(names)) {
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

// renderSelected appends the selected metrics to dst. It returns false, and leaves dst as it was,
// if it cannot render them.
func (r *renderState) renderSelected(dst *bytes.Buffer, format expfmt.Format, groupOf groupFunc,
	selected groupSelection) bool {
	t, made := r.templates[format]
	if !made {
		t = r.newTemplate(format, groupOf)
		r.templates[format] = t
	}

	if t == nil {
		return false
	}

	length := dst.Len()
	if err := t.renderMetrics(dst, r.metrics, selected); err != nil {
		dst.Truncate(length)
		return false
	}

	return true
}

// dropStaleTemplates drops the templates if the series have changed since we made them.
func (r *renderState) dropStaleTemplates() {
	same := slices.EqualFunc(r.layout, r.metrics, func(a layoutSeries, b series) bool {
		return a.family == b.family && a.since.Equal(b.since) && a.labels.equal(b.labels)
	})

	r.layout = slices.Grow(r.layout[:0], len(r.metrics))
	for i := range r.metrics {
		r.layout = append(
			r.layout,
			layoutSeries{r.metrics[i].family, r.metrics[i].labels, r.metrics[i].since},
		)
	}

	if !same || r.templates == nil {
		r.templates = make(map[expfmt.Format]seriesTemplate)
	}
}

// newTemplate has the library gather and encode the metrics, and removes the values. It returns nil
// if the library refuses anything, or if the template, filled in again, differs from the library's
// encoding.
func (r *renderState) newTemplate(format expfmt.Format, groupOf groupFunc) seriesTemplate {
	families, encoded := r.encodeByLibrary(format)
	if families == nil {
		return nil
	}

	isEqual := func(t seriesTemplate) bool {
		var filled bytes.Buffer
		return t.renderMetrics(&filled, r.metrics, nil) == nil && bytes.Equal(filled.Bytes(), encoded)
	}
	// Formats that only differ in the escaping scheme can usually share a template.
	for f, other := range r.templates {
		if other != nil && f.FormatType() == format.FormatType() && isEqual(other) {
			return other
		}
	}

	var t seriesTemplate
	if isText(format) {
		t = newTextTemplate(families, isOpenMetrics(format), groupOf)
	} else {
		t = newProtoTemplate(families, format, groupOf)
	}

	if t == nil || !isEqual(t) {
		return nil
	}

	return t
}

// encodeByLibrary gathers and encodes the metrics. It returns each family, and the encoding of all;
// nil if the library refuses anything.
func (r *renderState) encodeByLibrary(format expfmt.Format) ([]libraryFamily, []byte) {
	gathered, err := gatherMetrics(r.metrics)
	if err != nil {
		return nil, nil
	}

	index := make(map[any]int, len(r.metrics)) // of each series, by pointerOf its metric
	for i := range r.metrics {
		if s := &r.metrics[i]; s.histogram != nil {
			index[s.histogram] = i
		} else {
			index[&s.value] = i
		}
	}

	families := make([]libraryFamily, len(gathered))
	var all bytes.Buffer

	encoder := expfmt.NewEncoder(&all, format)
	for i, family := range gathered {
		before := all.Len()

		if encoder.Encode(family) != nil {
			return nil, nil
		}

		f := libraryFamily{
			family,
			bytes.Clone(all.Bytes()[before:]),
			make([]int, len(family.GetMetric())),
		}
		for j, m := range family.GetMetric() {
			k, ok := index[pointerOf(m)]
			if !ok {
				return nil, nil
			}

			f.series[j] = k
		}

		families[i] = f
	}

	return families, all.Bytes()
}

// pointerOf returns the pointer that a metric shares with its series: to its value or its
// histogram.
func pointerOf(m *dto.Metric) any {
	switch {
	case m.Histogram != nil:
		return m.Histogram
	case m.Gauge != nil:
		return m.Gauge.Value
	}

	return m.GetCounter().Value
}
