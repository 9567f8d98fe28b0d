package promtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
)

// The types below are what the tests read of a Grafana dashboard.

type grafanaDashboard struct {
	UID, Title, Description string
	SchemaVersion           int
	GraphTooltip            int
	Tags                    []string
	Templating              struct{ List []grafanaVariable }
	Annotations             struct{ List []grafanaAnnotation }
	Links                   []grafanaLink
	Panels                  []grafanaPanel
	Time                    struct{ From string }
}

type grafanaSource struct{ Type, UID string }

type grafanaVariable struct {
	Name, Label, Type, Definition, AllValue, Regex string
	IncludeAll, Multi                              bool
	Hide                                           int
	Datasource                                     grafanaSource
}

type grafanaAnnotation struct {
	Name, Expr string
	BuiltIn    int
	Datasource grafanaSource
}

type grafanaLink struct {
	Title, URL, Type      string
	IncludeVars, KeepTime bool
	Tags                  []string
}

type grafanaPanel struct {
	ID                       int
	Type, Title, Description string
	Datasource               grafanaSource
	Collapsed                bool
	MaxDataPoints            int
	Panels                   []grafanaPanel
	GridPos                  struct{ X, Y, W, H int }
	Targets                  []grafanaTarget
	FieldConfig              struct {
		Defaults struct {
			Unit, NoValue string
			Custom        struct{ SpanNulls any }
			Color         struct{ Mode, FixedColor string }
			Mappings      []struct {
				Options struct {
					Match  string
					Result struct{ Text string }
				}
			}
		}
		Overrides []struct {
			Matcher    struct{ Options string }
			Properties []struct {
				ID    string
				Value json.RawMessage
			}
		}
	}
	Transformations []struct {
		ID      string
		Options json.RawMessage
	}
}

// fields is what the table keeps of its columns.
func (p grafanaPanel) fields() string {
	text := ""

	for _, x := range p.Transformations {
		if x.ID == "filterFieldsByName" {
			text += string(x.Options)
		}
	}

	return text
}

type grafanaTarget struct {
	RefID, Expr, LegendFormat, Format string
	Instant, Range                    bool
	Datasource                        grafanaSource
	computed                          []grafanaVariable // of its dashboard
}

// loadDashboards reads the committed dashboards.
func loadDashboards(t testing.TB) map[string]grafanaDashboard {
	t.Helper()
	all := map[string]grafanaDashboard{}

	for _, file := range findFiles(t, "../../dashboards/*.json") {
		var d grafanaDashboard
		if err := json.Unmarshal([]byte(readFile(t, file)), &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}

		for _, p := range d.all() {
			for i := range p.Targets {
				p.Targets[i].computed = d.computed()
			}
		}

		all[d.UID] = d
	}

	return all
}

// all returns the panels but rows, those of collapsed rows included.
func (d grafanaDashboard) all() []grafanaPanel {
	var list []grafanaPanel

	for _, p := range d.Panels {
		if p.Type == "row" {
			list = append(list, p.Panels...)
			continue
		}

		list = append(list, p)
	}

	return list
}

// view is the time range and the variables with which a dashboard is looked at.
type view struct {
	from, to time.Time
	step     time.Duration
	set      map[string]string
}

// answer is what a panel shows of one query.
type answer struct {
	series  promql.Matrix // one point each if the query is instant
	samples int64         // that were read for it
}

// ask runs a query as Grafana does.
func (e *Prometheus) ask(target grafanaTarget, v view) (answer, error) {
	ctx := context.Background()

	v, err := e.compute(target.computed, v, target.Expr)
	if err != nil {
		return answer{}, err
	}

	expr, err := v.fill(target.Expr)
	if err != nil {
		return answer{}, err
	}

	var q promql.Query
	if target.Instant {
		q, err = e.promql.NewInstantQuery(ctx, e.db, nil, expr, v.to)
	} else {
		q, err = e.promql.NewRangeQuery(ctx, e.db, nil, expr, v.from, v.to, v.step)
	}

	if err != nil {
		return answer{}, fmt.Errorf("query %s: %w", expr, err)
	}

	defer q.Close()

	result := q.Exec(ctx)
	if result.Err != nil {
		return answer{}, fmt.Errorf("query %s: %w", expr, result.Err)
	}

	if err := slices.DeleteFunc(result.Warnings.AsErrors(), isAboutDCGMsName); len(err) > 0 {
		return answer{}, fmt.Errorf("query %s: %w", expr, errors.Join(err...))
	}

	a := answer{samples: q.Stats().Samples.TotalSamples}

	switch value := result.Value.(type) {
	case promql.Matrix:
		for _, s := range value {
			a.series = append(a.series, promql.Series{Metric: s.Metric, Floats: slices.Clone(s.Floats)})
		}
	case promql.Vector:
		for _, s := range value {
			a.series = append(a.series, promql.Series{Metric: s.Metric, Floats: []promql.FPoint{{T: s.T, F: s.F}}})
		}
	default:
		return answer{}, fmt.Errorf("query %s: a %s", expr, result.Value.Type())
	}

	return a, nil
}

// legend returns how a series is called. Values that look like a format stay as they are.
func legend(format string, s promql.Series) string {
	return regexp.MustCompile(`\{\{(\w+)\}\}`).ReplaceAllStringFunc(format, func(name string) string {
		return s.Metric.Get(strings.Trim(name, "{}"))
	})
}
