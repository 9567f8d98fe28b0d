package promtest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
)

// xidJoin is the documented way from an XID of a GPU instance to the pod that it struck.
const xidJoin = `(time() - nvidia_mig_gpu_instance_xid_last_timestamp_seconds < 60)` +
	` * on (uuid, gpu_instance) group_left (namespace, pod, container)` +
	` (nvidia_mig_gpu_instance_pod_info{sharing="exclusive",confirmed="true"} offset 1m)`

// neverClears is what the documents warn of.
const neverClears = `DCGM_FI_DEV_XID_ERRORS > 0`

// isAlert reports whether an expression has results only while something is wrong: a comparison
// filters it.
func isAlert(expr parser.Expr) bool {
	switch e := expr.(type) {
	case *parser.ParenExpr:
		return isAlert(e.Expr)
	case *parser.BinaryExpr:
		switch {
		case e.Op.IsComparisonOperator():
			return !e.ReturnBool
		case e.Op == parser.LOR:
			return isAlert(e.LHS) && isAlert(e.RHS)
		default:
			return isAlert(e.LHS)
		}
	}

	return false
}

// alertsIn returns the alerts that a page prints: in blocks, as one expression or one for each
// line, in rules and in running text.
func alertsIn(page string) []string {
	p := parser.NewParser(parser.Options{})
	var texts []string

	blocks := regexp.MustCompile("(?s)```[a-z]*\n(.*?)```")
	for _, block := range blocks.FindAllStringSubmatch(page, -1) {
		if _, err := p.ParseExpr(block[1]); err == nil {
			texts = append(texts, block[1])
			continue
		}

		for line := range strings.Lines(block[1]) {
			_, rule, _ := strings.Cut(line, "expr:")
			texts = append(texts, line, strings.Trim(strings.TrimSpace(rule), `'"`))
		}
	}

	for _, span := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(blocks.ReplaceAllString(page, ""), -1) {
		texts = append(texts, span[1])
	}

	ours := regexp.MustCompile(`\b(nvidia_|mig_|DCGM_)`)
	var alerts []string

	for _, text := range texts {
		text = strings.Join(strings.Fields(text), " ")
		if !ours.MatchString(text) {
			continue
		}

		if expr, err := p.ParseExpr(text); err == nil && isAlert(expr) && !slices.Contains(alerts, text) {
			alerts = append(alerts, text)
		}
	}

	return alerts
}

// documentedAlerts are those of the README and of every page.
func documentedAlerts(t *testing.T) []string {
	t.Helper()

	var alerts []string
	for _, page := range documentPages(t) {
		alerts = append(alerts, alertsIn(readFile(t, page))...)
	}

	slices.Sort(alerts)

	return slices.Compact(alerts)
}

