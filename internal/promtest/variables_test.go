package promtest

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"
)

// computed returns the variables that the user does not choose: Grafana sets them to all options of a
// query, or to its first one.
func (d grafanaDashboard) computed() []grafanaVariable {
	return slices.DeleteFunc(slices.Clone(d.Templating.List), func(x grafanaVariable) bool { return x.Hide == 0 })
}

// labelValues returns the selector and the label of a variable that asks for a label's values.
func (x grafanaVariable) labelValues() (selector, label string, ok bool) {
	call, ok := strings.CutPrefix(x.Definition, "label_values(")
	call = strings.TrimSuffix(call, ")")
	at := strings.LastIndex(call, ",")

	if !ok || at < 0 {
		return "", "", false
	}

	return call[:at], strings.TrimSpace(call[at+1:]), true
}

// options asks for the values that Grafana offers for a variable. Those that it depends on are set.
func (e *Prometheus) options(x grafanaVariable, v view) ([]string, error) {
	if selector, label, ok := x.labelValues(); ok {
		return e.labelValues(selector, label, v)
	}

	expr := strings.TrimSuffix(strings.TrimPrefix(x.Definition, "query_result("), ")")

	a, err := e.ask(grafanaTarget{Expr: expr, Instant: true}, v)
	if err != nil {
		return nil, fmt.Errorf("variable %s: %w", x.Name, err)
	}

	pattern := regexp.MustCompile(strings.Trim(x.Regex, "/"))

	var list []string

	for _, s := range a.series {
		var labels []string
		for name, value := range s.Metric.Map() {
			labels = append(labels, name+`="`+value+`"`)
		}

		slices.Sort(labels)

		// This is the text that Grafana makes of each series of the result.
		text := fmt.Sprintf("{%s} %v %d", strings.Join(labels, ","), s.Floats[0].F, s.Floats[0].T)
		if found := pattern.FindStringSubmatch(text); found != nil && !slices.Contains(list, found[1]) {
			list = append(list, found[1])
		}
	}

	return list, nil
}

// labelValues returns the values that a label of some series has in the time range of a view.
func (e *Prometheus) labelValues(selector, label string, v view) ([]string, error) {
	selector, err := v.fill(selector)
	if err != nil {
		return nil, err
	}

	matchers, err := parser.NewParser(parser.Options{}).ParseMetricSelector(selector)
	if err != nil {
		return nil, fmt.Errorf("selector %s: %w", selector, err)
	}

	q, err := e.db.Querier(v.from.UnixMilli(), v.to.UnixMilli())
	if err != nil {
		return nil, err
	}
	defer q.Close()

	list, _, err := q.LabelValues(context.Background(), label, nil, matchers...)

	return slices.Clone(list), err
}

// expand returns what Grafana puts in the place of a variable: a pattern for all options, or the
// first option as it is.
func (x grafanaVariable) expand(options []string) string {
	if !x.IncludeAll {
		if len(options) == 0 {
			return ""
		}

		return quoted(options[0])
	}

	patterns := make([]string, 0, len(options))
	for _, option := range options {
		patterns = append(patterns, quoted(regexp.QuoteMeta(option)))
	}

	if len(patterns) == 1 {
		return patterns[0]
	}

	return "(" + strings.Join(patterns, "|") + ")"
}

// quoted returns a text as it is written between the quotes of a string.
func quoted(text string) string {
	text = strconv.Quote(text)

	return text[1 : len(text)-1]
}

// compute returns a view in which variables that an expression uses have the values that Grafana
// gives them. Variables depend on those before them.
func (e *Prometheus) compute(variables []grafanaVariable, v view, expr string) (view, error) {
	for i, x := range variables {
		if _, set := v.set[x.Name]; set || !strings.Contains(expr, "$"+x.Name) {
			continue
		}

		needed, err := e.compute(variables[:i], v, x.Definition)
		if err != nil {
			return v, err
		}

		options, err := e.options(x, needed)
		if err != nil {
			return v, err
		}

		v = needed.with(x.Name, x.expand(options))
	}

	return v, nil
}

// with returns a view in which one variable has another value.
func (v view) with(name, value string) view {
	set := map[string]string{name: value}

	for other, old := range v.set {
		if other != name {
			set[other] = old
		}
	}

	v.set = set

	return v
}

// replacements returns what Grafana puts in the place of each variable in a query.
func (v view) replacements() map[string]string {
	r := map[string]string{
		"__rate_interval": max(4*scrapeInterval, v.step+scrapeInterval).String(),
		"__range":         v.to.Sub(v.from).String(),
		"__interval":      v.step.String(),
	}

	for _, name := range []string{"cluster", "job", "node", "gpu", "profile", "namespace", "pod"} {
		r[name] = ".*"
	}

	for name, value := range v.set {
		r[name] = value
	}

	return r
}

var variableUse = regexp.MustCompile(`\$\{?\w+`)

// fill does what Grafana does with the variables of a query.
func (v view) fill(expr string) (string, error) {
	var missing error

	values := v.replacements()
	filled := variableUse.ReplaceAllStringFunc(expr, func(use string) string {
		value, ok := values[use[1:]]
		if !ok && !strings.ContainsAny(use[1:2], "0123456789") { // $1 is of label_replace
			missing = fmt.Errorf("%s is not set in %s", use, expr)
		}

		if !ok {
			return use
		}

		return value
	})

	return filled, missing
}
