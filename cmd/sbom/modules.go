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

// standardLibrary is the path of the standard library in package URLs.
const standardLibrary = "std"

// readModules returns the modules of programs except their own, ordered by path, with their license files.
func readModules(programs []string) ([]module, error) {
	linked := map[string]module{}
	packages := map[string]bool{}
	var environment []string
	goVersion := ""

	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return nil, err
		}

		packages[info.Path] = true

		goVersion = strings.TrimPrefix(info.GoVersion, "go")
		for _, m := range info.Deps {
			if m.Replace != nil {
				return nil, fmt.Errorf(
					"%s: module %s is replaced, which is not expected here",
					program,
					m.Path,
				)
			}

			linked[m.Path] = module{path: m.Path, version: m.Version, sum: m.Sum}
		}

		environment = environment[:0] // the same for all programs of one release

		for _, s := range info.Settings {
			if slices.Contains([]string{"GOOS", "GOARCH", "CGO_ENABLED"}, s.Key) {
				environment = append(environment, s.Key+"="+s.Value)
			}
		}
	}

	folders, err := listFolders(slices.Sorted(maps.Keys(packages)), environment)
	if err != nil {
		return nil, err
	}

	for path, m := range linked {
		if len(folders[path]) == 0 {
			return nil, fmt.Errorf(
				"the programs have module %s, go list does not: they were built from other sources",
				path,
			)
		}

		if m.files, err = readLicenses(folders[path]); err != nil {
			return nil, fmt.Errorf("module %s: %w", path, err)
		}

		linked[path] = m
	}

	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}

	std := module{path: standardLibrary, version: goVersion}

	dir := strings.TrimSpace(string(root))
	if std.files, err = readLicenses(map[string]bool{dir + "\t" + dir: true}); err != nil {
		return nil, fmt.Errorf("module %s: %w", standardLibrary, err)
	}

	linked[standardLibrary] = std

	var list []module
	for _, path := range slices.Sorted(maps.Keys(linked)) {
		list = append(list, linked[path])
	}

	return list, nil
}

// listFolders returns, by module path, the folders of its packages, each behind that of the module and a tab.
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
			continue // of the standard library, or of the programs' own module
		}

		if folders[path] == nil {
			folders[path] = map[string]bool{}
		}

		folders[path][dirs] = true
	}

	return folders, nil
}

// readLicenses reads the license files in folders of packages and in those above them, up to their module's.
func readLicenses(folders map[string]bool) ([]licenseFile, error) {
	isLicense := regexp.MustCompile(
		`(?i)^(licen[sc]e|copying|notice|patents|authors)(\.(md|txt|libyaml))?$`,
	)
	found := map[string]licenseFile{}

	for both := range folders {
		root, dir, _ := strings.Cut(both, "\t")
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
