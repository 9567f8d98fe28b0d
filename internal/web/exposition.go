package web

import (
	"bytes"
	"errors"
	"fmt"
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

// exposition is one Snapshot on the wire: gathered once, and encoded once in each form that was asked for. All methods
// may be called at once; the first caller does the work and the others wait for it.
type exposition struct {
	pool   *buffers
	report func(error)
	gather func() ([]*dto.MetricFamily, error)

	mu     sync.Mutex
	bodies map[wire]func() ([]byte, error)
}

// newExposition gathers nothing yet. What goes wrong later is told to report, once each.
func newExposition(snap *gpu.Snapshot, metrics Metrics, pool *buffers, report func(error)) *exposition {
	return &exposition{
		pool:   pool,
		report: report,
		// A Gather that panics does so for every scraper of the Snapshot: OnceValues keeps the panic. A half of the
		// metrics that looks like all of them would be worse.
		gather: sync.OnceValues(func() ([]*dto.MetricFamily, error) {
			families, err := metrics.Gather(snap)
			if err != nil {
				err = fmt.Errorf("gather: %w", err)
				report(err)
			}
			return families, err
		}),
		bodies: make(map[wire]func() ([]byte, error)),
	}
}

// body is the encoded Snapshot, without the end marker of OpenMetrics, empty where nothing could be encoded. The bytes
// are shared: they must not be modified. The error says why some or all is missing; it has been reported.
func (e *exposition) body(w wire) ([]byte, error) {
	e.mu.Lock()
	body, ok := e.bodies[w]
	if !ok {
		body = sync.OnceValues(func() ([]byte, error) { return e.encode(w) })
		e.bodies[w] = body
	}
	e.mu.Unlock()
	return body()
}

func (e *exposition) encode(w wire) ([]byte, error) {
	families, gatherErr := e.gather()
	plain := e.pool.get()
	defer e.pool.put(plain)
	encoded, err := encodeFamilies(plain, w.format, families)
	if err != nil {
		e.report(err)
	}
	err = errors.Join(gatherErr, err)
	if encoded == 0 || w.coding == codingIdentity {
		return bytes.Clone(plain.Bytes()), err
	}
	packed := e.pool.get()
	defer e.pool.put(packed)
	if zipErr := e.pool.compress(packed, plain.Bytes()); zipErr != nil {
		e.report(zipErr)
		return nil, errors.Join(err, zipErr)
	}
	return bytes.Clone(packed.Bytes()), err
}

// encodeFamilies appends families to dst and counts them. One that cannot be encoded is left out as a whole and is in
// the error.
//
// Created timestamps: protobuf carries them, OpenMetrics does not get _created lines. Prometheus reads those as further
// series, one for every counter, unless a feature flag is set, and promhttp leaves them out for that reason; scrapers
// that make use of created timestamps ask for protobuf.
func encodeFamilies(dst *bytes.Buffer, format expfmt.Format, families []*dto.MetricFamily) (int, error) {
	enc := expfmt.NewEncoder(dst, format)
	var errs []error
	for _, family := range families {
		before := dst.Len()
		if err := enc.Encode(family); err != nil {
			dst.Truncate(before)
			errs = append(errs, fmt.Errorf("encode %s: %w", family.GetName(), err))
		}
	}
	return len(families) - len(errs), errors.Join(errs...)
}

// finish appends what ends an exposition in its format: the "# EOF" of OpenMetrics.
func finish(dst *bytes.Buffer, format expfmt.Format) error {
	if closer, ok := expfmt.NewEncoder(dst, format).(expfmt.Closer); ok {
		return closer.Close()
	}
	return nil
}
