package main

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// module is a Go module of which programs have packages, or the standard library.
type module struct {
	path, version string
	sum           string // "h1:" and the base64 of a SHA-256; empty for the standard library
	files         []licenseFile
}

// licenseFile is a license, notice or patent grant of a module.
type licenseFile struct {
	name string // relative to the module
	text string
}

// ownModule is the path of the project's module.
const ownModule = "github.com/mig-exporter/mig-exporter"

// standardLibrary is the path of the standard library in package URLs.
const standardLibrary = "std"

// readModules returns the modules of programs except their own, ordered by path, with their license
// files.
func readModules(programs []string) ([]module, error) {
	built, err := readBuilds(programs)
	if err != nil {
		return nil, err
	}

	folders, err := listFolders(slices.Sorted(maps.Keys(built.packages)), built.environment)
	if err != nil {
		return nil, err
	}

	list := make([]module, 0, len(built.modules)+1)

	for path, m := range built.modules {
		if len(folders[path]) == 0 {
			return nil, fmt.Errorf(
				"the programs have module %s, go list does not: they were built from other sources",
				path,
			)
		}

		if m.files, err = readLicenses(folders[path]); err != nil {
			return nil, fmt.Errorf("module %s: %w", path, err)
		}

		list = append(list, m)
	}

	std, err := readStandardLibrary(built.goVersion)
	if err != nil {
		return nil, err
	}

	list = append(list, std)
	slices.SortFunc(list, func(a, b module) int { return strings.Compare(a.path, b.path) })

	return list, nil
}

// builds holds the build information of the programs of one release.
type builds struct {
	goVersion   string            // "1.24.2"
	packages    map[string]bool   // the main packages of the programs
	modules     map[string]module // by path, without their license files
	environment []string          // "GOOS=linux" and others for the go command; the same for all programs
}

// readBuilds reads the build information of programs.
func readBuilds(programs []string) (builds, error) {
	b := builds{packages: map[string]bool{}, modules: map[string]module{}}

	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return b, err
		}

		b.goVersion = strings.TrimPrefix(info.GoVersion, "go")
		b.packages[info.Path] = true

		for _, m := range info.Deps {
			if m.Path == ownModule && m.Replace != nil {
				continue // the program's own module is nested in this one
			}

			if m.Replace != nil {
				return b, fmt.Errorf("%s: module %s is replaced, which is not expected here", program, m.Path)
			}

			b.modules[m.Path] = module{path: m.Path, version: m.Version, sum: m.Sum}
		}

		b.environment = nil

		for _, s := range info.Settings {
			if slices.Contains([]string{"GOOS", "GOARCH", "CGO_ENABLED"}, s.Key) {
				b.environment = append(b.environment, s.Key+"="+s.Value)
			}
		}
	}

	return b, nil
}

// readStandardLibrary returns the standard library as a module, with its license files.
func readStandardLibrary(goVersion string) (module, error) {
	std := module{path: standardLibrary, version: goVersion}

	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return std, fmt.Errorf("go env: %w", err)
	}

	dir := strings.TrimSpace(string(root))
	if std.files, err = readLicenses(map[string]bool{dir + "\t" + dir: true}); err != nil {
		return std, fmt.Errorf("module %s: %w", standardLibrary, err)
	}

	return std, nil
}

// listFolders returns, by module path, the folders of the packages that are linked. Each key is the
// folder of the module, a tab, and the folder of the package.
func listFolders(packages, environment []string) (map[string]map[string]bool, error) {
	const format = "{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Dir}}\t{{$.Dir}}{{end}}{{end}}"
	list := exec.Command("go", append([]string{"list", "-deps", "-f", format}, packages...)...)
	list.Env = append(os.Environ(), environment...)
	var errOut bytes.Buffer
	list.Stderr = &errOut

	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, errOut.String())
	}

	folders := map[string]map[string]bool{}

	for line := range strings.Lines(string(out)) {
		path, dirs, found := strings.Cut(strings.TrimSpace(line), "\t")
		if !found {
			continue // the package is of the standard library, or of the programs' own module
		}

		if folders[path] == nil {
			folders[path] = map[string]bool{}
		}

		folders[path][dirs] = true
	}

	return folders, nil
}

// readLicenses reads the license files in the folders that listFolders returns for a module, and in
// those above them up to the module's.
func readLicenses(folders map[string]bool) ([]licenseFile, error) {
	isLicense := regexp.MustCompile(
		`(?i)^(licen[sc]e|copying|notice|patents|authors)(\.(md|txt|libyaml))?$`,
	)
	found := map[string]licenseFile{}

	for key := range folders {
		root, dir, _ := strings.Cut(key, "\t")
		for ; len(dir) >= len(root); dir = filepath.Dir(dir) {
			entries, err := os.ReadDir(dir)
			if err != nil {
				return nil, err
			}

			for _, e := range entries {
				path := filepath.Join(dir, e.Name())

				name, err := filepath.Rel(root, path)
				if err != nil {
					return nil, err
				}

				if e.Type()&fs.ModeType != 0 || !isLicense.MatchString(e.Name()) {
					continue
				}

				text, err := os.ReadFile(path)
				if err != nil {
					return nil, err
				}

				found[name] = licenseFile{name: name, text: string(text)}
			}
		}
	}

	if len(found) == 0 {
		return nil, errors.New("no license file")
	}

	var list []licenseFile
	for _, name := range slices.Sorted(maps.Keys(found)) {
		list = append(list, found[name])
	}

	return list, nil
}
