package archtest

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// packageDirs returns the folders with Go files, relative to the module's root and with slashes.
func packageDirs(t *testing.T, root string) map[string]bool {
	t.Helper()
	dirs := map[string]bool{}

	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}

		if filepath.Ext(path) == ".go" {
			dir, err := filepath.Rel(root, filepath.Dir(path))
			dirs[filepath.ToSlash(dir)] = true

			return err
		}

		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	return dirs
}

// TestPackagesAreDescribed compares the packages that ARCHITECTURE.md and CONTRIBUTING.md describe
// with the folders. ARCHITECTURE.md lists each package, except those below a command;
// CONTRIBUTING.md describes each or the one above it. Neither describes one that is gone.
func TestPackagesAreDescribed(t *testing.T) {
	root := filepath.Join("..", "..")
	dirs := packageDirs(t, root)
	described := map[string]map[string]bool{"ARCHITECTURE.md": {}, "CONTRIBUTING.md": {}}

	for page, line := range map[string]*regexp.Regexp{
		"ARCHITECTURE.md": regexp.MustCompile(`(?m)^([a-z][a-z/-]*[a-z]) +\S`),
		"CONTRIBUTING.md": regexp.MustCompile("(?m)\\*\\*`([a-z/-]+)`\\*\\*"),
	} {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}

		body := string(text)
		if page == "ARCHITECTURE.md" {
			_, body, _ = strings.Cut(body, "\n## Packages\n")
			body = strings.Split(body, "```")[1] // the list of packages is the section's first block
		}

		for _, match := range line.FindAllStringSubmatch(body, -1) {
			described[page][match[1]] = true
			if info, err := os.Stat(filepath.Join(root, match[1])); err != nil || !info.IsDir() {
				t.Errorf("%s describes %s, which is no folder", page, match[1])
			}
		}
	}

	for dir := range dirs {
		above := path.Dir(dir)
		if listed := described["ARCHITECTURE.md"]; !listed[dir] && !(listed[above] && strings.HasPrefix(dir, "cmd/")) {
			t.Errorf("%s is not in ARCHITECTURE.md", dir)
		}

		if listed := described["CONTRIBUTING.md"]; !listed[dir] && !listed[above] {
			t.Errorf("neither %s nor %s is in CONTRIBUTING.md", dir, above)
		}
	}
}
