package charttest

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// kubectlName begins the names of what kubectl mig needs in a release of the name mig-exporter.
const kubectlName = "mig-exporter-kubectl"

// kubectlValues returns the values control.kubectl with all switches on.
func kubectlValues() values {
	accounts := values{}
	for _, verb := range []string{"get", "plan", "apply", "mode", "force", "take-over", "release"} {
		accounts[verb] = true
	}

	return values{
		"caCertificate": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
		"serverName":    "mig-exporter.example",
		"accounts":      accounts,
		"runs":          true,
		"evict":         true,
	}
}

// renderKubectl returns the objects of templates/kubectl.yaml by their names, as the docs have
// them: without labels, and those of the cluster without the namespace before their names.
func renderKubectl(t *testing.T, kubectl values) map[string]object {
	t.Helper()

	files, err := renderFiles(loadChart(t), merge(readValues(t, "control"), set("control.kubectl", kubectl)))
	if err != nil {
		t.Fatal(err)
	}

	objects, err := decodeObjects(files["mig-exporter/templates/kubectl.yaml"])
	if err != nil {
		t.Fatal(err)
	}

	for i, o := range objects {
		delete(o["metadata"].(object), "labels")
		objects[i] = replaceTexts(o, namespace+"-"+kubectlName, kubectlName).(object)
	}

	return byName(objects)
}

// documentedKubectl returns the objects that the pages of kubectl mig list, by their names. Those
// of the account for apply are there in full; the other accounts differ in their names and verbs.
func documentedKubectl(t *testing.T) map[string]object {
	t.Helper()

	objects := map[string]object{}
	verbs := map[string]any{}

	for _, page := range []string{"docs/kubectl-mig.md", "docs/kubectl-mig-runs.md"} {
		for _, o := range documentedObjects(t, page) {
			switch {
			case o["kind"] != nil && o["metadata"] != nil:
				objects[describe(o)] = o
			case o["take-over"] != nil:
				verbs = o
			}
		}
	}

	for name, o := range maps.Clone(objects) {
		if !strings.HasSuffix(name, "-apply") {
			continue
		}

		for verb, all := range verbs {
			other := replaceTexts(o, kubectlName+"-apply", kubectlName+"-"+verb).(object)
			if o["kind"] == "ClusterRole" {
				other["rules"].([]any)[0].(object)["verbs"] = all
			}

			objects[describe(other)] = other
		}
	}

	return objects
}

// TestKubectlRightsAreDocumented: with all switches on, the chart makes the objects that the docs
// of kubectl mig list, and the ConfigMap.
func TestKubectlRightsAreDocumented(t *testing.T) {
	rendered := renderKubectl(t, kubectlValues())
	settings := rendered["ConfigMap "+kubectlName]
	delete(rendered, "ConfigMap "+kubectlName)

	equal(t, "ConfigMap", settings["data"], object{
		"ca.crt":      kubectlValues()["caCertificate"],
		"server-name": "mig-exporter.example",
		"selector":    "app.kubernetes.io/name=mig-exporter,app.kubernetes.io/instance=mig-exporter",
	})
	equal(t, "objects", rendered, documentedKubectl(t))
}

// TestKubectlBySwitch: each switch of control.kubectl brings its own objects and no others.
func TestKubectlBySwitch(t *testing.T) {
	certificate := values{"caCertificate": "PEM", "serverName": "mig-exporter.example"}
	settings := []string{"ConfigMap " + kubectlName, "Role " + kubectlName}
	account := func(verb string) []string {
		var names []string
		for _, kind := range []string{"ServiceAccount ", "ClusterRole ", "ClusterRoleBinding ", "Role "} {
			names = append(names, kind+kubectlName+"-"+verb)
		}

		return names
	}
	runs := []string{"Role " + kubectlName + "-runs", "ClusterRole " + kubectlName + "-runs"}

	for name, tc := range map[string]struct {
		over values
		want []string
	}{
		"off":         {values{}, nil},
		"certificate": {certificate, settings},
		"get":         {merge(certificate, set("accounts.get", true)), slices.Concat(settings, account("get"))},
		"take-over": {merge(certificate, set("accounts.take-over", true)),
			slices.Concat(settings, account("take-over"))},
		"runs": {merge(certificate, set("runs", true)), slices.Concat(settings, runs)},
		"evict": {merge(certificate, set("runs", true), set("evict", true)),
			slices.Concat(settings, runs, []string{"ClusterRole " + kubectlName + "-evict"})},
	} {
		got := slices.Sorted(maps.Keys(renderKubectl(t, tc.over)))
		slices.Sort(tc.want)
		equal(t, name, got, tc.want)
	}
}
