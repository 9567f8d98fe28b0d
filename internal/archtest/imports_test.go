package archtest

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	module = "github.com/mig-exporter/mig-exporter/"
	goNVML = "github.com/NVIDIA/go-nvml"
)

// withoutNVML lists packages that may not depend on go-nvml, not even through others, which
// depguard does not see: cmd/nvml-sim is a library of its own and would be left with hundreds of
// undefined NVML symbols.
func withoutNVML() []string {
	return []string{"internal/gpu", "internal/mig", "internal/sim", "internal/sim/hostengine", "internal/sim/kubelet",
		"cmd/nvml-sim", "cmd/dcgm-sim"}
}

// goImport is one import of a file of the module. All paths in it are relative to the module's
// root, slash-separated.
type goImport struct {
	file string
	line int
	path string // as written: "fmt", or beginning with module
}

func (i goImport) dir() string { return path.Dir(i.file) }

// internal returns the folder that an import of this module names.
func (i goImport) internal() (dir string, ok bool) { return strings.CutPrefix(i.path, module) }

// importViolations reports the packages of withoutNVML that depend on go-nvml, each with the chain
// of imports.
func importViolations(imports []goImport) []string {
	var found []string

	for _, dir := range withoutNVML() {
		if chain := findChain(imports, dir, goNVML, nil); chain != nil {
			found = append(found, fmt.Sprintf("%s: must not depend on %s, not even through others: %s", dir, goNVML,
				strings.Join(chain, " -> ")))
		}
	}

	return found
}

// findChain returns the packages on a way from a package of this module to a library, or nil.
func findChain(imports []goImport, dir, library string, seen []string) []string {
	if slices.Contains(seen, dir) {
		return nil
	}

	seen = append(seen[:len(seen):len(seen)], dir)
	for _, i := range imports {
		if i.dir() != dir {
			continue
		}

		if i.path == library || strings.HasPrefix(i.path, library+"/") {
			return append(seen, i.path)
		}

		if next, ok := i.internal(); ok {
			if chain := findChain(imports, next, library, seen); chain != nil {
				return chain
			}
		}
	}

	return nil
}

// TestEveryPackageHasImportRules: a package of this module outside cmd has a strict depguard rule
// in .golangci.yml, so that a new one cannot import what it likes. Packages that are only tests
// need none.
func TestEveryPackageHasImportRules(t *testing.T) {
	root := filepath.Join("..", "..")
	var config struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]struct {
						Mode  string `yaml:"list-mode"`
						Files []string
					}
				}
			}
		}
	}

	text, err := os.ReadFile(filepath.Join(root, ".golangci.yml"))
	if err != nil {
		t.Fatal(err)
	}

	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}

	strict := map[string]bool{}

	for _, rule := range config.Linters.Settings.Depguard.Rules {
		if rule.Mode == "strict" {
			strict[rule.Files[0]] = true
		}
	}

	dirs := packageDirs(t, root)
	for dir := range dirs {
		pattern := "**/" + dir + "/*.go"
		if !strings.HasPrefix(dir, "cmd/") && hasLibraryCode(t, filepath.Join(root, dir)) && !strict[pattern] {
			t.Errorf("%s has no strict depguard rule in .golangci.yml: no rule begins with the files %q", dir, pattern)
		}

		delete(strict, pattern)
	}

	for pattern := range strict {
		t.Errorf(".golangci.yml has a depguard rule for %s, which is no package", pattern)
	}
}

// hasLibraryCode reports whether a folder of this module, which a nested one is not, has Go files
// that are no tests.
func hasLibraryCode(t *testing.T, dir string) bool {
	t.Helper()

	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
		return false
	}

	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}

	for _, file := range files {
		s, err := readSource(dir, file)
		if err != nil {
			t.Fatal(err)
		}

		if !s.isTest() && len(s.file.Decls) > 0 {
			return true
		}
	}

	return false
}
