package main

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
)

// debPackage is a Debian package that is shipped with the programs.
type debPackage struct {
	vendor, name, version, architecture string
	distribution, source                string // "debian-12", the source package; empty if not known
}

// readPackages reads a file with a line for each package: vendor, name, version, architecture and,
// for packages of a distribution, its name and the source package. It returns them in the order of
// their names; none for an empty path.
func readPackages(path string) ([]debPackage, error) {
	if path == "" {
		return nil, nil
	}

	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}

	var list []debPackage

	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 4 && len(f) != 6 {
			return nil, fmt.Errorf(
				"packages: expected 4 or 6 fields, got %q",
				strings.TrimSpace(line),
			)
		}

		p := debPackage{vendor: f[0], name: f[1], version: f[2], architecture: f[3]}
		if len(f) == 6 {
			p.distribution = f[4]
			p.source = f[5]
		}

		list = append(list, p)
	}

	slices.SortFunc(list, func(a, b debPackage) int { return strings.Compare(a.name, b.name) })

	return list, nil
}

// purl returns the package URL (https://github.com/package-url/purl-spec), with the qualifiers by
// which scanners find vulnerabilities of Debian's packages.
func (p debPackage) purl() string {
	qualifiers := url.Values{"arch": {p.architecture}} // Encode sorts them by name, as the purl spec wants
	if p.distribution != "" {
		qualifiers.Set("distro", p.distribution)
	}

	if p.source != "" && p.source != p.name {
		qualifiers.Set("upstream", p.source)
	}

	return "pkg:deb/" + p.vendor + "/" + url.QueryEscape(p.name) + "@" + url.QueryEscape(p.version) + "?" +
		qualifiers.Encode()
}
