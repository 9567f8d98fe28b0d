package promtest

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
)

// shippedRules are the rule files of the alerts.
func shippedRules(t testing.TB) []string {
	t.Helper()
	return findFiles(t, "../../deploy/prometheus/alerts-*.rules.yaml")
}

// ruler evaluates the shipped rules as Prometheus does, and remembers what fired.
type ruler struct {
	t      testing.TB
	groups []*rules.Group
	start  time.Time
	fired  map[string]*firing // by alert
}

// firing is the story of an alert.
type firing struct {
	first, last time.Duration // since the start
	times       int           // evaluations at which it fired
	alerts      map[string]string
	now         []*rules.Alert
}

func newRuler(t testing.TB, store storage.Storage, start time.Time, query rules.QueryFunc) *ruler {
	t.Helper()

	return &ruler{t: t, start: start, fired: map[string]*firing{},
		groups: loadRules(t, query, store, time.Minute, shippedRules(t)...)}
}

// eval evaluates all groups whose interval has passed. An evaluation that fails and an annotation
// that cannot be rendered fail the test.
func (r *ruler) eval(at time.Time) {
	r.t.Helper()

	for _, g := range r.groups {
		r.evalGroup(g, at)
	}
}

func (r *ruler) evalGroup(g *rules.Group, at time.Time) {
	r.t.Helper()

	elapsed := at.Sub(r.start)
	if elapsed%g.Interval() != 0 {
		return
	}

	g.Eval(context.Background(), at)

	for _, rule := range g.Rules() {
		if err := rule.LastError(); err != nil {
			r.t.Fatalf("after %s: %s: %v", elapsed, rule.Name(), err)
		}

		if alert, ok := rule.(*rules.AlertingRule); ok {
			r.note(elapsed, alert)
		}
	}
}

func (r *ruler) note(elapsed time.Duration, rule *rules.AlertingRule) {
	r.t.Helper()

	f := r.fired[rule.Name()]
	if f != nil {
		f.now = nil
	}

	for _, a := range rule.ActiveAlerts() {
		a.Annotations.Range(func(l labels.Label) { r.checkText(rule.Name()+" "+l.Name, l.Value) })

		if a.State != rules.StateFiring {
			continue
		}

		if f == nil {
			f = &firing{first: elapsed, alerts: map[string]string{}}
			r.fired[rule.Name()] = f
		}

		f.now = append(f.now, a)
		f.alerts[a.Labels.String()] = a.Annotations.Get("summary")
	}

	if f != nil && len(f.now) > 0 {
		f.last = elapsed
		f.times++
	}
}

// checkText fails the test if a template was expanded without what it names.
func (r *ruler) checkText(where, text string) {
	r.t.Helper()

	for _, bad := range []string{"<no value>", "<error", "%!", "NaN", "Inf", "held by)", "  ", " of .", "GPU  ",
		"instance )"} {
		if strings.Contains(text, bad) {
			r.t.Errorf("%s: %q in %q", where, bad, text)
		}
	}
}

// firingNow returns the alerts of a name that fire.
func (r *ruler) firingNow(name string) []*rules.Alert {
	if f := r.fired[name]; f != nil {
		return f.now
	}

	return nil
}

// expectStory fails the test for each of the alerts that did not fire or did not clear, and for
// each other that fired.
func (r *ruler) expectStory(names ...string) {
	r.t.Helper()

	for _, name := range names {
		if f := r.fired[name]; f == nil {
			r.t.Errorf("%s never fires", name)
		} else if len(f.now) > 0 {
			r.t.Errorf("%s does not clear: %s", name, f.now[0].Annotations.Get("summary"))
		}
	}

	for name := range r.fired {
		if !slices.Contains(names, name) {
			r.t.Errorf("%s fires, which it should not", name)
		}
	}

	r.log()
}

// expectSummary fails the test unless an alert fired with this summary.
func (r *ruler) expectSummary(name, summary string) {
	r.t.Helper()

	f := r.fired[name]
	if f == nil {
		r.t.Errorf("%s never fires, to say %q", name, summary)
		return
	}

	if said := slices.Collect(maps.Values(f.alerts)); !slices.Contains(said, summary) {
		r.t.Errorf("%s never says %q:\n%s", name, summary, strings.Join(said, "\n"))
	}
}

// log writes what fired when, and the summaries.
func (r *ruler) log() {
	r.t.Helper()

	for _, name := range slices.Sorted(maps.Keys(r.fired)) {
		f := r.fired[name]

		end := "cleared"
		if len(f.now) > 0 {
			end = "still firing"
		}

		r.t.Logf("%-28s %9s to %9s, %s", name, f.first, f.last, end)

		for _, summary := range slices.Compact(slices.Sorted(maps.Values(f.alerts))) {
			r.t.Logf("    %s", summary)
		}
	}
}

// ruledFamilies are those that the rules name: others need not be stored.
func ruledFamilies(t testing.TB) map[string]bool {
	t.Helper()
	families := map[string]bool{}

	for _, file := range shippedRules(t) {
		for _, name := range regexp.MustCompile(`\b(nvidia|mig_exporter|mig_control|mig_node)_[a-z_]+`).
			FindAllString(readFile(t, file), -1) {
			families[name] = true
		}
	}

	for _, level := range levels() {
		families[level.prefix+"pod_info"] = true
		families[level.prefix+"hpc_job_info"] = true
	}

	return families
}
