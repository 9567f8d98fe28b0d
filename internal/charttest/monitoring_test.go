package charttest

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
)

// links returns the files of a folder of the chart and the files of the repository that they lead
// to.
func links(t *testing.T, dir string) map[string]string {
	t.Helper()

	entries, err := os.ReadDir(filepath.Join(chartDir, dir))
	if err != nil {
		t.Fatal(err)
	}

	found := map[string]string{}

	for _, entry := range entries {
		path, err := filepath.EvalSymlinks(filepath.Join(chartDir, dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}

		if entry.Type()&os.ModeSymlink == 0 {
			t.Errorf("%s/%s is a copy, not a link", dir, entry.Name())
		}

		found[entry.Name()] = path
	}

	return found
}

// TestFilesAreTheProjects: the chart has all rules and dashboards of the project, as links.
func TestFilesAreTheProjects(t *testing.T) {
	for dir, pattern := range map[string]string{
		"files/rules": root + "/deploy/prometheus/*.rules.yaml", "files/dashboards": root + "/dashboards/*.json",
		"files/optional": root + "/deploy/prometheus/optional/*.rules.yaml",
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatal(pattern, err)
		}

		want := map[string]string{}
		for _, path := range paths {
			want[filepath.Base(path)] = path
		}

		equal(t, dir, links(t, dir), want)
	}
}

// TestPrometheusRule: its groups are those of the rule files, none changed.
func TestPrometheusRule(t *testing.T) {
	rule := find(t, render(t, merge(set("prometheusRule.enabled", true), set("prometheusRule.labels.release", "p"))),
		"PrometheusRule")
	var want []any

	files := links(t, "files/rules")
	for _, name := range slices.Sorted(maps.Keys(files)) {
		objects, err := decodeObjects(readFile(t, "deploy/prometheus/"+name))
		if err != nil || len(objects) != 1 {
			t.Fatal(name, err)
		}

		want = append(want, asList(objects[0]["groups"])...)
	}

	if len(want) < len(files) {
		t.Fatalf("%d groups", len(want))
	}

	equal(t, "groups", at(rule, "spec", "groups"), want)

	for file, value := range map[string]string{
		"inference": "prometheusRule.inference", "conditions": "nodeStatus.conditions",
	} {
		objects, err := decodeObjects(readFile(t, "deploy/prometheus/optional/"+file+".rules.yaml"))
		if err != nil {
			t.Fatal(err)
		}

		all := find(t, render(t, merge(set("prometheusRule.enabled", true), set(value, true))), "PrometheusRule")
		equal(t, "groups with those of "+file, at(all, "spec", "groups"),
			append(slices.Clone(want), asList(objects[0]["groups"])...))
	}

	if at(rule, "metadata", "labels", "release") != "p" {
		t.Errorf("labels: %v", at(rule, "metadata", "labels"))
	}
}

// TestDashboards: a ConfigMap for each, with the file byte for byte, and small enough for the API
// server.
func TestDashboards(t *testing.T) {
	const limit = 1 << 20 // of the data of a ConfigMap
	objects := render(t, set("dashboards.enabled", true))
	got := map[string]string{}

	for _, o := range objects {
		if o["kind"] != "ConfigMap" {
			continue
		}

		if at(o, "metadata", "labels", "grafana_dashboard") != "1" {
			t.Errorf("%s: labels %v", describe(o), at(o, "metadata", "labels"))
		}

		for name, text := range o["data"].(map[string]any) {
			got[name] = text.(string)
		}
	}

	files := links(t, "files/dashboards")
	if len(got) != len(files) {
		t.Errorf("%d dashboards, want %d", len(got), len(files))
	}

	for name := range files {
		text := readFile(t, "dashboards/"+name)
		if got[name] != text {
			t.Errorf("%s: %d bytes in the ConfigMap differ from %d in the file", name, len(got[name]), len(text))
		}

		if len(text) > limit || !json.Valid([]byte(text)) {
			t.Errorf("%s: %d bytes, valid JSON: %v; want %d at most of JSON", name, len(text), json.Valid([]byte(text)), limit)
		}
	}
}

// TestMonitors: labels of series win over those of the target, and instance is the node's name.
func TestMonitors(t *testing.T) {
	selector := object{"matchLabels": object{"app.kubernetes.io/name": "mig-exporter",
		"app.kubernetes.io/instance": "mig-exporter"}}

	for kind, key := range map[string]string{"ServiceMonitor": "endpoints", "PodMonitor": "podMetricsEndpoints"} {
		name := strings.ToLower(kind[:1]) + kind[1:]
		objects := render(t, merge(set(name+".enabled", true), set(name+".interval", "15s"),
			set(name+".basicAuth.username", values{"name": "scrape", "key": "user"})))
		equal(t, kind, find(t, objects, kind)["spec"], object{
			"jobLabel": "app.kubernetes.io/name", "selector": selector,
			key: []any{object{
				"port": "metrics", "honorLabels": true, "scheme": "http", "interval": "15s",
				"basicAuth": object{"username": object{"name": "scrape", "key": "user"}},
				"relabelings": []any{object{"sourceLabels": []any{"__meta_kubernetes_pod_node_name"},
					"targetLabel": "instance"}},
			}},
		})
	}

	service := find(t, render(t, nil), "Service")
	equal(t, "ports of the service", at(service, "spec", "ports"), []any{object{
		"name": "metrics", "port": 9401, "targetPort": "metrics", "protocol": "TCP"}})
}

