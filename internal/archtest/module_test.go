package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestModuleKeepsTheRules reads every Go file of the module and of the modules nested in it.
func TestModuleKeepsTheRules(t *testing.T) {
	root := filepath.Join("..", "..")
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		t.Fatalf("not at the module's root: %v", err)
	}

	var found []string
	var imports []goImport
	var files []source

	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		if entry.IsDir() {
			if name != root && isLeftOut(root, name, entry.Name()) {
				return filepath.SkipDir
			}

			return nil
		}

		if !strings.HasSuffix(name, ".go") {
			return nil
		}

		s, err := readSource(root, name)
		if err != nil {
			found = append(found, err.Error()) // it names the file; the others are checked all the same
			return nil
		}

		files = append(files, s)

		found = append(found, s.violations()...)

		if about := s.longFile(); about != "" {
			t.Log(about)
		}

		if !s.isTest() {
			imports = append(imports, s.imports()...)
		}

		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	if len(files) < 10 {
		t.Fatalf("only %d Go files found below %s", len(files), root)
	}

	found = append(found, goneMembers(files)...)

	for _, violation := range append(found, importViolations(withoutNested(root, imports))...) {
		t.Error(violation)
	}
}

// isLeftOut: folders that the go tool passes over, too.
func isLeftOut(root, name, base string) bool {
	return strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" || base == "node_modules" ||
		name == filepath.Join(root, "vendor")
}

func readSource(root, name string) (source, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return source{}, err
	}

	relative, err := filepath.Rel(root, name)
	if err != nil {
		return source{}, err
	}

	return parseSource(filepath.ToSlash(relative), text)
}

// withoutNested leaves out the imports of nested modules, which have dependencies of their own and
// that no package of this module can import.
func withoutNested(root string, imports []goImport) []goImport {
	var own []goImport

	for _, i := range imports {
		nested := false

		for dir := i.dir(); dir != "."; dir = filepath.ToSlash(filepath.Dir(dir)) {
			if _, err := os.Stat(filepath.Join(root, dir, "go.mod")); err == nil {
				nested = true
			}
		}

		if !nested {
			own = append(own, i)
		}
	}

	return own
}
