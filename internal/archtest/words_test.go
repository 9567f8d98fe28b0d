package archtest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// forbiddenWords are words and phrases that stand for others in this project, each with the better one. They are few,
// and none has another use here.
func forbiddenWords() []forbiddenWord {
	word := func(pattern, better string) forbiddenWord { return forbiddenWord{regexp.MustCompile(pattern), better} }
	return []forbiddenWord{
		word(`\btells whether\b`, "reports whether"),
		word(`\b[Nn]obody\b`, "the actor: no process, no client, no caller"),
		word(`\b[Ss]omebody\b`, "the actor: another client, an operator"),
		word(`\b[Ww]hoever\b`, "the actor: a caller that"),
		word(`\b[Rr]e-cuts?\b|\bcut anew\b`, "repartition, layout change"),
		word(`\b[Rr]oll-back\b`, "rollback (noun), roll back (verb)"),
		word(`\bboards?\b`, "GPU"),
	}
}

type forbiddenWord struct {
	pattern *regexp.Regexp
	better  string
}

// wordViolations returns the forbidden words of a file. Of Go only comments are read: a string can be NVIDIA's or a
// test's.
func wordViolations(name, text string) []string {
	var found []string
	for number, line := range strings.Split(text, "\n") {
		if strings.HasSuffix(name, ".go") {
			at := commentStart(line)
			if at < 0 {
				continue
			}
			line = line[at:]
		}
		for _, w := range forbiddenWords() {
			if got := w.pattern.FindString(line); got != "" {
				found = append(found, fmt.Sprintf("%s:%d: %q: say %s", name, number+1, got, w.better))
			}
		}
	}
	return found
}

// commentStart returns where a line's comment begins, or -1. A URL in a string is no comment.
func commentStart(line string) int {
	if strings.HasPrefix(strings.TrimSpace(line), "//") {
		return strings.Index(line, "//")
	}
	return strings.Index(line, " // ")
}

// hasWords reports whether a file is of those that the glossary holds for. The history of changes keeps its words.
func hasWords(path string) bool {
	return slices.Contains([]string{".go", ".md", ".tmpl"}, filepath.Ext(path)) && filepath.Base(path) != "CHANGELOG.md" &&
		filepath.Base(path) != "words_test.go"
}

func TestWords(t *testing.T) {
	root, files := filepath.Join("..", ".."), 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && strings.HasPrefix(d.Name(), "."),
			path == filepath.Join(root, "bin"), path == filepath.Join(root, "dist"): // what was built
			return filepath.SkipDir
		case d.IsDir() || !hasWords(path):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		name, _ := filepath.Rel(root, path)
		for _, violation := range wordViolations(name, string(text)) {
			t.Error(violation)
		}
		return nil
	})
	if err != nil || files < 500 {
		t.Fatalf("%d files read below %s: %v", files, root, err)
	}
}

func TestWordViolations(t *testing.T) {
	for line, want := range map[string]int{
		"// It tells whether nobody re-cuts a board.": 4,
		"x := \"nobody\" // a user id":                0,
		"x := \"nobody\" // that nobody has":          1,
		"// dashboards are keyboards":                 0,
		"url := \"http://nobody\"":                    0,
	} {
		if got := wordViolations("a.go", line); len(got) != want {
			t.Errorf("%s: got %q, want %d", line, got, want)
		}
	}
	if got := wordViolations("a.md", "The roll-back of\nsomebody"); len(got) != 2 ||
		!strings.HasPrefix(got[1], `a.md:2: "somebody"`) {
		t.Errorf("got %q", got)
	}
}
