package promtest

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documented returns the PromQL of docs/metrics.md.
func documented(t *testing.T) []string {
	t.Helper()
	return documentedIn(t, "../../docs/metrics.md")
}

// documentedIn returns the PromQL of a page, each expression on one line.
func documentedIn(t *testing.T, path string) []string {
	t.Helper()

	var all []string
	for _, block := range regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(readFile(t, path), -1) {
		all = append(all, strings.Join(strings.Fields(block[1]), " "))
	}

	return all
}

// TestDocumentedJoinsAreThoseThatAreTested: one for each level, word for word.
func TestDocumentedJoinsAreThoseThatAreTested(t *testing.T) {
	for _, l := range levels() {
		if !slices.ContainsFunc(documented(t), func(expr string) bool {
			family, _, _ := strings.Cut(expr, " ")
			return strings.HasPrefix(family, l.prefix) && expr == l.join(family)
		}) {
			t.Errorf("docs/metrics.md has no %s", l.join(l.prefix+"..."))
		}
	}
}

// TestDocumentedQueriesAreTested: every PromQL block of every page, and of the README, is an alert
// that is run on the chaos, or a query whose answer is computed without PromQL.
func TestDocumentedQueriesAreTested(t *testing.T) {
	alerts := documentedAlerts(t)
	computed := computedQueries()
	found := 0

	for _, page := range documentPages(t) {
		for _, expr := range documentedIn(t, page) {
			found++

			if slices.Contains(computed, expr) || slices.Contains(alerts, expr) {
				continue
			}

			for _, line := range documentedLines(t, page, expr) { // a block with an alert in each line
				if !slices.Contains(alerts, line) && !slices.Contains(computed, line) {
					t.Errorf("%s: nothing computes the answer of %s", page, line)
				}
			}
		}
	}

	if found < 10 {
		t.Errorf("only %d blocks", found)
	}
}

// documentedLines returns the lines of the block that reads expr on one line.
func documentedLines(t *testing.T, path, expr string) []string {
	t.Helper()
	var lines []string

	for _, block := range regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(readFile(t, path), -1) {
		if strings.Join(strings.Fields(block[1]), " ") == expr {
			for line := range strings.Lines(block[1]) {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
	}

	return lines
}

// computedQueries are those that tests compare with a computed answer: checkJoins, checkFree,
// checkRoom, checkPower and checkPods on every golden, queries_test.go and handover_test.go.
func computedQueries() []string {
	all := []string{
		freeGPUs, roomByProfile, allEstimates, teamJoin, dcgmTeamJoin, mostMemory, podMemory, podWatts, podEnergy, slicesByCopies,
		slicesByMemory, powerOfBoards,
	}
	for i, family := range []string{"nvidia_gpu_power_watts", "nvidia_mig_gpu_instance_memory_used_bytes",
		"nvidia_mig_compute_instance_sms"} {
		all = append(all, levels()[i].join(family))
	}

	return all
}
