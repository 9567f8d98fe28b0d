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

// outputForm is the form of an answer with metrics. The format includes the escaping scheme of
// names. There are only a few formats (expfmt.NegotiateAccept), so clients cannot fill the memory
// with forms.
type outputForm struct {
	format expfmt.Format
	coding coding
}

// exposition is one encoded Snapshot: it is gathered at most once, and encoded at most once in each
// requested form. Of selections, which clients choose, only the last maxSelections encodings are
// kept. It is safe for concurrent use: the first caller does the work and the others wait for it.
type exposition struct {
	snap    *gpu.Snapshot
	metrics Metrics
	pool    *buffers
	report  func(error)
	gather  func() ([]*dto.MetricFamily, error)

	mu       sync.Mutex
	prefixes map[outputForm]encodeFunc         // with all collectors
	selected recent[selectionForm, encodeFunc] // with the collectors of a selection
	reported bool                              // an error of gathering was reported
}

// encodeFunc returns a prefix, which its first call encodes.
type encodeFunc func() (bodyPrefix, error)

// selectionForm is one form of a selection.
type selectionForm struct {
	outputForm
	selection string // its key
}

// newExposition returns an exposition, which gathers nothing yet. It reports each later error once.
func newExposition(
	snap *gpu.Snapshot,
	metrics Metrics,
	pool *buffers,
	report func(error),
) *exposition {
	return &exposition{
		snap:    snap,
		metrics: metrics,
		pool:    pool,
		report:  report,
		// If Gather panics, OnceValues panics for every scraper of the Snapshot. Serving a part of
		// the metrics as if they were complete would be worse.
		gather: sync.OnceValues(
			func() ([]*dto.MetricFamily, error) { return metrics.Gather(snap) },
		),
		prefixes: make(map[outputForm]encodeFunc),
	}
}

// prefix returns the encoded Snapshot, without the end marker of OpenMetrics; its size is 0 if
// nothing could be encoded. Its bytes are shared and must not be modified. The error says why
// metrics are missing; it was reported.
func (e *exposition) prefix(form outputForm, s selection) (bodyPrefix, error) {
	e.mu.Lock()

	var encode encodeFunc
	if s.isAll() {
		if encode = e.prefixes[form]; encode == nil {
			encode = e.newEncodeFunc(form, nil)
			e.prefixes[form] = encode
		}
	} else {
		encode = e.selected.get(selectionForm{form, s.key}, maxSelections,
			func() encodeFunc { return e.newEncodeFunc(form, s.names) })
	}

	e.mu.Unlock()

	return encode()
}

func (e *exposition) newEncodeFunc(form outputForm, names []string) encodeFunc {
	return sync.OnceValues(func() (bodyPrefix, error) { return e.encode(form, names) })
}

func (e *exposition) encode(form outputForm, names []string) (bodyPrefix, error) {
	plain := e.pool.get()
	defer e.pool.put(plain)

	var err error

	// Render is faster, but may refuse. What it appends is the same.
	rendered, gatherErr := e.metrics.Render(plain, e.snap, form.format, names)
	if !rendered {
		var families []*dto.MetricFamily

		families, gatherErr = e.gather()
		if err = encodeFamilies(plain, form, e.metrics.Filter(families, names)); err != nil {
			e.report(err)
		}
	}

	if gatherErr != nil {
		gatherErr = fmt.Errorf("gather: %w", gatherErr)
		e.reportGather(gatherErr)
	}

	prefix := bodyPrefix{bytes: plain.Bytes(), size: uint32(plain.Len())}

	if form.coding == codingGzip {
		packed := e.pool.get()
		defer e.pool.put(packed)
		prefix = e.pool.gzipPrefix(packed, plain.Bytes())
	}

	prefix.bytes = bytes.Clone(prefix.bytes) // the buffers are reused

	return prefix, errors.Join(gatherErr, err)
}

// reportGather reports the first error of gathering; other forms have the same one.
func (e *exposition) reportGather(err error) {
	e.mu.Lock()
	first := !e.reported
	e.reported = true
	e.mu.Unlock()

	if first {
		e.report(err)
	}
}
