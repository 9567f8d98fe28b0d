package promtest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
)

// loadRules has Prometheus' own rule manager load rule files, for queries and results in the given
// storage. It returns the groups with those of recording rules last, so that alerts see what was
// recorded one evaluation earlier: the worst that can happen.
func loadRules(t testing.TB, query rules.QueryFunc, store storage.Storage, interval time.Duration,
	files ...string) []*rules.Group {
	t.Helper()
	return newRuleLoader(nil).load(t, query, store, interval, files...)
}

// ruleLoader loads rule files as Prometheus does. It prints each expression once: Prometheus prints
// it several times at each evaluation, which takes longer than many an evaluation.
type ruleLoader struct {
	parser.Parser

	needed func(rulefmt.Rule) bool // all rules if nil
}

func newRuleLoader(needed func(rulefmt.Rule) bool) ruleLoader {
	return ruleLoader{parser.NewParser(parser.Options{}), needed}
}

func (l ruleLoader) load(t testing.TB, query rules.QueryFunc, store storage.Storage, interval time.Duration,
	files ...string) []*rules.Group {
	t.Helper()
	m := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: query, Appendable: store, Queryable: store, Context: context.Background(), Logger: promslog.NewNopLogger(),
		NotifyFunc:  func(context.Context, string, ...*rules.Alert) {},
		GroupLoader: l, RuleDependencyController: inOrder{},
	})

	loaded, errs := m.LoadGroups(interval, labels.EmptyLabels(), "", nil, false, files...)
	if errs != nil {
		t.Fatal(errs)
	}

	groups := slices.SortedFunc(maps.Values(loaded), func(a, b *rules.Group) int {
		if a.HasAlertingRules() != b.HasAlertingRules() {
			if a.HasAlertingRules() {
				return -1
			}

			return 1
		}

		return cmp.Compare(a.Name(), b.Name())
	})
	for _, g := range groups {
		for _, r := range g.AlertingRules() {
			r.SetRestored(true)
		}
	}

	return groups
}

// Load reads a file of rules, for [rules.GroupLoader].
func (l ruleLoader) Load(file string, ignoreUnknown bool, names model.ValidationScheme) (*rulefmt.RuleGroups, []error) {
	loaded, errs := rulefmt.ParseFile(file, ignoreUnknown, names, l.Parser, promslog.NewNopLogger())
	if errs != nil || l.needed == nil {
		return loaded, errs
	}

	for i := range loaded.Groups {
		g := &loaded.Groups[i]
		g.Rules = slices.DeleteFunc(g.Rules, func(r rulefmt.Rule) bool { return !l.needed(r) })
	}

	loaded.Groups = slices.DeleteFunc(loaded.Groups, func(g rulefmt.RuleGroup) bool { return len(g.Rules) == 0 })

	return loaded, nil
}

// Parse parses an expression, for [rules.GroupLoader].
func (l ruleLoader) Parse(text string) (parser.Expr, error) {
	expr, err := l.ParseExpr(text)
	if err != nil {
		return nil, err
	}

	return printedExpr{Expr: expr, text: expr.String()}, nil
}

// printedExpr is an expression that knows its text.
type printedExpr struct {
	parser.Expr

	text string
}

func (e printedExpr) String() string { return e.text }

// inOrder finds no dependencies between the rules of a group: they are evaluated one after the other.
type inOrder struct{}

func (inOrder) AnalyseRules([]rules.Rule) {}

// rulesFor chooses, of the rules of files, the alerts that a test names, and what these and the
// test's queries read, also by way of others.
func rulesFor(t *testing.T, test ruleTest, files ...string) func(rulefmt.Rule) bool {
	t.Helper()
	read := ""

	for _, q := range test.QueryTests {
		read += q.Expr + "\n"
	}

	needed := func(r rulefmt.Rule) bool {
		if r.Record != "" {
			return strings.Contains(read, r.Record)
		}

		return slices.ContainsFunc(test.AlertRuleTests, func(a alertTest) bool { return a.Alertname == r.Alert })
	}

	var others []rulefmt.Rule
	for _, file := range files {
		others = append(others, rulesOf(t, file)...)
	}

	for before := -1; before != len(others); {
		before = len(others)
		others = slices.DeleteFunc(others, func(r rulefmt.Rule) bool {
			if !needed(r) {
				return false
			}

			read += r.Expr + "\n"
			for _, texts := range []map[string]string{r.Annotations, r.Labels} { // their templates have queries
				for _, text := range texts {
					read += text + "\n"
				}
			}

			return true
		})
	}

	return needed
}

// rulesOf returns the rules of a file.
func rulesOf(t testing.TB, file string) []rulefmt.Rule {
	t.Helper()

	var of []rulefmt.Rule
	for _, g := range ruleGroups(t, file) {
		of = append(of, g.Rules...)
	}

	return of
}

// ruleGroups reads a file of rules, which must have no keys that Prometheus does not know.
func ruleGroups(t testing.TB, file string) []rulefmt.RuleGroup {
	t.Helper()

	loaded, errs := newRuleLoader(nil).Load(file, false, model.LegacyValidation)
	if errs != nil {
		t.Fatalf("%s: %v", file, errs)
	}

	return loaded.Groups
}
