// Package promtest is a Prometheus for tests: its storage takes expositions as scrapes, and its
// engine evaluates PromQL. It is a module of its own so that the program does not depend on
// Prometheus.
package promtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/util/annotations"
)

// Format is the content type of an exposition.
type Format string

// The formats in which the exporter answers. Native histograms are in Protobuf alone.
const (
	Text        Format = "text/plain; version=0.0.4"
	OpenMetrics Format = "application/openmetrics-text; version=1.0.0"
	Protobuf    Format = "application/vnd.google.protobuf; " +
		"proto=io.prometheus.client.MetricFamily; encoding=delimited"
)

// Prometheus stores the scrapes of one or several targets. It is not safe for concurrent use.
type Prometheus struct {
	db      *tsdb.DB
	promql  *promql.Engine
	last    time.Time          // of the last scrape
	targets map[string]*target // by their labels
}

// target is a target of scrapes.
type target struct {
	labels labels.Labels   // added to its series unless they have such labels, as with honor_labels
	keep   map[string]bool // families that are stored; all if nil
	// added to values that are times, if an old exposition is stored again as a later one
	later time.Duration
	last  time.Time                // of its last scrape
	seen  map[uint64]labels.Labels // the series of the last scrape, by hash
	known map[string]*knownSeries  // all it ever had, by their text in the exposition
}

// knownSeries is a series of a target, kept so that its text is parsed once and not at every scrape.
type knownSeries struct {
	labels labels.Labels
	hash   uint64
	name   string
	ref    storage.SeriesRef // of its last sample; the storage takes the labels where it does not know it
}

// NewPrometheus returns an empty Prometheus, which is closed after the test.
func NewPrometheus(t testing.TB) *Prometheus {
	t.Helper()
	opts := tsdb.DefaultOptions()
	opts.RetentionDuration = 0
	// One block is longer than any test's history, so that nothing is compacted away in its middle.
	opts.MinBlockDuration = (24 * time.Hour).Milliseconds()
	opts.MaxBlockDuration = opts.MinBlockDuration

	db, err := tsdb.Open(t.TempDir(), nil, nil, opts, tsdb.NewDBStats())
	if err != nil {
		t.Fatalf("open storage: %v", err)
	}

	return newPrometheus(t, db)
}

// newPrometheus returns a Prometheus over a storage, which is closed after the test.
func newPrometheus(t testing.TB, db *tsdb.DB) *Prometheus {
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples:           50e6, // Prometheus' defaults
		Timeout:              2 * time.Minute,
		LookbackDelta:        5 * time.Minute,
		EnableAtModifier:     true,
		EnableNegativeOffset: true,
		Parser:               parser.NewParser(parser.Options{}),
	})
	t.Cleanup(func() {
		if err := errors.Join(engine.Close(), db.Close()); err != nil {
			t.Errorf("close engine: %v", err)
		}
	})

	return &Prometheus{db: db, promql: engine, targets: map[string]*target{}}
}

// AddScrape stores an exposition as a scrape at the given time, which must be later than the
// previous one. A series that the previous scrape had and this one does not is marked stale, as by
// a Prometheus server.
func (e *Prometheus) AddScrape(t testing.TB, at time.Time, format Format, exposition []byte) {
	t.Helper()
	e.AddScrapeFrom(t, labels.EmptyLabels(), at, format, exposition)
}

// AddScrapeFrom is AddScrape for one of several targets. Labels of the exposition have precedence
// over the target's, as with honor_labels.
func (e *Prometheus) AddScrapeFrom(
	t testing.TB,
	from labels.Labels,
	at time.Time,
	format Format,
	exposition []byte,
) {
	t.Helper()

	if err := e.addScrape(from, at, format, exposition); err != nil {
		t.Fatalf("store the scrape of %s at %s: %v", from, at.UTC().Format(time.RFC3339), err)
	}
}

func (e *Prometheus) addScrape(
	from labels.Labels,
	at time.Time,
	format Format,
	exposition []byte,
) error {
	of := e.targets[from.String()]
	if of == nil {
		of = &target{labels: from}
		e.targets[from.String()] = of
	}

	if !at.After(of.last) {
		return fmt.Errorf(
			"not later than the previous scrape, %s",
			of.last.UTC().Format(time.RFC3339),
		)
	}

	p, err := textparse.New(
		exposition,
		string(format),
		nil,
		textparse.ParserOptions{OpenMetricsSkipSTSeries: true},
	)
	if err != nil {
		return err
	}

	app := e.db.Appender(context.Background())

	seen, err := of.append(app, p, at.UnixMilli())
	if err == nil {
		err = of.markStale(app, seen, at.UnixMilli())
	}

	if err != nil {
		return errors.Join(err, app.Rollback())
	}

	of.last = at
	of.seen = seen
	e.last = at

	return app.Commit()
}

