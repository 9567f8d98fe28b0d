package promtest

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/alertmanager/pkg/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"go.yaml.in/yaml/v2"
)

// inhibitRule is a rule of Alertmanager's configuration by which alerts silence others.
type inhibitRule struct {
	Source []string `yaml:"source_matchers"`
	Target []string `yaml:"target_matchers"`
	Equal  []string `yaml:"equal"`
}

// inhibitRules are those of docs/alerts.md, from every block that has any.
func inhibitRules(t *testing.T) []inhibitRule {
	t.Helper()
	page := readFile(t, "../../docs/alerts.md")
	var all []inhibitRule
	blocks := 0

	for _, block := range regexp.MustCompile("(?ms)^( *)```yaml\n(.*?)^ *```").FindAllStringSubmatch(page, -1) {
		if !strings.Contains(block[2], "inhibit_rules:") {
			continue
		}

		var part struct {
			Route   any           `yaml:"route"`
			Inhibit []inhibitRule `yaml:"inhibit_rules"`
		}

		text := regexp.MustCompile("(?m)^"+block[1]).ReplaceAllString(block[2], "")
		if err := yaml.UnmarshalStrict([]byte(text), &part); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}

		all = append(all, part.Inhibit...)
		blocks++
	}

	if want := strings.Count(page, "inhibit_rules:"); blocks != want || len(all) == 0 {
		t.Fatalf("found %d rules in %d blocks, want %d blocks", len(all), blocks, want)
	}

	return all
}

// matchedBy returns the shipped alerts that all matchers match, by the labels that their rules
// give.
func matchedBy(t *testing.T, alerts []rulefmt.Rule, matchers []string) []rulefmt.Rule {
	t.Helper()
	matched := slices.Clone(alerts)

	for _, text := range matchers {
		m, err := labels.ParseMatcher(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}

		matched = slices.DeleteFunc(matched, func(r rulefmt.Rule) bool {
			value := r.Labels[m.Name]
			if m.Name == "alertname" {
				value = r.Alert
			}

			return !m.Matches(value)
		})
		if len(matched) == 0 {
			t.Errorf("%s: matches no alert", text)
		}

		if m.Name != "alertname" {
			continue
		}

		for _, name := range strings.Split(m.Value, "|") {
			if !strings.HasSuffix(name, ".+") &&
				!slices.ContainsFunc(alerts, func(r rulefmt.Rule) bool { return r.Alert == name }) {
				t.Errorf("%s: there is no alert %s", text, name)
			}
		}
	}

	return matched
}

// firedLabels are the labels of every alert that a rule test expects, by its name.
func firedLabels(t *testing.T) map[string][]map[string]string {
	t.Helper()
	fired := map[string][]map[string]string{}

	for _, tests := range ruleTestFiles(t) {
		for _, test := range tests.Tests {
			for _, a := range test.AlertRuleTests {
				for _, e := range a.ExpAlerts {
					fired[a.Alertname] = append(fired[a.Alertname], e.ExpLabels)
				}
			}
		}
	}

	return fired
}

// TestDocumentedInhibitRules: the alerts that silence and are silenced exist, and have the labels
// in which they must agree. Alertmanager takes two alerts that lack a label to agree in it.
func TestDocumentedInhibitRules(t *testing.T) {
	alerts := shippedAlerts(t)
	fired := firedLabels(t)
	grouping := regexp.MustCompile(`\b(?:by|on) \(([^)]*)\)`)

	for _, rule := range inhibitRules(t) {
		if len(rule.Source) == 0 || len(rule.Target) == 0 || !slices.Contains(rule.Equal, "cluster") {
			t.Errorf("%+v: want matchers of both sides, and the same cluster", rule)
		}

		for _, a := range slices.Concat(matchedBy(t, alerts, rule.Source), matchedBy(t, alerts, rule.Target)) {
			if len(fired[a.Alert]) == 0 {
				t.Errorf("%s: no rule test expects it", a.Alert)
			}

			for _, labels := range fired[a.Alert] {
				for _, name := range rule.Equal {
					if labels[name] == "" && name != "cluster" { // most tests have no cluster
						t.Errorf("%s: %v has no label %s, in which %v must agree", a.Alert, labels, name, rule)
					}
				}
			}

			for _, group := range grouping.FindAllStringSubmatch(a.Expr, -1) {
				if of := strings.Split(strings.ReplaceAll(group[1], " ", ""), ","); !slices.Contains(of, "cluster") {
					t.Errorf("%s: %s drops or mixes clusters", a.Alert, group[0])
				}
			}
		}
	}
}
