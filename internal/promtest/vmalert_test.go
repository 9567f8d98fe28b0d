package promtest

import (
	"net/url"
	"testing"

	"github.com/VictoriaMetrics/VictoriaMetrics/app/vmalert/config"
	"github.com/VictoriaMetrics/VictoriaMetrics/app/vmalert/notifier"
	"github.com/VictoriaMetrics/VictoriaMetrics/app/vmalert/templates"
)

// TestVmalertTakesTheRules does what `vmalert -dryRun -rule=deploy/prometheus/*.rules.yaml` does,
// with the same packages: it parses the files strictly, each expression as MetricsQL, and the
// templates of the annotations.
func TestVmalertTakesTheRules(t *testing.T) {
	if err := templates.Load(nil, url.URL{}); err != nil {
		t.Fatal(err)
	}

	files := recordingFiles(t)

	groups, err := config.Parse(files, notifier.ValidateTemplates, true)
	if err != nil {
		t.Fatal(err)
	}

	rules := 0
	for _, g := range groups {
		rules += len(g.Rules)
	}

	if want := countRules(t, files); rules != want {
		t.Errorf("vmalert takes %d rules, want %d", rules, want)
	}
}

// countRules counts the rules of files as Prometheus reads them.
func countRules(t *testing.T, files []string) int {
	t.Helper()
	count := 0

	for _, file := range files {
		count += len(rulesOf(t, file))
	}

	return count
}
