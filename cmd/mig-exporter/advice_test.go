package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// adviceReasons returns the reasons that the advisor has, from its source.
func adviceReasons(t *testing.T) []advise.Reason {
	t.Helper()

	var list []advise.Reason

	for _, file := range filesOf(t, "../../internal/advise/*.go") {
		for _, m := range regexp.MustCompile(`Reason = "([a-z-]+)"`).FindAllStringSubmatch(file, -1) {
			list = append(list, advise.Reason(m[1]))
		}
	}

	if len(list) < 20 {
		t.Fatalf("only %d reasons: %q", len(list), list)
	}

	return list
}

func filesOf(t *testing.T, patterns ...string) []string {
	t.Helper()

	var list []string

	for _, pattern := range patterns {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(paths), err)
		}

		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}

			list = append(list, string(data))
		}
	}

	return list
}

// TestRulesReadServedReasons: rules, their tests and dashboards name no reason that no exporter
// serves, and one rule has all that say that something is not known.
func TestRulesReadServedReasons(t *testing.T) {
	var unknown []string
	unserved := map[string]bool{}

	for _, reason := range adviceReasons(t) {
		switch {
		case rejection(&advise.Recommendation{Reason: reason}) == "":
			unserved[string(reason)] = true
		case reason.IsUnknown(), reason == advise.ReasonMediaNotChecked:
			unknown = append(unknown, string(reason))
		}
	}

	slices.Sort(unknown)

	files := filesOf(t, "../../deploy/prometheus/*.yaml", "../../deploy/prometheus/tests/*.yaml", "../../dashboards/*.json")
	read := regexp.MustCompile(`rightsizing_rejected\{[^}]*reason[!=]?[~=]\\?"([^"\\]+)`)
	hasUnknown := false

	for _, file := range files {
		for _, m := range read.FindAllStringSubmatch(file, -1) {
			hasUnknown = hasUnknown || m[1] == strings.Join(unknown, "|")

			for reason := range strings.SplitSeq(m[1], "|") {
				if unserved[reason] {
					t.Errorf("%s: no exporter serves the reason %s", m[0], reason)
				}
			}
		}
	}

	if !hasUnknown {
		t.Errorf("no rule reads the reasons %q", unknown)
	}
}
