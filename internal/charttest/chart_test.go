package charttest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

const (
	root      = "../.."
	chartDir  = root + "/deploy/helm/mig-exporter"
	namespace = "mig-exporter"
	// kubernetes is the version that manifests are for.
	kubernetes = "1.34"
	notes      = "mig-exporter/templates/NOTES.txt"
)

// values is what a values file or --set says.
type values = map[string]any

// object is one Kubernetes object, as it is applied.
type object = map[string]any

// loadChart returns the chart as `helm install` loads it from its folder, links followed.
func loadChart(t *testing.T) *chart.Chart {
	t.Helper()

	loaded, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}

	return loaded
}

// readValues returns the values of files in values/, the later ones over the earlier.
func readValues(t *testing.T, files ...string) values {
	t.Helper()
	all := values{}

	for _, file := range files {
		one, err := chartutil.ReadValuesFile(filepath.Join(chartDir, "values", file+".yaml"))
		if err != nil {
			t.Fatal(err)
		}

		all = chartutil.MergeTables(one, all)
	}

	return all
}

// renderFiles renders the templates for the version of Kubernetes that the manifests are for: by
// their paths, without notes and empty ones.
func renderFiles(loaded *chart.Chart, over values) (map[string]string, error) {
	return renderFor(kubernetes, loaded, over)
}

func renderFor(version string, loaded *chart.Chart, over values) (map[string]string, error) {
	files, err := renderAll(version, loaded, over)
	maps.DeleteFunc(files, func(path, text string) bool {
		return path == notes || strings.TrimSpace(text) == ""
	})

	return files, err
}

// renderAll renders the notes too, for a cluster without DRA that has further groups of the API.
func renderAll(version string, loaded *chart.Chart, over values, groups ...string) (map[string]string, error) {
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.APIVersions = slices.DeleteFunc(capabilities.APIVersions, func(version string) bool {
		return strings.HasPrefix(version, "resource.k8s.io/")
	})
	capabilities.APIVersions = append(capabilities.APIVersions, groups...)

	parsed, err := chartutil.ParseKubeVersion(version)
	if err != nil {
		return nil, err
	}

	capabilities.KubeVersion = *parsed
	options := chartutil.ReleaseOptions{Name: "mig-exporter", Namespace: namespace, Revision: 1, IsInstall: true}

	if err := chartutil.ProcessDependencies(loaded, over); err != nil {
		return nil, err
	}

	all, err := chartutil.ToRenderValues(loaded, over, options, capabilities)
	if err != nil {
		return nil, err
	}

	return engine.Render(loaded, all)
}

// render returns the objects that the chart makes of values, in the order of their templates.
func render(t *testing.T, over values) []object {
	t.Helper()

	files, err := renderFiles(loadChart(t), over)
	if err != nil {
		t.Fatal(err)
	}

	var objects []object

	for _, path := range slices.Sorted(maps.Keys(files)) {
		decoded, err := decodeObjects(files[path])
		if err != nil {
			t.Fatalf("%s: %v\n%s", path, err, files[path])
		}

		objects = append(objects, decoded...)
	}

	return objects
}

// decodeObjects reads all documents of a YAML text. A key that is there twice is an error.
func decodeObjects(text string) ([]object, error) {
	decoder := yaml.NewDecoder(strings.NewReader(text))
	var objects []object

	for {
		var one object

		err := decoder.Decode(&one)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}

		if err != nil {
			return nil, err
		}

		if len(one) > 0 {
			objects = append(objects, one)
		}
	}
}

// find returns the only object of a kind.
func find(t *testing.T, objects []object, kind string) object {
	t.Helper()
	var found []object

	for _, o := range objects {
		if o["kind"] == kind {
			found = append(found, o)
		}
	}

	if len(found) != 1 {
		t.Fatalf("%d objects of kind %s, want 1", len(found), kind)
	}

	return found[0]
}

// at returns what is at a path of keys; nil if something is missing there.
func at(value any, path ...string) any {
	for _, key := range path {
		parent, ok := value.(map[string]any)
		if !ok {
			return nil
		}

		value = parent[key]
	}

	return value
}

// container returns the pod template's spec and its only container.
func container(t *testing.T, objects []object) (pod, c object) {
	t.Helper()

	spec, ok := at(find(t, objects, "DaemonSet"), "spec", "template", "spec").(map[string]any)
	if !ok {
		t.Fatal("no pod template")
	}

	containers, ok := spec["containers"].([]any)
	if !ok || len(containers) != 1 {
		t.Fatalf("containers: %v", spec["containers"])
	}

	return spec, containers[0].(map[string]any)
}

// encode returns a text that two equal values have in common.
func encode(t *testing.T, value any) string {
	t.Helper()
	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)

	if err := encoder.Encode(value); err != nil {
		t.Fatal(err)
	}

	return b.String()
}

// equal reports a difference of two values as a test's failure.
func equal(t *testing.T, name string, got, want any) {
	t.Helper()

	if g, w := encode(t, got), encode(t, want); g != w {
		t.Errorf("%s: got\n%s\nwant\n%s", name, g, w)
	}
}

// readFile returns a file of the repository.
func readFile(t *testing.T, path string) string {
	t.Helper()

	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}

	return string(text)
}

// set returns values with one at a path, "control.enabled".
func set(path string, value any) values {
	keys := strings.Split(path, ".")
	for _, key := range slices.Backward(keys) {
		value = values{key: value}
	}

	return value.(values)
}

// merge returns all of the values, the later ones over the earlier.
func merge(all ...values) values {
	merged := values{}
	for _, one := range all {
		merged = chartutil.MergeTables(one, merged)
	}

	return merged
}

func describe(o object) string {
	return fmt.Sprintf("%v %v", o["kind"], at(o, "metadata", "name"))
}

// everything returns values with all that can be on at the same time.
func everything(t *testing.T) values {
	t.Helper()

	return merge(readValues(t, "control", "device-plugin", "openshift"), values{
		"control": values{"mode": "apply", "restore": true, "allowGid": 2000,
			"layouts": values{"existingConfigMap": "layouts"}, "network": values{"hostPort": 9402},
			"kubectl": kubectlValues()},
		"web": values{"existingSecret": "web"},
		"serviceMonitor": values{"enabled": true, "interval": "15s", "scrapeTimeout": "10s", "scheme": "https",
			"tlsConfig": values{"insecureSkipVerify": true},
			"basicAuth": values{"username": values{"name": "web", "key": "user"},
				"password": values{"name": "web", "key": "password"}},
			"metricRelabelings": []any{values{"action": "labeldrop", "regex": "minor"}}},
		"prometheusRule": values{"enabled": true},
		"dashboards":     values{"enabled": true},
		"networkPolicy": values{"scrapeFrom": []any{values{"namespaceSelector": values{}}},
			"controlFrom": []any{values{"ipBlock": values{"cidr": "10.0.0.0/8"}}},
			"apiServerTo": []any{values{"ipBlock": values{"cidr": "10.0.0.1/32"}}},
			"extraEgress": []any{values{"ports": []any{values{"port": 5555, "protocol": "TCP"}}}}},
		"podMetadata":       values{"labels": []any{"team"}},
		"nodeStatus":        values{"conditions": true, "events": true},
		"nodeLabels":        values{"mode": "follow"},
		"dcgm":              values{"mode": "remote", "address": "nvidia-dcgm.gpu-operator.svc:5555"},
		"initContainers":    []any{values{"name": "wait", "image": "registry.example.com/wait:1"}},
		"advise":            values{"keepEvidence": true, "serverMetrics": true},
		"priorityClassName": "", "runtimeClassName": "nvidia",
	})
}
