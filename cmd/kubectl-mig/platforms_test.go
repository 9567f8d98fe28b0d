package main

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTypesOnEveryPlatform checks the types of kubectl mig for each platform of a release, with all
// that it links: a call of syscall that Windows lacks fails here. To compile it for all of them, as
// make test-kubectl-platforms does, takes fifty times as long.
func TestTypesOnEveryPlatform(t *testing.T) {
	t.Parallel()

	sources := &sourceFiles{gotoken.NewFileSet(), map[string]*ast.File{}}

	for _, platform := range releasePlatforms(t) {
		goos, goarch, _ := strings.Cut(platform, "/")

		for _, err := range checkTypes(t, sources, listPackages(t, goos, goarch, "."), goarch) {
			t.Errorf("%s: %v", platform, err)
		}
	}
}

// TestTypesRefusesWhatAPlatformLacks: the check sees a missing symbol, in our packages alone.
func TestTypesRefusesWhatAPlatformLacks(t *testing.T) {
	t.Parallel()

	sources := &sourceFiles{gotoken.NewFileSet(), map[string]*ast.File{}}
	name := filepath.Join(t.TempDir(), "stop.go")

	source := "package migctl\n\nimport \"syscall\"\n\nfunc stop() { _ = syscall.SIGTSTP }\n"
	if err := os.WriteFile(name, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}

	ours := listedPackage{ImportPath: projectPath + "/stop", Dir: filepath.Dir(name), GoFiles: []string{"stop.go"}}

	for goos, fails := range map[string]bool{"linux": false, "windows": true} {
		listed := append(listPackages(t, goos, "amd64", "syscall"), ours)

		if errs := checkTypes(t, sources, listed, "amd64"); len(errs) > 0 != fails {
			t.Errorf("%s: errors %v, want some: %v", goos, errs, fails)
		}
	}
}

const projectPath = "github.com/mig-exporter/mig-exporter"

// releasePlatforms returns the platforms, "linux/amd64", that the Makefile releases kubectl mig for.
func releasePlatforms(t *testing.T) []string {
	t.Helper()

	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}

	line := regexp.MustCompile(`(?m)^KUBECTL_PLATFORMS := (.+)$`).FindSubmatch(makefile)
	if line == nil {
		t.Fatal("the Makefile has no line KUBECTL_PLATFORMS := OS/ARCHITECTURE ...")
	}

	return strings.Fields(string(line[1]))
}

// listedPackage is what go list says of a package.
type listedPackage struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	ImportMap  map[string]string // import paths as written, to those of packages: vendored ones
}

// listPackages returns packages with all that they import, each after its imports.
func listPackages(t *testing.T, goos, goarch string, patterns ...string) []listedPackage {
	t.Helper()

	list := exec.Command("go", append([]string{"list", "-deps", "-json=ImportPath,Dir,GoFiles,ImportMap"}, patterns...)...)
	list.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch)
	list.Stderr = os.Stderr

	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list for %s/%s: %v", goos, goarch, err)
	}

	var listed []listedPackage

	for packages := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listedPackage
		if err := packages.Decode(&p); errors.Is(err, io.EOF) {
			return listed
		} else if err != nil {
			t.Fatalf("go list for %s/%s: %v", goos, goarch, err)
		}

		listed = append(listed, p)
	}
}

// checkTypes returns the errors in packages of this project. Of others the declarations alone are
// read: that their bodies compile is their authors' matter, and takes most of the time.
func checkTypes(t *testing.T, sources *sourceFiles, listed []listedPackage, goarch string) []error {
	t.Helper()

	checked := checkedPackages{"unsafe": types.Unsafe}

	var errs []error

	for _, p := range listed {
		if p.ImportPath == "unsafe" {
			continue
		}

		ours := strings.HasPrefix(p.ImportPath, projectPath)
		config := types.Config{
			IgnoreFuncBodies: !ours,
			Importer:         &packageImporter{checked, p.ImportMap},
			Sizes:            types.SizesFor("gc", goarch),
			Error: func(err error) {
				if ours {
					errs = append(errs, err)
				}
			},
		}

		// Errors have gone to config.Error.
		checked[p.ImportPath], _ = config.Check(p.ImportPath, sources.files, sources.parse(t, p), nil)
	}

	return errs
}

// sourceFiles parses each file once, for all platforms.
type sourceFiles struct {
	files  *gotoken.FileSet
	parsed map[string]*ast.File
}

func (s *sourceFiles) parse(t *testing.T, p listedPackage) []*ast.File {
	t.Helper()

	files := make([]*ast.File, 0, len(p.GoFiles))

	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)

		if s.parsed[path] == nil {
			file, err := parser.ParseFile(s.files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}

			s.parsed[path] = file
		}

		files = append(files, s.parsed[path])
	}

	return files
}

type checkedPackages map[string]*types.Package

// packageImporter gives one package those that it imports.
type packageImporter struct {
	checked   checkedPackages
	importMap map[string]string
}

func (i *packageImporter) Import(path string) (*types.Package, error) {
	if mapped, ok := i.importMap[path]; ok {
		path = mapped
	}

	if p := i.checked[path]; p != nil {
		return p, nil
	}

	return nil, errors.New("go list has not listed it before the package that imports it: " + path)
}
