package truth

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// maxColumns is how wide prose of the documentation is at most; internal/archtest holds it.
const maxColumns = 100

// fillPage breaks the paragraphs of a page anew. Headings and rows of tables stay as they are;
// reports have neither lists nor code.
func fillPage(page string) string {
	var lines []string
	var words []string

	for line := range strings.Lines(page + "\n\n") {
		line = strings.TrimSuffix(line, "\n")
		if line != "" && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "#") {
			words = append(words, strings.Fields(line)...)
			continue
		}

		if len(words) > 0 {
			lines = append(lines, fill(words)...)
			words = nil
		}

		lines = append(lines, line)
	}

	return strings.TrimRight(strings.Join(lines, "\n"), "\n") + "\n"
}

// fill breaks a paragraph into lines. A percent sign does not begin one, and neither does a number
// at the end of a sentence, which Markdown could take for the first of a list.
func fill(words []string) []string {
	var lines []string

	belongs := regexp.MustCompile(`^(%|[0-9]+[.)])[.,:;]?$`)
	line := ""

	for i, word := range words {
		if i > 0 && belongs.MatchString(word) {
			continue // it came with the word before
		}

		for _, next := range words[i+1:] {
			if !belongs.MatchString(next) {
				break
			}

			word += " " + next
		}

		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > maxColumns {
			lines = append(lines, line)
			line = word

			continue
		}

		line = strings.TrimPrefix(line+" "+word, " ")
	}

	return append(lines, line)
}

// TestThePageIsFilled: the committed page has the paragraphs that make evaluate would write.
func TestThePageIsFilled(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "rightsizing-evaluation.md"))
	if err != nil {
		t.Fatal(err)
	}

	want := fillPage(string(page))
	if string(page) == want {
		return
	}

	got := strings.Split(string(page), "\n")
	for i, line := range strings.Split(want, "\n") {
		if i >= len(got) || got[i] != line {
			t.Fatalf("line %d of the page should be:\n%s", i+1, line)
		}
	}

	t.Fatal("the page has more lines than it should")
}

func TestFillPage(t *testing.T) {
	word := strings.Repeat("a", 49)
	for _, c := range []struct{ about, page, want string }{
		{"short lines", "# A\n\nof b\nand c\n\n| d |\n|---|\n| e |\n\nf\n", "# A\n\nof b and c\n\n| d |\n|---|\n| e |\n\nf\n"},
		{"99 columns", word + "\n" + word + "\n", word + " " + word + "\n"},
		{"101 columns", word + " " + word + " b\n", word + " " + word + "\nb\n"},
		{"a percent sign", word + " " + word[:48] + " 5 %, c\n", word + " " + word[:48] + "\n5 %, c\n"},
		{"a number at the end", word + " " + word + " is 1. c\n", word + " " + word + "\nis 1. c\n"},
		{"a number after the last column", word + " " + word[:47] + " for 1. c\n", word + " " + word[:47] + "\nfor 1. c\n"},
		{"a row of a wide table", "| " + word + word + word + " |\n", "| " + word + word + word + " |\n"},
	} {
		if got := fillPage(c.page); got != c.want {
			t.Errorf("%s: got %q, want %q", c.about, got, c.want)
		}
	}
}
