package web

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// wire names one form in which metrics go out. The format has the escaping scheme of names in it; formats come from a
// closed set (expfmt.NegotiateAccept), so that clients cannot fill the memory with forms.
type wire struct {
	format expfmt.Format
	coding coding
}

// exposition is one Snapshot on the wire: gathered once at most, and encoded once in each form that was asked for. Of
// selections, which clients make up, only the last maxSelections encodings are kept. All methods may be called at once; the
// first caller does the work and the others wait for it.
type exposition struct {
	snap    *gpu.Snapshot
	metrics Metrics
	pool    *buffers
	report  func(error)
	gather  func() ([]*dto.MetricFamily, error)

	mu       sync.Mutex
	openings map[wire]encoding // of everything
	selected recent[selectedWire, encoding]
	reported bool // that something could not be gathered
}

// encoding returns an opening, which the first call makes.
type encoding func() (opening, error)

// selectedWire names one form of a selection.
type selectedWire struct {
	wire
	selection string // its key
}

// newExposition gathers nothing yet. What goes wrong later is told to report, once each.
func newExposition(snap *gpu.Snapshot, metrics Metrics, pool *buffers, report func(error)) *exposition {
	return &exposition{
		snap:    snap,
		metrics: metrics,
		pool:    pool,
		report:  report,
		// A Gather that panics does so for every scraper of the Snapshot: OnceValues keeps the panic. A half of the
		// metrics that looks like all of them would be worse.
		gather:   sync.OnceValues(func() ([]*dto.MetricFamily, error) { return metrics.Gather(snap) }),
		openings: make(map[wire]encoding),
	}
}

// opening is the encoded Snapshot, without the end marker of OpenMetrics, of size 0 where nothing could be encoded. Its
// bytes are shared: they must not be modified. The error says why some or all is missing; it has been reported.
func (e *exposition) opening(w wire, s selection) (opening, error) {
	e.mu.Lock()
	var made encoding
	if s.all() {
		if made = e.openings[w]; made == nil {
			made = e.encoding(w, nil)
			e.openings[w] = made
		}
	} else {
		made = e.selected.get(selectedWire{w, s.key}, maxSelections, func() encoding { return e.encoding(w, s.names) })
	}
	e.mu.Unlock()
	return made()
}

func (e *exposition) encoding(w wire, names []string) encoding {
	return sync.OnceValues(func() (opening, error) { return e.encode(w, names) })
}

func (e *exposition) encode(w wire, names []string) (opening, error) {
	plain := e.pool.get()
	defer e.pool.put(plain)
	rendered, gatherErr := e.metrics.Render(plain, e.snap, w.format, names)
	var err error
	if !rendered {
		var families []*dto.MetricFamily
		families, gatherErr = e.gather()
		if err = encodeFamilies(plain, w.format, e.metrics.Filter(families, names)); err != nil {
			e.report(err)
		}
	}
	if gatherErr != nil {
		gatherErr = fmt.Errorf("gather: %w", gatherErr)
		e.reportGather(gatherErr)
	}
	open := opening{bytes: plain.Bytes(), size: uint32(plain.Len())}
	if w.coding == codingGzip {
		packed := e.pool.get()
		defer e.pool.put(packed)
		open = e.pool.openGzip(packed, plain.Bytes())
	}
	open.bytes = bytes.Clone(open.bytes) // the buffers go back
	return open, errors.Join(gatherErr, err)
}

// reportGather reports the first error of gathering: that of another form is the same.
func (e *exposition) reportGather(err error) {
	e.mu.Lock()
	first := !e.reported
	e.reported = true
	e.mu.Unlock()
	if first {
		e.report(err)
	}
}

// encodeFamilies appends families to dst. One that cannot be encoded is left out as a whole and is in the error. Text formats
// get no native histograms.
//
// Created timestamps: protobuf carries them, OpenMetrics does not get _created lines. Prometheus reads those as further
// series, one for every counter, unless a feature flag is set, and promhttp leaves them out for that reason; scrapers
// that make use of created timestamps ask for protobuf.
func encodeFamilies(dst *bytes.Buffer, format expfmt.Format, families []*dto.MetricFamily) error {
	enc := expfmt.NewEncoder(dst, format)
	var errs []error
	for _, family := range families {
		if isNative(family) && !isProtobuf(format) {
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

// isNative reports whether a family is native histograms alone: text formats would have a sum and a count of it, which say nothing
// of how values are distributed.
func isNative(family *dto.MetricFamily) bool {
	return family.GetType() == dto.MetricType_HISTOGRAM && !slices.ContainsFunc(family.GetMetric(), func(m *dto.Metric) bool {
		return len(m.GetHistogram().GetBucket()) > 0
	})
}

func isProtobuf(format expfmt.Format) bool { return format.FormatType() == expfmt.TypeProtoDelim }

// finish appends what ends an exposition in its format: the "# EOF" of OpenMetrics.
func finish(dst *bytes.Buffer, format expfmt.Format) error {
	if !strings.HasPrefix(string(format), expfmt.OpenMetricsType) {
		return nil // an encoder, for nothing, is ten allocations
	}
	if closer, ok := expfmt.NewEncoder(dst, format).(expfmt.Closer); ok {
		return closer.Close()
	}
	return nil
}
