package promtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
)

// scrapeTarget is what Prometheus scrapes: its labels are on all of its series where the exposition does not set them itself (honor_labels),
// and `up` says whether the last scrape succeeded. Several may share an Engine. Its series are stale after a scrape that lacks them.
type scrapeTarget struct {
	engine *Engine
	labels labels.Labels
	keep   map[string]bool // families that are stored; all if nil
	later  time.Duration   // added to values that are times: an exposition that is stored again counts as one of then
	seen   map[uint64]labels.Labels
}

// scrape stores an exposition, as of the given time.
func (x *scrapeTarget) scrape(t testing.TB, at time.Time, format Format, exposition []byte) {
	t.Helper()
	p, err := textparse.New(exposition, string(format), nil, textparse.ParserOptions{OpenMetricsSkipSTSeries: true})
	if err != nil {
		t.Fatal(err)
	}
	app := x.engine.db.Appender(context.Background())
	seen, err := x.append(app, p, at.UnixMilli())
	if err = errors.Join(err, x.end(app, at, seen, 1)); err != nil {
		t.Fatalf("scrape of %s at %s: %v", x.labels, at.UTC().Format(time.RFC3339), err)
	}
}

// fail is a scrape that had no answer.
func (x *scrapeTarget) fail(t testing.TB, at time.Time) {
	t.Helper()
	if err := x.end(x.engine.db.Appender(context.Background()), at, nil, 0); err != nil {
		t.Fatal(err)
	}
}

func (x *scrapeTarget) append(app storage.Appender, p textparse.Parser, at int64) (map[uint64]labels.Labels, error) {
	seen := map[uint64]labels.Labels{}
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
		var series labels.Labels
		p.Labels(&series)
		if x.keep != nil && !x.keep[series.Get(model.MetricNameLabel)] {
			continue
		}
		series = x.with(series)
		seen[series.Hash()] = series
		if err := x.appendSample(app, p, entry, series, at); err != nil {
			return nil, fmt.Errorf("append %s: %w", series, err)
		}
	}
}

func (x *scrapeTarget) appendSample(app storage.Appender, p textparse.Parser, entry textparse.Entry, series labels.Labels, at int64) error {
	if x.later == 0 || !strings.HasSuffix(series.Get(model.MetricNameLabel), "_timestamp_seconds") {
		return appendSample(app, p, entry, series, at)
	}
	_, _, v := p.Series()
	_, err := app.Append(0, series, at, v+x.later.Seconds())
	return err
}

// with adds the target's labels where there are none of these names.
func (x *scrapeTarget) with(series labels.Labels) labels.Labels {
	b := labels.NewBuilder(series)
	x.labels.Range(func(l labels.Label) {
		if series.Get(l.Name) == "" {
			b.Set(l.Name, l.Value)
		}
	})
	return b.Labels()
}

// end marks series stale that are no more, and stores `up`.
func (x *scrapeTarget) end(app storage.Appender, at time.Time, seen map[uint64]labels.Labels, up float64) error {
	for hash, series := range x.seen {
		if _, ok := seen[hash]; !ok {
			if _, err := app.Append(0, series, at.UnixMilli(), math.Float64frombits(value.StaleNaN)); err != nil {
				return errors.Join(err, app.Rollback())
			}
		}
	}
	x.seen = seen
	if _, err := app.Append(0, x.with(labels.FromStrings(model.MetricNameLabel, "up")), at.UnixMilli(), up); err != nil {
		return errors.Join(err, app.Rollback())
	}
	return app.Commit()
}