func TestAlertsAreFound(t *testing.T) {
	page := "Take `nvidia_gpu_up == 0`, not `x == 0` or `nvidia_gpu_up == bool 0`:\n" +
		"```promql\nincrease(nvidia_gpu_xids_total[5m]) > 0\nnvidia_gpu_mig_enabled\n```\n" +
		"```promql\n(time() - mig_exporter_a < 60)\n  * on (uuid) b\n```\n" +
		"```yaml\n- expr: 'DCGM_EXP_XID_ERRORS_COUNT > 0'\n```\n"

	want := []string{
		"increase(nvidia_gpu_xids_total[5m]) > 0", "(time() - mig_exporter_a < 60) * on (uuid) b", "DCGM_EXP_XID_ERRORS_COUNT > 0",
		"nvidia_gpu_up == 0",
	}
	if got := alertsIn(page); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// chaos is the shipped scenario without its end, with a successor for the pod that ends.
func chaos(t *testing.T) string {
	t.Helper()

	changed := strings.NewReplacer(
		"  - {at: 15m, kind: version-mismatch}\n", "",
		"faults:\n", "  - {namespace: batch, name: short-1, owner: Job/short, container: main, resource: nvidia.com/gpu, device: \"7\", workload: serve, at: 9m7s}\nfaults:\n",
	).Replace(readFile(t, "../../testdata/scenarios/chaos.yaml"))
	if strings.Contains(changed, "version-mismatch") || !strings.Contains(changed, "short-1") {
		t.Fatal("chaos.yaml is not what this test expects")
	}

	return changed
}

const counters = `DCGM_FI_DEV_XID_ERRORS,gauge,last XID
DCGM_EXP_XID_ERRORS_COUNT,gauge,XIDs of five minutes
DCGM_EXP_XID_ERRORS_TOTAL,counter,XIDs
`

// TestDocumentedAlertsFireAndClear runs every alert that is printed anywhere on the chaos.
func TestDocumentedAlertsFireAndClear(t *testing.T) {
	t.Parallel()

	alerts := documentedAlerts(t)
	if len(alerts) < 6 {
		t.Fatalf("only %d alerts in the documents: %q", len(alerts), alerts)
	}

	alerts = slices.DeleteFunc(alerts, func(alert string) bool { // TestXIDThatEndsItsPod and TestControlAlertsFireAndClear run these
		return alert == xidJoin || isControlAlert(alert)
	})

	csv := filepath.Join(t.TempDir(), "counters.csv")
	if err := os.WriteFile(csv, []byte(counters), 0o600); err != nil {
		t.Fatal(err)
	}

	n := startNode(t, chaos(t), "--metrics.names=both", "--dcgm.counters="+csv)
	n.run(50*time.Second, func(at time.Time) {
		for _, alert := range alerts {
			if v, err := n.EvalAt(alert, at); err != nil || len(v) != 0 {
				t.Errorf("before the chaos: %s: %v %v", alert, v, err)
			}
		}
	})
	fired := map[string]time.Duration{}
	firing := map[string]bool{}
	n.run(18*time.Minute, func(at time.Time) {
		for _, alert := range alerts {
			v, err := n.EvalAt(alert, at)
			if err != nil {
				t.Fatalf("after %s: %v", n.elapsed, err)
			}

			if firing[alert] = len(v) > 0; firing[alert] && fired[alert] == 0 {
				fired[alert] = n.elapsed
			}
		}
	})

	for _, alert := range alerts {
		if fired[alert] == 0 {
			t.Errorf("%s never fires", alert)
		}

		if firing[alert] != (alert == neverClears) {
			t.Errorf("%s: firing at the end: %v", alert, firing[alert])
		}

		t.Logf("%-8s %s", fired[alert], alert)
	}
}

func isControlAlert(alert string) bool { return strings.Contains(alert, "mig_control_") }

// TestControlAlertsFireAndClear runs the alerts of partition control on its state as the program serves it: 1 for the
// state that it is in, 0 for the others. While it is "unsettled" it is idle, with an operation that is unsettled.
func TestControlAlertsFireAndClear(t *testing.T) {
	t.Parallel()

	alerts := slices.DeleteFunc(documentedAlerts(t), func(alert string) bool { return !isControlAlert(alert) })
	if len(alerts) < 4 {
		t.Errorf("only %d alerts in the documents: %q", len(alerts), alerts)
	}

	e := NewPrometheus(t)
	at := scraped()
	states := []string{"idle", "running", "degraded", "stuck", "read-only", "off"}
	fired := map[string]int{}

	for _, in := range []string{"idle", "running", "degraded", "running", "stuck", "idle", "read-only", "idle", "off", "idle",
		"unsettled", "idle"} {
		text := fmt.Sprintf("# TYPE mig_control_unsettled_operations gauge\nmig_control_unsettled_operations %d\n"+
			"# TYPE mig_control_state gauge\n", strings.Count(in, "unsettled"))

		for _, state := range states {
			value := "0"
			if state == in || state == "idle" && in == "unsettled" {
				value = "1"
			}

			text += `mig_control_state{state="` + state + `"} ` + value + "\n"
		}

		at = at.Add(scrapeInterval)
		e.AddScrape(t, at, Text, []byte(text))

		for _, alert := range alerts {
			want := strings.Contains(alert, `"`+in+`"`) || strings.Contains(alert, "=~") && !slices.Contains(
				[]string{"idle", "running", "unsettled"}, in)
			if strings.Contains(alert, "mig_control_unsettled_operations") {
				want = in == "unsettled"
			}

			got := len(e.Query(t, alert)) > 0
			if got != want {
				t.Errorf("in state %s: %s: fires %v, want %v", in, alert, got, want)
			}

			if got {
				fired[alert]++
			}
		}
	}

	for _, alert := range alerts {
		if fired[alert] == 0 {
			t.Errorf("%s never fires", alert)
		}
	}
}
