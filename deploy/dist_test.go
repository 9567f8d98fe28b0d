package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// runDist runs a step of dist.sh in a folder. It returns what the step prints, and whether it
// succeeds.
func runDist(t *testing.T, dir, step string, variables ...string) (string, bool) {
	t.Helper()

	script, err := filepath.Abs("dist.sh")
	if err != nil {
		t.Fatal(err)
	}

	cmd := exec.Command(script, step)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), variables...)
	out, err := cmd.CombinedOutput()

	return string(out), err == nil
}

// TestReleaseNotes: the notes are those of the version alone, of Unreleased if it has no section
// yet; their links lead to the repository.
func TestReleaseNotes(t *testing.T) {
	const heading = "# Changelog\n\nAll notable changes. Entries are marked [FEATURE] or [CHANGE].\n\n"
	const unreleased = "## Unreleased\n\n* [FEATURE] Newer.\n\n"
	const candidate = "## 0.1.0-rc1\n\n* [CHANGE] Of the candidate.\n\n"
	const release = "## 0.1.0\n\n### A part of it\n\n* [FEATURE] One ([page](docs/page.md#part)),\n" +
		"  and [its site](https://example.com/docs/x.md).\n" +
		"\n### Another part\n\n" +
		"* [CHANGE] Two ([below](#part)):\n\n  | was | is |\n\n"
	const older = "## 0.0.9\n\n* [BUGFIX] Old.\n"
	const before, after = "# mig-exporter 0.1.0\n\n## Before you upgrade\n\n", "\n## All else\n\n"
	const nothing = "Nothing needs your attention.\n"
	const changes = "* [CHANGE] Two ([below](#part)):\n\n  | was | is |\n"

	const others = "* [FEATURE] One ([page](https://github.com/mig-exporter/mig-exporter/blob/main/docs/page.md#part)),\n" +
		"  and [its site](https://example.com/docs/x.md).\n"
	for _, tt := range []struct{ about, changelog, want string }{
		{"a candidate before it", unreleased + release + candidate + older, before + changes + after + others},
		{"a candidate after it", candidate + release, before + changes + after + others},
		{"no section yet", unreleased + candidate + older, before + nothing + after + "* [FEATURE] Newer.\n"},
	} {
		t.Run(tt.about, func(t *testing.T) {
			dir := t.TempDir()
			writeFile(t, filepath.Join(dir, "CHANGELOG.md"), heading+tt.changelog, 0o644)
			got, ok := runDist(t, dir, "notes", "VERSION=0.1.0")
			cmptest.Equal(t, "success", ok, true)
			cmptest.Equal(t, "notes", got, tt.want)
		})
	}
}

// TestChartOfARelease: the chart's archive is the same whenever it is made, whatever times Helm
// gives its files.
func TestChartOfARelease(t *testing.T) {
	dir := t.TempDir()
	helm := filepath.Join(dir, "helm")
	writeFile(t, helm, `#!/bin/sh
set -e
[ "$1 $2 $4" = "package --destination deploy/helm/mig-exporter" ]
mkdir -p made/mig-exporter/templates
echo "name: mig-exporter" >made/mig-exporter/Chart.yaml
echo "{{ .Values }}" >made/mig-exporter/templates/all.yaml
find made -exec touch -d "$MADE" {} +
tar -C made -czf "$3/mig-exporter-0.1.0.tgz" $FILES
`, 0o755)
	dist := filepath.Join(dir, "dist")
	var archives []string

	for _, variables := range [][]string{
		{"MADE=2001-02-03", "FILES=mig-exporter/Chart.yaml mig-exporter/templates/all.yaml"},
		{"MADE=2011-12-13", "FILES=mig-exporter/templates/all.yaml mig-exporter/Chart.yaml"},
	} {
		variables = append(variables, "HELM="+helm, "DIST="+dist, "SOURCE_DATE_EPOCH=1700000000")
		writeFile(t, filepath.Join(dist, "mig-exporter-0.1.0.tgz"), "old", 0o644)

		if out, ok := runDist(t, dir, "chart", variables...); !ok {
			t.Fatal(out)
		}

		archives = append(archives, readFile(t, filepath.Join(dist, "mig-exporter-0.1.0.tgz")))
	}

	cmptest.Equal(t, "the archives are the same", archives[0] == archives[1], true)

	list, err := exec.Command("tar", "--utc", "--full-time", "-tvzf", filepath.Join(dist, "mig-exporter-0.1.0.tgz")).Output()
	if err != nil {
		t.Fatal(err)
	}

	var files []string

	for line := range strings.Lines(string(list)) {
		fields := strings.Fields(line)
		files = append(files, strings.Join(slices.Concat(fields[:2], fields[3:]), " "))
	}

	cmptest.Equal(t, "files", files, []string{
		"drwxr-xr-x 0/0 2023-11-14 22:13:20 mig-exporter/",
		"-rw-r--r-- 0/0 2023-11-14 22:13:20 mig-exporter/Chart.yaml",
		"drwxr-xr-x 0/0 2023-11-14 22:13:20 mig-exporter/templates/",
		"-rw-r--r-- 0/0 2023-11-14 22:13:20 mig-exporter/templates/all.yaml",
	})
}

// TestFolderOfARelease: files of an earlier release are removed, and a folder with others is left
// as it is.
func TestFolderOfARelease(t *testing.T) {
	dir := t.TempDir()

	dist := filepath.Join(dir, "a new/folder")
	for _, name := range []string{"mig-exporter-0.1.0.linux-amd64.tar.gz", "mig-exporter-0.1.0.linux-amd64.cdx.json",
		"mig-exporter_0.1.0_arm64.deb", "mig-exporter-0.1.0-1.aarch64.rpm", "mig-exporter-0.1.0.tgz", "RELEASE_NOTES.md", "sha256sums.txt"} {
		writeFile(t, filepath.Join(dist, name), "old", 0o644)
	}

	if out, ok := runDist(t, dir, "clear", "DIST="+dist); !ok {
		t.Errorf("a folder of a release is refused:\n%s", out)
	}

	cmptest.Equal(t, "files of a release", tree(t, dist), map[string]string{dist: "d---------"})

	writeFile(t, filepath.Join(dist, "RELEASE_NOTES.md"), "old", 0o644)
	writeFile(t, filepath.Join(dist, "thesis.tex"), "precious", 0o644)

	before := tree(t, dist)
	if out, ok := runDist(t, dir, "clear", "DIST="+dist); ok {
		t.Errorf("a folder with other files is accepted:\n%s", out)
	}

	cmptest.Equal(t, "files", tree(t, dist), before)
}