// markStale marks the series of the previous scrape that are not in seen.
func (s *target) markStale(app storage.Appender, seen map[uint64]labels.Labels, at int64) error {
	stale := math.Float64frombits(value.StaleNaN)

	for hash, series := range s.seen {
		if _, ok := seen[hash]; ok {
			continue
		}

		if _, err := app.Append(0, series, at, stale); err != nil {
			return fmt.Errorf("mark %s stale: %w", series, err)
		}
	}

	return nil
}

// append appends the samples of a parser and returns their series by hash. Two samples of one
// series are an error.
func (s *target) append(
	app storage.Appender,
	p textparse.Parser,
	at int64,
) (map[uint64]labels.Labels, error) {
	seen := make(map[uint64]labels.Labels, len(s.seen))

	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return seen, nil
		}

		if err != nil {
			return nil, err
		}

		if entry != textparse.EntrySeries && entry != textparse.EntryHistogram {
			continue
		}

		of := s.seriesOf(p, entry)
		if s.keep != nil && !s.keep[of.name] {
			continue
		}

		if _, twice := seen[of.hash]; twice {
			return nil, fmt.Errorf("series %s occurs twice", of.labels)
		}

		seen[of.hash] = of.labels
		if err := s.appendSample(app, p, entry, of, at); err != nil {
			return nil, fmt.Errorf("append %s: %w", of.labels, err)
		}
	}
}

// seriesOf returns the series of a parser's entry, with the target's labels.
func (s *target) seriesOf(p textparse.Parser, entry textparse.Entry) *knownSeries {
	var text []byte
	if entry == textparse.EntryHistogram {
		text, _, _, _ = p.Histogram()
	} else {
		text, _, _ = p.Series()
	}

	if known, ok := s.known[string(text)]; ok {
		return known
	}

	var own labels.Labels
	p.Labels(&own)

	all := s.withLabels(own)
	of := &knownSeries{labels: all, hash: all.Hash(), name: all.Get(model.MetricNameLabel)}

	if s.known == nil {
		s.known = map[string]*knownSeries{}
	}

	s.known[string(text)] = of

	return of
}

// withLabels adds the target's labels that the series does not have.
func (s *target) withLabels(series labels.Labels) labels.Labels {
	if s.labels.IsEmpty() {
		return series
	}

	b := labels.NewBuilder(s.labels)
	series.Range(func(l labels.Label) { b.Set(l.Name, l.Value) })

	return b.Labels()
}

func (s *target) appendSample(
	app storage.Appender,
	p textparse.Parser,
	entry textparse.Entry,
	of *knownSeries,
	at int64,
) (err error) {
	if entry == textparse.EntryHistogram {
		_, ts, h, fh := p.Histogram()
		if ts != nil {
			at = *ts
		}

		of.ref, err = app.AppendHistogram(of.ref, of.labels, at, h, fh)

		return err
	}

	_, ts, v := p.Series()
	if ts != nil {
		at = *ts
	}

	if strings.HasSuffix(of.name, "_timestamp_seconds") {
		v += s.later.Seconds()
	}

	of.ref, err = app.Append(of.ref, of.labels, at, v)

	return err
}

// Query evaluates an expression at the time of the last scrape. The test fails if there is an error
// or a warning, or if the result is not a vector.
func (e *Prometheus) Query(t testing.TB, expr string) promql.Vector {
	t.Helper()

	v, err := e.Eval(expr)
	if err != nil {
		t.Fatal(err)
	}

	return v
}

// Eval is Query with the error as a result.
func (e *Prometheus) Eval(expr string) (promql.Vector, error) { return e.EvalAt(expr, e.last) }

// EvalAt evaluates an expression at a time.
func (e *Prometheus) EvalAt(expr string, at time.Time) (promql.Vector, error) {
	ctx := context.Background()

	q, err := e.promql.NewInstantQuery(ctx, e.db, nil, expr, at)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", expr, err)
	}
	defer q.Close()

	result := q.Exec(ctx)
	if result.Err != nil {
		return nil, fmt.Errorf("query %s: %w", expr, result.Err)
	}

	if err := slices.DeleteFunc(result.Warnings.AsErrors(), isAboutDCGMsName); len(err) > 0 {
		return nil, fmt.Errorf("query %s: %w", expr, errors.Join(err...))
	}

	v, err := result.Vector()
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", expr, err)
	}

	// A copy: the samples belong to the query, and Close reuses them.
	return append(promql.Vector(nil), v...), nil
}

// isAboutDCGMsName reports whether a warning is only that the name of one of DCGM's counters does
// not end in _total.
func isAboutDCGMsName(err error) bool {
	return errors.Is(err, annotations.PossibleNonCounterInfo) &&
		strings.Contains(err.Error(), `"DCGM_`)
}
