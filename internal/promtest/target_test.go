package promtest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/storage"
)

// scrapeTarget is a target whose `up` is stored, too: it says whether the last scrape succeeded.
// Several may share an Prometheus.
type scrapeTarget struct {
	target
	engine *Prometheus
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
	if err = errors.Join(err, x.finishScrape(app, at, seen, 1)); err != nil {
		t.Fatalf("scrape of %s at %s: %v", x.labels, at.UTC().Format(time.RFC3339), err)
	}
}

// failScrape stores a scrape without an answer.
func (x *scrapeTarget) failScrape(t testing.TB, at time.Time) {
	t.Helper()

	if err := x.finishScrape(x.engine.db.Appender(context.Background()), at, nil, 0); err != nil {
		t.Fatal(err)
	}
}

// remove ends all series of a target that service discovery has dropped.
func (x *scrapeTarget) remove(t testing.TB, at time.Time) {
	t.Helper()

	up := x.withLabels(labels.FromStrings(model.MetricNameLabel, "up"))
	if x.seen == nil {
		x.seen = map[uint64]labels.Labels{}
	}

	x.seen[up.Hash()] = up

	app := x.engine.db.Appender(context.Background())
	if err := errors.Join(x.markStale(app, nil, at.UnixMilli()), app.Commit()); err != nil {
		t.Fatal(err)
	}

	x.seen = nil
}

// finishScrape marks ended series stale and stores `up`.
func (x *scrapeTarget) finishScrape(app storage.Appender, at time.Time, seen map[uint64]labels.Labels,
	up float64) error {
	err := x.markStale(app, seen, at.UnixMilli())

	x.seen = seen
	if err == nil {
		_, err = app.Append(0, x.withLabels(labels.FromStrings(model.MetricNameLabel, "up")), at.UnixMilli(), up)
	}

	if err != nil {
		return errors.Join(err, app.Rollback())
	}

	return app.Commit()
}
