package archtest

import (
	"io/fs"
	"os"
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

// TestPackagesAreDescribed holds the list of packages in ARCHITECTURE.md against the folders: each package has a line, or one of
// its parents has for it (contract suites and generators), and no line is of a package that is gone. CONTRIBUTING.md describes some
// of them, all of which exist.
func TestPackagesAreDescribed(t *testing.T) {
	root := filepath.Join("..", "..")
	dirs := packageDirs(t, root)
	listed := map[string]bool{}
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
			body = strings.Split(body, "```")[1] // the list of packages is the first block
		}
		for _, match := range line.FindAllStringSubmatch(body, -1) {
			if page == "ARCHITECTURE.md" {
				listed[match[1]] = true
			}
			if info, err := os.Stat(filepath.Join(root, match[1])); err != nil || !info.IsDir() {
				t.Errorf("%s describes %s, which is no folder", page, match[1])
			}
		}
	}
	if len(listed) < 40 {
		t.Errorf("ARCHITECTURE.md lists %d packages: the list was not found", len(listed))
	}
	for dir := range dirs {
		if !listed[dir] && !(listed[filepath.ToSlash(filepath.Dir(dir))] && strings.HasPrefix(dir, "cmd/")) {
			t.Errorf("%s is not in ARCHITECTURE.md", dir)
		}
	}
}
