package promtest

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/rulefmt"
)

const runbook = "https://github.com/mig-exporter/mig-exporter/blob/main/docs/alerts.md#"

// shippedAlerts are the alerts of all files.
func shippedAlerts(t *testing.T) []rulefmt.Rule {
	t.Helper()
	var alerts []rulefmt.Rule

	for _, file := range shippedRules(t) {
		for _, r := range rulesOf(t, file) {
			if r.Alert != "" {
				alerts = append(alerts, r)
			}
		}
	}

	return alerts
}

// TestAlertsAreComplete: each has a name of its own, a severity, a summary, a description, and a
// section in docs/alerts.md; and the page has a row and a section for nothing else.
func TestAlertsAreComplete(t *testing.T) {
	page := readFile(t, "../../docs/alerts.md")

	seen := map[string]bool{}
	for _, a := range shippedAlerts(t) {
		if seen[a.Alert] || !regexp.MustCompile(`^(Mig|Gpu)([A-Z][a-z]+)+$`).MatchString(a.Alert) {
			t.Errorf("%s: the name", a.Alert)
		}

		seen[a.Alert] = true

		severity := a.Labels["severity"]
		if !slices.Contains([]string{"critical", "warning", "info"}, severity) {
			t.Errorf("%s: severity %q", a.Alert, severity)
		}

		if a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s: got the annotations %v, want a summary and a description", a.Alert, a.Annotations)
		}

		if got, want := a.Annotations["runbook_url"], runbook+strings.ToLower(a.Alert); got != want {
			t.Errorf("%s: got runbook_url %q, want %q", a.Alert, got, want)
		}

		if !strings.Contains(page, "\n### "+a.Alert+"\n") {
			t.Errorf("docs/alerts.md has no section %s", a.Alert)
		}

		if !strings.Contains(page, "| ["+a.Alert+"](#"+strings.ToLower(a.Alert)+") | "+severity+" |") {
			t.Errorf("docs/alerts.md has no row of %s with severity %s", a.Alert, severity)
		}
	}

	for _, section := range regexp.MustCompile(`\n### (\w+)\n`).FindAllStringSubmatch(page, -1) {
		if !seen[section[1]] {
			t.Errorf("docs/alerts.md has a section %s, which is no alert", section[1])
		}
	}

	if len(seen) < 40 {
		t.Errorf("only %d alerts", len(seen))
	}
}

// withoutNumber are the alerts whose summaries have no number, and why.
func withoutNumber() map[string]string {
	const state = "it is a state, and no series counts anything about it"

	return map[string]string{
		"MigExporterAbsent": "there is nothing to count, and no target to name", "MigCollectorFailing": state,
		"MigHolderUnconfirmed": state, "MigWitnessMissing": state,
		"MigControlDegraded": state, "MigControlStuck": state, "MigControlReadOnly": state, "MigControlOff": state,
		"MigConfigNotApplied": state,
		"GpuRowRemapFailed":   state, "GpuRowRemapPending": state, "GpuRecoveryActionRequired": state, "MigModePending": state,
		"MigGpuInstanceDown": state, "GpuXidsNotReceived": state, "GpuReleased": state,
	}
}

// TestSummariesNameTheirSubject: the target, the GPU and the GPU instance if the alert has them,
// who holds that, and a number: the value, that of a query, or that of the XID.
func TestSummariesNameTheirSubject(t *testing.T) {
	exceptions := withoutNumber()
	number := regexp.MustCompile(`\{\{ \$value( \||\}\}| \}\})|\. \| first \| value|\{\{ \$labels\.xid \}\}`)

	for _, a := range shippedAlerts(t) {
		summary := a.Annotations["summary"]
		if !strings.Contains(summary, "{{ $labels.instance }}") && a.Alert != "MigExporterAbsent" {
			t.Errorf("%s names no target: %s", a.Alert, summary)
		}

		ofGPU := strings.HasPrefix(a.Alert, "Gpu") || regexp.MustCompile(`\b(gpu, uuid|mig:gpu_target)\b`).MatchString(a.Expr)
		if ofGPU && a.Alert != "GpuMissing" && !strings.Contains(summary, "GPU {{ $labels.gpu }}") {
			t.Errorf("%s does not name the GPU: %s", a.Alert, summary)
		}

		if regexp.MustCompile(`\b(mig:gpu_instance|mig_profile)`).MatchString(a.Expr) &&
			!strings.Contains(summary, "$labels.gpu_instance") {
			t.Errorf("%s does not name the GPU instance: %s", a.Alert, summary)
		}

		if named := strings.Contains(summary, "$labels.pod") || strings.Contains(summary, "mig:holder:info"); ofGPU &&
			!named && noHolder()[a.Alert] == "" {
			t.Errorf("%s does not name who holds the device: %s", a.Alert, summary)
		}

		if excepted, has := exceptions[a.Alert] != "", number.MatchString(summary); excepted == has {
			t.Errorf("%s: the summary has a number: %v, is excepted: %v: %s", a.Alert, has, excepted, summary)
		}
	}
}

