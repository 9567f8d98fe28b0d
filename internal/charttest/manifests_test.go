package charttest

import (
	"flag"
	"io"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
)

// TestMain takes the -update flag. Helm logs each link of a chart; they are meant
// (TestFilesAreTheProjects).
func TestMain(m *testing.M) {
	flag.Bool("update", false, "rewrite deploy/manifests")
	flag.Parse()
	log.SetOutput(io.Discard)
	os.Exit(m.Run())
}

func updating() bool { return flag.Lookup("update").Value.String() == "true" }

// profiles are the files of deploy/manifests and the values files that each is rendered with.
func profiles() map[string][]string {
	return map[string][]string{
		"mig-exporter":         nil,
		"mig":                  {"mig"},
		"gke":                  {"gke"},
		"gpu-operator":         {"gpu-operator"},
		"openshift":            {"gpu-operator", "openshift"},
		"beside-dcgm-exporter": {"beside-dcgm-exporter"},
		"control":              {"control"},
		"control-plugin":       {"control", "device-plugin"},
	}
}

// The manifest of internal/kubelettest: control with the device plugin, and all rights besides.
const (
	testManifest = "internal/kubelettest/testdata/all-rights.yaml"
	testValues   = "internal/kubelettest/testdata/values.yaml"
)

// profileFiles returns the paths of files in values/.
func profileFiles(names []string) []string {
	var paths []string
	for _, name := range names {
		paths = append(paths, "deploy/helm/mig-exporter/values/"+name+".yaml")
	}

	return paths
}

// manifest returns what is rendered with files of values: the objects in the order of their
// templates, without what is Helm's alone.
func manifest(t *testing.T, files []string) string {
	t.Helper()

	command := "helm template mig-exporter deploy/helm/mig-exporter --kube-version " + kubernetes +
		" --namespace " + namespace
	over := values{}

	for _, file := range files {
		one, err := chartutil.ReadValuesFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}

		over = merge(over, one)
		command += " -f " + file
	}

	rendered, err := renderFiles(loadChart(t), over)
	if err != nil {
		t.Fatal(err)
	}

	var b strings.Builder
	b.WriteString("# Written by make manifests; it is " + command + "\n")

	for _, path := range slices.Sorted(maps.Keys(rendered)) {
		for part := range strings.SplitSeq("\n"+strings.TrimSpace(rendered[path])+"\n", "\n---\n") {
			if part = strings.Trim(part, "\n"); part != "" {
				b.WriteString("---\n" + withoutHelm(part) + "\n")
			}
		}
	}

	return b.String()
}

// withoutHelm leaves out the labels that say that Helm manages an object.
func withoutHelm(text string) string {
	lines := strings.Split(text, "\n")

	return strings.Join(slices.DeleteFunc(lines, func(line string) bool {
		line = strings.TrimSpace(line)
		return strings.HasPrefix(line, "helm.sh/chart:") || line == "app.kubernetes.io/managed-by: Helm"
	}), "\n")
}

// checkManifest compares a file with what is rendered, or writes it.
func checkManifest(t *testing.T, path string, files []string) {
	t.Helper()

	text := manifest(t, files)
	if updating() {
		if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	if readFile(t, path) != text {
		t.Errorf("%s is not what the chart renders; run: make manifests, and review the difference", path)
	}
}

// TestManifests: deploy/manifests is what the chart renders with each file of values/, and has no
// other file.
func TestManifests(t *testing.T) {
	used := map[string]bool{}

	for name, files := range profiles() {
		checkManifest(t, "deploy/manifests/"+name+".yaml", profileFiles(files))

		for _, file := range files {
			used["values/"+file+".yaml"] = true
		}

		used["manifests/"+name+".yaml"] = true
	}

	checkManifest(t, testManifest, append(profileFiles([]string{"control", "device-plugin"}), testValues))

	used["manifests/kustomization.yaml"] = true

	for dir, pattern := range map[string]string{
		"values/": chartDir + "/values/*", "manifests/": root + "/deploy/manifests/*",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}

		for _, file := range found {
			if !used[dir+filepath.Base(file)] {
				t.Errorf("%s belongs to no profile", file)
			}
		}
	}
}
