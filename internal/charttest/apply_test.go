package charttest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestApply: a real API server accepts every object of every profile, with each field known to it
// and without a warning, and the DaemonSet's pod too. Monitors, rules and OpenShift's objects are
// held against the definitions that their projects publish: the *.yaml files of the folders
// CHARTTEST_CRDS.
func TestApply(t *testing.T) {
	s := startAPIServer(t)
	mustApply := func(o object) {
		t.Helper()

		if err := s.apply(t, o, false); err != nil {
			t.Fatalf("%s: %v", describe(o), err)
		}
	}
	s.createNamespaces(t)
	mustApply(object{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": object{"name": "nvidia"},
		"handler": "nvidia"})

	for _, crd := range definitions(t) {
		mustApply(crd)
	}

	all := profileObjects(t)
	all["all"] = render(t, everything(t))
	all["pod monitor"] = render(t, merge(set("podMonitor.enabled", true), set("service.enabled", false)))
	all["another user"] = render(t, merge(set("runAsUser", 65532), set("supplementalGroups", []any{7}),
		set("web.existingSecret", "web")))
	all["NRI plugin, node's network"] = render(t, merge(set("driver.nriDevice", management), set("hostNetwork", true)))
	applied := 0

	for name, objects := range all {
		pod, _ := container(t, objects)

		asPod := object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "p", "namespace": namespace},
			"spec": pod}
		for _, o := range append(objects, asPod) {
			// A definition becomes a resource a moment after it was accepted.
			group, _, _ := strings.Cut(o["apiVersion"].(string), "/")
			if group == "monitoring.coreos.com" || group == "security.openshift.io" {
				s.await(t, func() error { return s.apply(t, o, true) })
			} else if err := s.apply(t, o, true); err != nil {
				t.Errorf("%s: %s: %v", name, describe(o), err)
			}

			applied++
		}
	}

	t.Logf("%d objects of %d renderings were applied", applied, len(all))
	broken := render(t, nil)

	find(t, broken, "DaemonSet")["spec"].(map[string]any)["templte"] = object{}
	if err := s.apply(t, find(t, broken, "DaemonSet"), true); err == nil ||
		!strings.Contains(err.Error(), "templte: field not declared") {
		t.Errorf("an unknown field: %v", err)
	}
}

// definitions returns the CustomResourceDefinitions of the folders in CHARTTEST_CRDS.
func definitions(t *testing.T) []object {
	t.Helper()
	var found []object

	for _, dir := range filepath.SplitList(os.Getenv("CHARTTEST_CRDS")) {
		files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("CHARTTEST_CRDS: %s: %v", dir, err)
		}

		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}

			objects, err := decodeObjects(string(text))
			if err != nil {
				t.Fatal(file, err)
			}

			found = append(found, objects...)
		}
	}

	if len(found) == 0 {
		t.Fatal("CHARTTEST_CRDS names no folder with definitions")
	}

	return found
}
