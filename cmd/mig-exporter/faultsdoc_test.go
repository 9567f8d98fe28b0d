package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// faultsPage is docs/faults.md.
func faultsPage(t *testing.T) string {
	t.Helper()

	page, err := os.ReadFile("../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}

	return string(page)
}

// loggedFaults are the log lines that the page's table names.
func loggedFaults(t *testing.T) []string {
	t.Helper()
	var lines []string

	for row := range strings.Lines(faultsPage(t)) {
		columns := strings.Split(row, "|")
		if len(columns) != 6 { // four, and what is outside
			continue
		}

		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(columns[3], -1) {
			if !strings.HasPrefix(m[1], "--") {
				lines = append(lines, m[1])
			}
		}
	}

	return lines
}

// TestFaultsPageNamesWhatThereIs: families that are served, and every fault of the chaos.
func TestFaultsPageNamesWhatThereIs(t *testing.T) {
	page := faultsPage(t)

	metrics, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}

	for _, name := range regexp.MustCompile(`\b(?:nvidia|mig_exporter)_[a-z_]+`).FindAllString(page, -1) {
		if !strings.Contains(string(metrics), name) {
			t.Errorf("%s is not in docs/metrics.md", name)
		}
	}

	chaos, err := os.ReadFile("../../testdata/scenarios/chaos.yaml")
	if err != nil {
		t.Fatal(err)
	}

	for _, m := range regexp.MustCompile(`kind: ([a-z-]+)`).FindAllStringSubmatch(string(chaos), -1) {
		if !strings.Contains(page, "`"+m[1]+"`") {
			t.Errorf("the fault %s is not on the page", m[1])
		}
	}
}
