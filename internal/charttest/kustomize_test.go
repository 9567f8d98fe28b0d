package charttest

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// kustomize returns the objects of `kustomize build` by their names, in a folder beside
// deploy/manifests that has this kustomization and copies of the manifests: kustomize reads no file
// outside of it.
func kustomize(t *testing.T, kustomization string) map[string]object {
	t.Helper()
	files := filesys.MakeFsInMemory()
	write := func(path, text string) {
		t.Helper()

		if err := files.WriteFile(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}

	manifests, err := filepath.Glob(root + "/deploy/manifests/*.yaml")
	if err != nil || len(manifests) == 0 {
		t.Fatal(err)
	}

	for _, file := range manifests {
		text := readFile(t, "deploy/manifests/"+filepath.Base(file))
		write("/manifests/"+filepath.Base(file), text)
		write("/overlay/"+filepath.Base(file), text)
	}

	write("/overlay/kustomization.yaml", kustomization)

	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, "/overlay")
	if err != nil {
		t.Fatalf("%s: %v", kustomization, err)
	}

	text, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}

	objects, err := decodeObjects(string(text))
	if err != nil {
		t.Fatal(err)
	}

	return byName(objects)
}

func byName(objects []object) map[string]object {
	all := map[string]object{}
	for _, o := range objects {
		all[describe(o)] = o
	}

	return all
}

// TestKustomizeBase: the base builds, and is the manifest of the chart's defaults.
func TestKustomizeBase(t *testing.T) {
	built := kustomize(t, "resources: [../manifests]\n")
	equal(t, "base", built, manifestObjects(t))
}

// manifestObjects returns the objects of the chart's defaults in deploy/manifests, by their names.
func manifestObjects(t *testing.T) map[string]object {
	t.Helper()

	objects, err := decodeObjects(readFile(t, "deploy/manifests/mig-exporter.yaml"))
	if err != nil {
		t.Fatal(err)
	}

	return byName(objects)
}

// TestKustomizeOverlay: the overlay of docs/deploy-kubernetes.md changes the namespace and the
// image alone.
func TestKustomizeOverlay(t *testing.T) {
	page := readFile(t, "docs/deploy-kubernetes.md")

	overlay := regexp.MustCompile("(?s)```yaml\n(resources: .*?)```").FindStringSubmatch(page)
	if overlay == nil {
		t.Fatal("docs/deploy-kubernetes.md has no overlay")
	}

	built := kustomize(t, overlay[1])

	want := manifestObjects(t)
	for _, o := range want {
		o["metadata"].(object)["namespace"] = "gpu-monitoring"
	}

	_, c := container(t, slices.Collect(maps.Values(want)))
	image := c["image"].(string)
	c["image"] = "registry.example.com/" + image
	equal(t, "overlay", built, want)
}

// TestKustomizeProfiles: each profile builds with a namespace of its own, in which its rights
// follow its service account.
func TestKustomizeProfiles(t *testing.T) {
	bindings := 0

	for name := range profiles() {
		objects := kustomize(t, "namespace: other\nresources: ["+name+".yaml]\n")
		for id, o := range objects {
			switch in := at(o, "metadata", "namespace"); {
			case o["kind"] == "ClusterRoleBinding":
				bindings++
				equal(t, name, o["subjects"], []any{object{"kind": "ServiceAccount", "name": "mig-exporter",
					"namespace": "other"}})
			case o["kind"] != "ClusterRole" && o["kind"] != "SecurityContextConstraints" && in != "other":
				t.Errorf("%s: %s is in the namespace %v", name, id, in)
			}
		}
	}

	if bindings == 0 {
		t.Error("no profile has rights")
	}
}
