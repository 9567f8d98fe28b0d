package promtest

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/value"
)

const (
	dashboardRules = "../../deploy/prometheus/dashboards.rules.yaml"
	alertRecords   = "../../deploy/prometheus/alerts-recording.rules.yaml"
)

// recordAll evaluates what dashboards read of recorded series, from the first scrape on: those of
// the alerts with a step, then those of the dashboards. It returns the most samples that one
// evaluation of the latter read.
func (e *Prometheus) recordAll(t *testing.T, step time.Duration, to time.Time) int64 {
	t.Helper()
	e.recordRules(t, alertRecords, scraped().Add(step), to, step)

	return e.recordRules(t, dashboardRules, scraped().Add(time.Minute), to, time.Minute)
}

// recordRules evaluates recording rules over a time, as Prometheus does, and returns the most
// samples that one evaluation read.
func (e *Prometheus) recordRules(t *testing.T, file string, from, to time.Time, step time.Duration) int64 {
	t.Helper()

	groups := ruleGroups(t, file)
	seen := map[string]map[uint64]labels.Labels{}
	most := int64(0)

	for at := from; !at.After(to); at = at.Add(step) {
		for _, g := range groups {
			if file == dashboardRules && g.Interval != model.Duration(time.Minute) {
				t.Fatalf("group %s has the interval %s; energy is added up by minutes", g.Name, g.Interval)
			}

			for _, rule := range g.Rules {
				now, samples := e.record(t, rule, at, seen[rule.Record])
				seen[rule.Record], most = now, max(most, samples)
			}
		}
	}

	return most
}

// record evaluates one rule, and marks series stale that it had before and has no more.
func (e *Prometheus) record(t testing.TB, rule rulefmt.Rule, at time.Time,
	before map[uint64]labels.Labels) (map[uint64]labels.Labels, int64) {
	t.Helper()

	a, err := e.ask(grafanaTarget{Expr: rule.Expr, Instant: true}, view{to: at})
	if err != nil {
		t.Fatalf("%s: %v", rule.Record, err)
	}

	app := e.db.Appender(t.Context())
	seen := map[uint64]labels.Labels{}

	for _, s := range a.series {
		b := labels.NewBuilder(s.Metric)
		b.Set("__name__", rule.Record)

		series := b.Labels()
		if _, twice := seen[series.Hash()]; twice {
			t.Fatalf("%s: %s occurs twice", rule.Record, series)
		}

		seen[series.Hash()] = series
		if _, err := app.Append(0, series, at.UnixMilli(), s.Floats[0].F); err != nil {
			t.Fatalf("%s: %v", rule.Record, err)
		}
	}

	for hash, series := range before {
		if _, ok := seen[hash]; ok {
			continue
		}

		if _, err := app.Append(0, series, at.UnixMilli(), math.Float64frombits(value.StaleNaN)); err != nil {
			t.Fatalf("%s: %v", rule.Record, err)
		}
	}

	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}

	return seen, a.samples
}