// noHolder are the alerts about GPUs that name no holder, and why.
func noHolder() map[string]string {
	return map[string]string{
		"GpuMissing":         "its index is not known any more, and its holders end with it",
		"MigEventsLost":      "it is about what the exporter may not know; no pod is struck",
		"GpuXidsNotReceived": "it is about what the exporter may not know; no pod is struck",
		"GpuReleased":        "nothing is read of it, its holders neither",
		"MigSlicesStranded":  "it is about the slices that cannot be held",
	}
}

// withoutStory are the alerts that fire on samples alone, and why.
func withoutStory() map[string]string {
	return map[string]string{
		"MigPollSlow":             "a poll of the simulated node is slow in real time only",
		"MigReadsStretched":       "calls of the simulated node cost real time only",
		"MigCollectorFailing":     "the simulated node has no value that cannot be served",
		"MigSliceRequestsWaiting": "the metrics of servers of the simulated node have no port to scrape",
		"MigWitnessMissing":       "the exporter of the simulated node is in a pod, its own witness",
	}
}

// TestEveryAlertHasAStory: a test on simulated nodes expects each to fire and to clear.
func TestEveryAlertHasAStory(t *testing.T) {
	tested := ""

	for _, file := range findFiles(t, "*_test.go") {
		for _, call := range regexp.MustCompile(`\.expectStory\(([^)]*)\)`).FindAllStringSubmatch(readFile(t, file), -1) {
			tested += call[1]
		}
	}

	for _, a := range shippedAlerts(t) {
		if has, excepted := strings.Contains(tested, `"`+a.Alert+`"`), withoutStory()[a.Alert] != ""; has == excepted {
			t.Errorf("%s: a test expects it: %v, it is excepted: %v", a.Alert, has, excepted)
		}
	}
}

// TestXIDsHaveOneAlertEach: no XID falls through, none fires twice.
func TestXIDsHaveOneAlertEach(t *testing.T) {
	of := map[string]string{}

	for _, a := range shippedAlerts(t) {
		for _, m := range regexp.MustCompile(`mig:xid:last_timestamp_seconds\{xid([=!])~"([^"]+)"\}`).
			FindAllStringSubmatch(a.Expr, -1) {
			list := regexp.MustCompile("^(?:" + m[2] + ")$")

			for xid := range 300 {
				text := strconv.Itoa(xid)
				if list.MatchString(text) != (m[1] == "=") {
					continue
				}

				if of[text] != "" {
					t.Errorf("XID %d is in %s and %s", xid, of[text], a.Alert)
				}

				of[text] = a.Alert
			}
		}
	}

	if len(of) != 300 {
		t.Errorf("%d of 300 XIDs have an alert", len(of))
	}

	for xid, want := range map[string]string{
		"13": "GpuXidApplication", "31": "GpuXidApplication", "43": "GpuXidApplication", "48": "GpuXidHardware",
		"63": "GpuXidMemory", "64": "GpuXidHardware",
		"74": "GpuXidHardware", "79": "GpuXidNode", "94": "GpuXidMemory", "95": "GpuXidHardware", "119": "GpuXidHardware",
		"154": "GpuXidOther",
	} {
		if of[xid] != want {
			t.Errorf("XID %s is in %s, want %s", xid, of[xid], want)
		}
	}
}
