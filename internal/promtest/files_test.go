package promtest

import (
	"os"
	"path/filepath"
	"testing"
)

// readFile returns the text of a file.
func readFile(t testing.TB, path string) string {
	t.Helper()

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}

// findFiles returns the paths that match a pattern, of which there must be some.
func findFiles(t testing.TB, pattern string) []string {
	t.Helper()

	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no files %s: %v", pattern, err)
	}

	return paths
}

// documentPages returns the paths of the README and of every page.
func documentPages(t testing.TB) []string {
	t.Helper()
	return append(findFiles(t, "../../docs/*.md"), "../../README.md")
}
