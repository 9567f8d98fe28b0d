package promtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// documented returns the PromQL of docs/metrics.md.
func documented(t *testing.T) []string {
	t.Helper()
	return documentedIn(t, "../../docs/metrics.md")
}

// documentedIn returns the PromQL of a page, each expression on one line.
func documentedIn(t *testing.T, path string) []string {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, block := range regexp.MustCompile("(?s)```promql\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
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

// TestDocumentedQueriesAnswer runs every expression of the page on what the program serves, in the format that carries
// native histograms, scraped twice.
func TestDocumentedQueriesAnswer(t *testing.T) {
	body, err := os.ReadFile(filepath.Join(goldens, "dgx-a100-mixed.pb"))
	if err != nil {
		t.Fatalf("%v; write it with: make golden", err)
	}
	e := Open(t)
	e.Load(t, scraped(), Protobuf, body)
	e.Load(t, scraped().Add(15*time.Second), Protobuf, body)
	for _, expr := range documented(t) {
		if v, err := e.Eval(expr); err != nil || len(v) == 0 {
			t.Errorf("%s: %v %v, want results", expr, v, err)
		}
	}
}
