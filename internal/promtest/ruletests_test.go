package promtest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"go.yaml.in/yaml/v2"
)

// ruleTests is a file for `promtool test rules`, as far as the shipped ones use it.
type ruleTests struct {
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	GroupEvalOrder     []string       `yaml:"group_eval_order"`
	Tests              []ruleTest     `yaml:"tests"`
}

type ruleTest struct {
	Name        string         `yaml:"name"`
	Interval    model.Duration `yaml:"interval"`
	InputSeries []struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	AlertRuleTests []alertTest `yaml:"alert_rule_test"`
	QueryTests     []queryTest `yaml:"promql_expr_test"`
}

type queryTest struct {
	Expr       string           `yaml:"expr"`
	EvalTime   model.Duration   `yaml:"eval_time"`
	ExpSamples []expectedSample `yaml:"exp_samples"`
}

type expectedSample struct {
	Labels string  `yaml:"labels"` // a series, with its name
	Value  float64 `yaml:"value"`
}

type alertTest struct {
	EvalTime  model.Duration  `yaml:"eval_time"`
	Alertname string          `yaml:"alertname"`
	ExpAlerts []expectedAlert `yaml:"exp_alerts"`
}

type expectedAlert struct {
	ExpLabels      map[string]string `yaml:"exp_labels"`
	ExpAnnotations map[string]string `yaml:"exp_annotations"`
}

func (a expectedAlert) String() string {
	return fmt.Sprintf("%s %s", labels.FromMap(a.ExpLabels), labels.FromMap(a.ExpAnnotations))
}

// ruleTestFiles reads all of them, by path.
func ruleTestFiles(t *testing.T) map[string]ruleTests {
	t.Helper()
	files := map[string]ruleTests{}

	for _, path := range findFiles(t, "../../deploy/prometheus/tests/*.yaml") {
		var file ruleTests
		if err := yaml.UnmarshalStrict([]byte(readFile(t, path)), &file); err != nil {
			t.Fatalf("%s: %v", path, err)
		}

		for i, name := range file.RuleFiles {
			file.RuleFiles[i] = filepath.Join(filepath.Dir(path), name)
			if _, err := os.Stat(file.RuleFiles[i]); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
		}

		files[path] = file
	}

	return files
}

// TestRuleTests does what `promtool test rules deploy/prometheus/tests/*.yaml` does, with the same
// packages: promtool itself is no library.
func TestRuleTests(t *testing.T) {
	t.Parallel()

	for path, file := range ruleTestFiles(t) {
		for _, test := range file.Tests {
			t.Run(filepath.Base(path)+"/"+test.Name, func(t *testing.T) {
				t.Parallel()
				runRuleTest(t, file, test)
			})
		}
	}
}

func runRuleTest(t *testing.T, file ruleTests, test ruleTest) {
	if test.Interval == 0 {
		test.Interval = file.EvaluationInterval
	}

	input := fmt.Sprintf("load %s\n", test.Interval)
	for _, s := range test.InputSeries {
		input += "  " + s.Series + " " + s.Values + "\n"
	}

	suite, err := promqltest.NewLazyLoader(input,
		promqltest.LazyLoaderOpts{EnableAtModifier: true, EnableNegativeOffset: true})
	if err != nil {
		t.Fatal(err)
	}
	defer suite.Close()
	query := rules.EngineQueryFunc(suite.QueryEngine(), suite.Storage())
	needed := rulesFor(t, test, file.RuleFiles...)
	load := func(chosen func(rulefmt.Rule) bool) []*rules.Group {
		return newRuleLoader(chosen).load(t, query, suite.Storage(), time.Duration(test.Interval), file.RuleFiles...)
	}

	groups := load(needed)
	others := load(func(r rulefmt.Rule) bool { return !needed(r) })
	slices.Reverse(others) // what is recorded, and then the alerts that read it
	// promtool takes the groups that the file does not name in any order. For us alerts come first
	// then, before what they read, which is the worst.
	slices.SortStableFunc(groups, func(a, b *rules.Group) int {
		return cmp.Compare(slices.Index(file.GroupEvalOrder, a.Name()), slices.Index(file.GroupEvalOrder, b.Name()))
	})
	steps := map[model.Duration][]alertTest{}
	var last model.Duration

	for _, want := range test.AlertRuleTests {
		if err := checkAlertTest(want, groups, file.EvaluationInterval); err != nil {
			t.Fatal(err)
		}

		steps[want.EvalTime] = append(steps[want.EvalTime], want)
		last = max(last, want.EvalTime)
	}

	queries := map[model.Duration][]queryTest{}

	for _, want := range test.QueryTests {
		if want.EvalTime%file.EvaluationInterval != 0 {
			t.Fatalf("%s at %s: rules are evaluated every %s", want.Expr, want.EvalTime, file.EvaluationInterval)
		}

		queries[want.EvalTime] = append(queries[want.EvalTime], want)
		last = max(last, want.EvalTime)
	}

	for elapsed := model.Duration(0); elapsed <= last; elapsed += file.EvaluationInterval {
		at := time.Unix(0, 0).UTC().Add(time.Duration(elapsed))
		suite.WithSamplesTill(at, func(err error) {
			if err != nil {
				t.Fatal(err)
			}

			evaluate(t, groups, at)
		})

		if len(steps[elapsed])+len(queries[elapsed]) > 0 {
			evaluate(t, others, at) // the test says nothing about them, but that they have no error
		}

		for _, want := range steps[elapsed] {
			compareAlerts(t, want, groups)
		}

		for _, want := range queries[elapsed] {
			compareSamples(t, want, query, at)
		}
	}
}

