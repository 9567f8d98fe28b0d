package archtest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	fence     = regexp.MustCompile("(?ms)^```.*?^```")
	inlineURL = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ +(.*?) *$`)
	slugLess  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchors returns the names by which GitHub links to the headings of a page.
func anchors(page string) map[string]bool {
	found := map[string]bool{}

	for _, match := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		slug := strings.ReplaceAll(slugLess.ReplaceAllString(strings.ToLower(match[1]), ""), " ", "-")

		name := slug
		for n := 1; found[name]; n++ {
			name = slug + "-" + strconv.Itoa(n)
		}

		found[name] = true
	}

	return found
}

// brokenLinks lists the relative links of a page whose file does not exist, or whose page has no
// such heading.
func brokenLinks(path string) ([]string, error) {
	page, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}

	var broken []string

	for _, match := range inlineURL.FindAllStringSubmatch(fence.ReplaceAllString(string(page), ""), -1) {
		link := match[1]
		if strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
			continue
		}

		file, anchor, _ := strings.Cut(link, "#")

		target := path
		if file != "" {
			target = filepath.Join(filepath.Dir(path), filepath.FromSlash(file))
		}

		if _, err := os.Stat(target); err != nil {
			broken = append(broken, fmt.Sprintf("%s: %s does not exist", path, link))
			continue
		}

		if anchor == "" {
			continue
		}

		text, err := os.ReadFile(target)
		if err != nil || !anchors(string(text))[anchor] {
			broken = append(broken, fmt.Sprintf("%s: %s has no such heading", path, link))
		}
	}

	return broken, nil
}

// TestLinksOfTheDocuments follows every relative link of the documents to its file, and to its
// heading.
func TestLinksOfTheDocuments(t *testing.T) {
	root := filepath.Join("..", "..")
	var pages []string

	for _, pattern := range []string{"*.md", filepath.Join("docs", "*.md")} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}

		pages = append(pages, found...)
	}

	if len(pages) < 10 {
		t.Fatalf("only %d pages found below %s", len(pages), root)
	}

	for _, page := range pages {
		broken, err := brokenLinks(page)
		if err != nil {
			t.Fatal(err)
		}

		for _, link := range broken {
			t.Error(link)
		}
	}
}

func TestBrokenLinks(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"other.md": "# A page: `with`, what's *this*\n## Twice\n## Twice\n```\n# no heading\n```\n",
		"page.md": "# Here\n[a](other.md) [b](other.md#a-page-with-whats-this) [c](#here) [d](other.md#twice-1) " +
			"[e](https://example.org/none) [f](.)\n```\n[g](code.md)\n```\n[h](gone.go) [i](other.md#twice-2) [j](#there) " +
			"[k](other.md#no-heading)\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	got, err := brokenLinks(filepath.Join(dir, "page.md"))
	if err != nil {
		t.Fatal(err)
	}

	want := []string{"gone.go does not exist", "other.md#twice-2 has no", "#there has no", "other.md#no-heading has no"}
	if len(got) != len(want) {
		t.Fatalf("found %q, want %q", got, want)
	}

	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("found %q, want %q", got[i], want[i])
		}
	}
}