// TestNetworkPolicy: all clients reach the metrics, and those that are named the control port; the
// pod reaches the API server if it asks it, and nothing else.
func TestNetworkPolicy(t *testing.T) {
	peer := []any{values{"namespaceSelector": values{"matchLabels": values{"name": "ops"}}}}
	metrics := object{"ports": []any{object{"port": "metrics", "protocol": "TCP"}}}
	on := set("networkPolicy.enabled", true)
	spec := find(t, render(t, on), "NetworkPolicy")["spec"]
	equal(t, "ingress", at(spec, "ingress"), []any{metrics})
	equal(t, "egress", at(spec, "egress"), []any{})
	equal(t, "types", at(spec, "policyTypes"), []any{"Ingress", "Egress"})

	spec = find(t, render(t, merge(on, readValues(t, "control"), set("networkPolicy.controlFrom", peer))),
		"NetworkPolicy")["spec"]
	equal(t, "ingress with control", at(spec, "ingress"), []any{metrics, object{
		"ports": []any{object{"port": "control", "protocol": "TCP"}}, "from": peer}})
	apiServer := object{"ports": []any{
		object{"port": 443, "protocol": "TCP"}, object{"port": 6443, "protocol": "TCP"}}}
	equal(t, "egress with control", at(spec, "egress"), []any{apiServer})

	endpoint := []any{values{"ipBlock": values{"cidr": "10.0.0.1/32"}}}
	apiServer["to"] = endpoint
	dns := object{"ports": []any{object{"port": 53, "protocol": "UDP"}, object{"port": 53, "protocol": "TCP"}}}

	asking := merge(on, set("podMetadata.enabled", true), set("networkPolicy.apiServerTo", endpoint))
	for address, want := range map[string][]any{
		"nvidia-dcgm.gpu-operator.svc:5556": {apiServer,
			object{"ports": []any{object{"port": 5556, "protocol": "TCP"}}}, dns},
		"/run/nvidia/dcgm.sock": {apiServer},
	} {
		spec = find(t, render(t, merge(asking, set("dcgm", values{"mode": "remote", "address": address}))),
			"NetworkPolicy")["spec"]
		equal(t, address, at(spec, "egress"), want)
	}
}

// TestServerMetrics: servers of pods are asked if that is switched on: by a flag, where a policy
// holds by a rule for the pods, and with no other right than the owners of pods need.
func TestServerMetrics(t *testing.T) {
	without := merge(set("networkPolicy.enabled", true), set("podMetadata.enabled", true))
	on := merge(without, set("advise.serverMetrics", true))
	hasFlag := func(v values) bool {
		_, c := container(t, render(t, v))
		return slices.Contains(asList(c["args"]), any("--advise.server-metrics"))
	}
	equal(t, "the flag by default", hasFlag(without), false)
	equal(t, "the flag", hasFlag(on), true)
	equal(t, "rights", find(t, render(t, on), "ClusterRole")["rules"], find(t, render(t, without), "ClusterRole")["rules"])

	apiServer := object{"ports": []any{
		object{"port": 443, "protocol": "TCP"}, object{"port": 6443, "protocol": "TCP"}}}
	egress := func(v values) any { return at(find(t, render(t, v), "NetworkPolicy")["spec"], "egress") }
	equal(t, "egress by default", egress(without), []any{apiServer})
	equal(t, "egress", egress(on), []any{apiServer, object{"to": []any{object{"namespaceSelector": object{}}}}})

	chat := []any{values{"namespaceSelector": values{"matchLabels": values{"name": "chat"}}}}
	equal(t, "egress to some", egress(merge(on, set("networkPolicy.serversTo", chat),
		set("networkPolicy.serverPorts", []any{8000}))),
		[]any{apiServer, object{"to": chat, "ports": []any{object{"port": 8000, "protocol": "TCP"}}}})
}

// TestVersion: the chart has the version of the project.
func TestVersion(t *testing.T) {
	version := strings.TrimSpace(readFile(t, "VERSION"))

	metadata := loadChart(t).Metadata
	if metadata.Version != version || metadata.AppVersion != version {
		t.Errorf("chart %s, app %s, VERSION %s", metadata.Version, metadata.AppVersion, version)
	}
}

// TestPackage: a packaged chart has the contents of the linked files, and renders the same.
func TestPackage(t *testing.T) {
	archive, err := chartutil.Save(loadChart(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}

	packaged, err := loader.Load(archive)
	if err != nil {
		t.Fatal(err)
	}

	all := everything(t)

	got, err := renderFiles(packaged, all)
	if err != nil {
		t.Fatal(err)
	}

	want, err := renderFiles(loadChart(t), all)
	if err != nil {
		t.Fatal(err)
	}

	equal(t, "packaged", got, want)
}
