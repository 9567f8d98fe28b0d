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
	Name, Label, Type, Definition, AllValue string
	IncludeAll, Multi                       bool
	Datasource                              grafanaSource
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

// fill does what Grafana does with the variables of a query.
func (v view) fill(expr string) string {
	replace := []string{
		"$__rate_interval", max(4*scrapeInterval, v.step+scrapeInterval).String(),
		"$__range", v.to.Sub(v.from).String(), "$__interval", v.step.String(),
	}
	for _, name := range []string{"cluster", "job", "node", "gpu", "profile", "namespace", "pod"} {
		value, ok := v.set[name]
		if !ok {
			value = ".*"
		}

		replace = append(replace, "$"+name, value)
	}

	return strings.NewReplacer(replace...).Replace(expr)
}

// answer is what a panel shows of one query.
type answer struct {
	series  promql.Matrix // one point each if the query is instant
	samples int64         // that were read for it
}

// ask runs a query as Grafana does.
func (e *Prometheus) ask(target grafanaTarget, v view) (answer, error) {
	ctx := context.Background()

	expr := v.fill(target.Expr)
	if regexp.MustCompile(`\$\{?[a-zA-Z_]`).MatchString(expr) {
		return answer{}, fmt.Errorf("a variable is left in %s", expr)
	}

	var q promql.Query

	var err error
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
