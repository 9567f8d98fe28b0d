package archtest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxProseColumns is how wide a line of prose in a document may be.
const maxProseColumns = 100

// unbreakable matches a line that has nothing but one link, picture, code span or word: no line
// break would make it narrower.
var unbreakable = regexp.MustCompile("^[ >]*(?:[-*+] |[0-9]+[.] )? *" +
	"[(*]*(?:!?\\[[^\\]]*\\]\\([^)]*\\)|`[^`]+`|\\S+)[.,:;)*]*$")

// wideLines lists the lines of prose that are too wide. Tables and what is fenced are no prose: a
// row of a table cannot be broken, and output is shown as it is.
func wideLines(name, page string) []string {
	var wide []string

	fenced := false

	for i, line := range strings.Split(page, "\n") {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "```") {
			fenced = !fenced
			continue
		}

		if fenced || strings.HasPrefix(trimmed, "|") || unbreakable.MatchString(line) {
			continue
		}

		if n := utf8.RuneCountInString(line); n > maxProseColumns {
			wide = append(wide, fmt.Sprintf("%s:%d: %d columns: prose has at most %d",
				name, i+1, n, maxProseColumns))
		}
	}

	return wide
}

// TestProseIsNarrow: the documents can be read in a terminal and reviewed line by line. What is in
// testdata is what programs print, or a template of a document.
func TestProseIsNarrow(t *testing.T) {
	root := filepath.Join("..", "..")
	pages := 0

	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && isLeftOut(root, path, d.Name()),
			path == filepath.Join(root, "bin"), path == filepath.Join(root, "dist"): // what was built
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}

		page, err := os.ReadFile(path)
		if err != nil {
			return err
		}

		pages++
		name, _ := filepath.Rel(root, path)

		for _, line := range wideLines(name, string(page)) {
			t.Error(line)
		}

		return nil
	})
	if err != nil || pages < 20 {
		t.Fatalf("%d documents read below %s: %v", pages, root, err)
	}
}

func TestWideLines(t *testing.T) {
	words := func(n int) string { return strings.Repeat("words ", n/6) + strings.Repeat("–", n%6) }
	url := "https://example.org/" + strings.Repeat("a", 99)

	for _, c := range []struct {
		about, page string
		line        int // of the only one that is too wide, 0 for none
	}{
		{"100 columns", words(100), 0},
		{"101 columns", "# Title\n" + words(101), 2},
		{"columns, not bytes", strings.Repeat("– ", 50), 0},
		{"an item of a list", "- a\n- " + words(100), 2},
		{"a table", "| " + words(120) + " |\n  | " + words(120) + " |", 0},
		{"what is fenced", "```\n" + words(120) + "\n```\n", 0},
		{"what is fenced in a list", "- a\n  ```\n" + words(120) + "\n  ```\n" + words(120), 5},
		{"a bare address", "<" + url + ">,", 0},
		{"a link", "1. ([of several words](" + url + ")).", 0},
		{"a picture", "![" + words(120) + "](a.png)", 0},
		{"a code span", "   `" + words(120) + "`;", 0},
		{"a link with words beside it", "[a link](" + url + ") and more", 1},
		{"two code spans", "`" + words(60) + "` `" + words(60) + "`", 1},
	} {
		found := wideLines("a.md", c.page)

		switch {
		case c.line == 0 && len(found) > 0:
			t.Errorf("%s: %q, want nothing", c.about, found)
		case c.line > 0 && (len(found) != 1 || !strings.HasPrefix(found[0], fmt.Sprintf("a.md:%d: ", c.line))):
			t.Errorf("%s: %q, want line %d", c.about, found, c.line)
		}
	}
}
