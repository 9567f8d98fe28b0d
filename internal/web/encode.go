package web

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// encodeFamilies appends families to dst. A family that cannot be encoded is left out completely,
// and the error names it. Text formats get no native histograms, and OpenMetrics no gauge that a
// counter excludes (excludedGauges).
//
// Created timestamps: protobuf carries them. OpenMetrics gets no _created lines: Prometheus reads
// those as further series, one for every counter, unless a feature flag is set, and with that flag
// it asks for protobuf.
func encodeFamilies(dst *bytes.Buffer, form outputForm, families []*dto.MetricFamily) error {
	enc := expfmt.NewEncoder(dst, form.format)

	var excluded map[string]bool
	if isOpenMetrics(form.format) {
		excluded = excludedGauges(families)
	}

	var errs []error

	for _, family := range families {
		if isNative(family) && !isProtobuf(form.format) || excluded[family.GetName()] {
			continue
		}

		before := dst.Len()
		if err := enc.Encode(family); err != nil {
			dst.Truncate(before)
			errs = append(errs, fmt.Errorf("encode %s: %w", family.GetName(), err))
		}
	}

	return errors.Join(errs...)
}

// excludedGauges returns the names of the families that cannot stand beside a counter in
// OpenMetrics, where the name of a counter's family has no _total: strict parsers refuse the whole
// scrape if another family has that name. Go's own go_memstats_alloc_bytes is one, beside
// go_memstats_alloc_bytes_total.
func excludedGauges(families []*dto.MetricFamily) map[string]bool {
	counters := map[string]bool{}

	for _, family := range families {
		base, ok := strings.CutSuffix(family.GetName(), "_total")
		if ok && family.GetType() == dto.MetricType_COUNTER {
			counters[base] = true
		}
	}

	excluded := map[string]bool{}

	for _, family := range families {
		if counters[family.GetName()] {
			excluded[family.GetName()] = true
		}
	}

	return excluded
}

// isNative reports whether a family has native histograms only. In text formats it would have a sum
// and a count, which say nothing about the distribution.
func isNative(family *dto.MetricFamily) bool {
	return family.GetType() == dto.MetricType_HISTOGRAM &&
		!slices.ContainsFunc(family.GetMetric(), func(m *dto.Metric) bool {
			return len(m.GetHistogram().GetBucket()) > 0
		})
}

func isProtobuf(format expfmt.Format) bool { return format.FormatType() == expfmt.TypeProtoDelim }

func isOpenMetrics(format expfmt.Format) bool {
	return strings.HasPrefix(string(format), expfmt.OpenMetricsType)
}

// appendEndMarker appends the end marker of the format, which only OpenMetrics has: "# EOF".
func appendEndMarker(dst *bytes.Buffer, format expfmt.Format) error {
	if !isOpenMetrics(format) {
		return nil // without the ten allocations of an encoder
	}

	if closer, ok := expfmt.NewEncoder(dst, format).(expfmt.Closer); ok {
		return closer.Close()
	}

	return nil
}