// evaluate evaluates groups of rules. An error in one of them fails the test.
func evaluate(t *testing.T, groups []*rules.Group, at time.Time) {
	t.Helper()

	for _, g := range groups {
		g.Eval(context.Background(), at)

		for _, r := range g.Rules() {
			if err := r.LastError(); err != nil {
				t.Fatalf("%s at %s: %v", r.Name(), at, err)
			}
		}
	}
}

// checkAlertTest returns an error if a test of an alert could pass without an evaluation: promtool
// says nothing of an alert that no rule has, nor of a time between two evaluations.
func checkAlertTest(test alertTest, groups []*rules.Group, interval model.Duration) error {
	if test.EvalTime%interval != 0 {
		return fmt.Errorf("%s at %s: rules are evaluated every %s", test.Alertname, test.EvalTime, interval)
	}

	for _, g := range groups {
		if slices.ContainsFunc(g.AlertingRules(), func(r *rules.AlertingRule) bool { return r.Name() == test.Alertname }) {
			return nil
		}
	}

	return fmt.Errorf("no rule has the alert %s", test.Alertname)
}

// compareSamples compares what an expression gives with what is expected, to a millionth.
func compareSamples(t *testing.T, want queryTest, query rules.QueryFunc, at time.Time) {
	t.Helper()

	found, err := query(context.Background(), want.Expr, at)
	if err != nil {
		t.Fatalf("%s: %v", want.Expr, err)
	}

	var got, expected []string
	for _, s := range found {
		got = append(got, fmt.Sprintf("%s %.6g", s.Metric, s.F))
	}

	for _, s := range want.ExpSamples {
		series, err := parser.NewParser(parser.Options{}).ParseMetric(s.Labels)
		if err != nil {
			t.Fatalf("%s: %v", s.Labels, err)
		}

		expected = append(expected, fmt.Sprintf("%s %.6g", series, s.Value))
	}

	slices.Sort(got)
	slices.Sort(expected)

	if !slices.Equal(got, expected) {
		t.Errorf("%s at %s:\n got %s\nwant %s", want.Expr, want.EvalTime, strings.Join(got, "\n     "),
			strings.Join(expected, "\n     "))
	}
}

func compareAlerts(t *testing.T, want alertTest, groups []*rules.Group) {
	t.Helper()
	var got, expected []string

	for _, g := range groups {
		for _, r := range g.Rules() {
			alert, ok := r.(*rules.AlertingRule)
			if !ok || alert.Name() != want.Alertname {
				continue
			}

			for _, a := range alert.ActiveAlerts() {
				if a.State == rules.StateFiring {
					got = append(got, expectedAlert{a.Labels.Map(), a.Annotations.Map()}.String())
				}
			}
		}
	}

	for _, a := range want.ExpAlerts {
		named := map[string]string{labels.AlertName: want.Alertname}
		for name, value := range a.ExpLabels {
			named[name] = value
		}

		expected = append(expected, expectedAlert{named, a.ExpAnnotations}.String())
	}

	slices.Sort(got)
	slices.Sort(expected)

	if !slices.Equal(got, expected) {
		t.Errorf("%s at %s:\n got %s\nwant %s", want.Alertname, want.EvalTime, strings.Join(got, "\n     "),
			strings.Join(expected, "\n     "))
	}
}

// TestAlertTestsAreChecked: a test that could only pass is refused.
func TestAlertTestsAreChecked(t *testing.T) {
	e := NewPrometheus(t)
	groups := loadRules(t, rules.EngineQueryFunc(e.promql, e.db), e.db, time.Minute,
		"../../deploy/prometheus/alerts-gpu.rules.yaml")

	minute := model.Duration(time.Minute)
	for _, c := range []struct {
		test alertTest
		ok   bool
	}{
		{alertTest{EvalTime: 3 * minute, Alertname: "GpuDown"}, true},
		{alertTest{EvalTime: 3 * minute, Alertname: "GpuDwon"}, false},
		{alertTest{EvalTime: 3 * minute, Alertname: "MigSourceDown"}, false}, // of a file that the test does not load
		{alertTest{EvalTime: minute * 5 / 2, Alertname: "GpuDown"}, false},
	} {
		if err := checkAlertTest(c.test, groups, minute); (err == nil) != c.ok {
			t.Errorf("%s at %s: %v", c.test.Alertname, c.test.EvalTime, err)
		}
	}
}

// TestEveryAlertHasARuleTest: one that expects it to fire, and one later in the same story that
// expects it not to.
func TestEveryAlertHasARuleTest(t *testing.T) {
	fires := map[string]bool{}
	clears := map[string]bool{}

	for _, file := range ruleTestFiles(t) {
		for _, test := range file.Tests {
			first := map[string]model.Duration{}
			for _, a := range test.AlertRuleTests {
				if at, ok := first[a.Alertname]; len(a.ExpAlerts) > 0 && (!ok || a.EvalTime < at) {
					first[a.Alertname] = a.EvalTime
					fires[a.Alertname] = true
				}
			}

			for _, a := range test.AlertRuleTests {
				if at, ok := first[a.Alertname]; ok && a.EvalTime > at && len(a.ExpAlerts) == 0 {
					clears[a.Alertname] = true
				}
			}
		}
	}

	for _, rule := range shippedAlerts(t) {
		if !fires[rule.Alert] || !clears[rule.Alert] {
			t.Errorf("%s: a test sees it fire: %v, and clear after that: %v", rule.Alert, fires[rule.Alert], clears[rule.Alert])
		}
	}
}
