package charttest

import (
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/lint"
)

// refusal is a set of values and a part of the message by which it is refused.
type refusal struct {
	over values
	want string
}

func mustRefuse(t *testing.T, cases map[string]refusal) {
	t.Helper()

	for name, tc := range cases {
		_, err := renderFiles(loadChart(t), tc.over)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v\nwant %s", name, err, tc.want)
		}
	}
}

// Values that cannot work are refused, and the message names the value.
func TestRefusedValues(t *testing.T) {
	mustRefuse(t, map[string]refusal{
		"unknown":             {set("contorl.enabled", true), "additional properties 'contorl' not allowed"},
		"unknown, deeper":     {set("mig.enabled", true), "at '/mig': additional properties 'enabled' not allowed"},
		"mode":                {set("control.mode", "aply"), "at '/control/mode': value must be one of 'plan', 'apply'"},
		"a text for a switch": {set("mig.monitor", "yes"), "at '/mig/monitor': got string, want boolean"},
		"port":                {set("web.port", 0), "at '/web/port': minimum: got 0, want 1"},
		"relative folder":     {set("state.hostPath", "state"), "at '/state/hostPath': 'state' does not match pattern"},
		"no collector": {set("collectors", []any{"+Pipes,-ecc"}),
			"at '/collectors/0': '+Pipes,-ecc' does not match pattern"},
		"no flag": {set("args", []any{"log.level=debug"}),
			"at '/args/0': 'log.level=debug' does not match pattern"},
		"tag as digest": {set("image.digest", "latest"), "at '/image/digest': 'latest' does not match pattern"},
		"control, not root": {merge(set("control.enabled", true), set("runAsUser", 65532)),
			"runAsUser: control.enabled needs root"},
		"MIG, not root": {merge(set("mig.monitor", true), set("runAsUser", 65532)), "runAsUser: mig.monitor needs root"},
		"relative folder of the checkpoint": {set("kubelet.checkpoint.hostPath", "device-plugins"),
			"at '/kubelet/checkpoint/hostPath': 'device-plugins' does not match pattern"},
		"kernel log, not root": {merge(set("kernelLog.enabled", true), set("privileged", true), set("runAsUser", 65532)),
			"runAsUser: kernelLog.enabled needs root"},
		"kernel log without a device": {set("kernelLog.enabled", true), "kernelLog.deviceResource: without privileged"},
		"a resource without a domain": {merge(set("kernelLog.enabled", true), set("kernelLog.deviceResource", "kmsg")),
			"at '/kernelLog/deviceResource': 'kmsg' does not match pattern"},
		"evidence, not root": {merge(set("advise.keepEvidence", true), set("runAsUser", 65532)),
			"runAsUser: advise.keepEvidence needs root"},
		"control, no kubelet": {merge(set("control.enabled", true), set("kubelet.podResources.enabled", false)),
			"kubelet.podResources.enabled: control.enabled needs it"},
		"labels without pods": {set("podMetadata.labels", []any{"team"}), "podMetadata.enabled: podMetadata.labels"},
		"evidence without advice": {merge(set("advise.enabled", false), set("advise.keepEvidence", true)),
			"advise.enabled: advise.keepEvidence needs it"},
		"two servers on a port": {merge(readValues(t, "control"), set("control.network.port", 9401)),
			"control.network.port: it is web.port, too"},
		"kubectl mig without a name": {set("control.kubectl.caCertificate", "PEM"),
			"control.kubectl: caCertificate and serverName need each other"},
		"kubectl mig without tokens": {set("control.kubectl", kubectlValues()),
			"control.network.kubernetesTokens: control.kubectl.caCertificate needs it"},
		"surge of control": {merge(set("control.enabled", true), set("updateStrategy.rollingUpdate.maxSurge", 1)),
			"updateStrategy.rollingUpdate.maxSurge: with control.enabled"},
		"surge of the node's ports": {merge(set("hostNetwork", true),
			set("updateStrategy.rollingUpdate.maxSurge", "10%")),
			"updateStrategy.rollingUpdate.maxSurge: with control.enabled or hostNetwork"},
		"policy of the node": {merge(set("hostNetwork", true), set("networkPolicy.enabled", true)),
			"networkPolicy.enabled: a NetworkPolicy does not hold for pods with hostNetwork"},
		"everyone's account": {merge(set("podMetadata.enabled", true), set("serviceAccount.create", false)),
			"serviceAccount.name: without serviceAccount.create"},
		"constraints for everyone": {merge(set("openshift.createSCC", true), set("serviceAccount.create", false)),
			"serviceAccount.name: without serviceAccount.create"},
		"restore without apply": {merge(set("control.enabled", true), set("control.restore", true)),
			"control.restore: it needs control.mode: apply"},
		"network without secret": {merge(set("control.enabled", true), set("control.network.enabled", true)),
			"control.network.existingSecret: control.network.enabled needs a Secret"},
		"scheme without TLS": {set("web.probeScheme", "HTTPS"), "web.probeScheme: it is for web.existingSecret"},
		"scraped twice": {merge(set("serviceMonitor.enabled", true), set("podMonitor.enabled", true)),
			"serviceMonitor, podMonitor: enable one of them"},
		"monitor without service": {merge(set("serviceMonitor.enabled", true), set("service.enabled", false)),
			"service.enabled: serviceMonitor needs it"},
	})
}

// TestRefusedDevicePlugins: the rights to restart a device plugin are not given without what limits
// them, unless that is asked for.
func TestRefusedDevicePlugins(t *testing.T) {
	plugin := merge(readValues(t, "control", "device-plugin"))
	mustRefuse(t, map[string]refusal{
		"without control": {readValues(t, "device-plugin"), "control.enabled: control."},
		"without cordon":  {merge(plugin, set("control.cordon", false)), "control.cordon: control.devicePlugin needs it"},
		"without labels": {merge(readValues(t, "control"), set("control.devicePlugin.namespace", "gpu-operator")),
			"control.devicePlugin: namespace and labels need each other"},
		"without a namespace": {merge(readValues(t, "control"), set("control.devicePlugin.labels", values{"app": "x"})),
			"control.devicePlugin: namespace and labels need each other"},
		"a selector as a label": {merge(plugin, set("control.devicePlugin.labels", values{"app": "a' || true || '"})),
			"at '/control/devicePlugin/labels/app'"},
		"another policy": {merge(plugin, set("control.devicePlugin.admissionPolicy", "maybe")),
			"at '/control/devicePlugin/admissionPolicy': value must be one of 'create', 'none'"},
	})

	if _, err := renderFor("1.29", loadChart(t), merge(plugin, set("rbac.nodePolicy", "none"))); err == nil ||
		!strings.Contains(err.Error(), "control.devicePlugin.admissionPolicy: Kubernetes before 1.30") {
		t.Errorf("a cluster without admission policies: %v", err)
	}

	none := merge(plugin, set("control.devicePlugin.admissionPolicy", "none"), set("rbac.nodePolicy", "none"))

	files, err := renderAll("1.29", loadChart(t), none)
	if err != nil {
		t.Fatal(err)
	}

	if text := files["mig-exporter/templates/deviceplugin.yaml"]; !strings.Contains(text, "kind: Role\n") ||
		strings.Contains(text, "ValidatingAdmissionPolicy") {
		t.Errorf("admissionPolicy none:\n%s", text)
	}

	if !strings.Contains(files[notes], "the token of one node can delete all pods of gpu-operator") {
		t.Errorf("notes:\n%s", files[notes])
	}
}

// TestRefusedNodeRights: the rights to change nodes are not given without what limits them, unless
// that is asked for.
func TestRefusedNodeRights(t *testing.T) {
	mustRefuse(t, map[string]refusal{
		"Events without control": {set("nodeStatus.events", true), "control.enabled: nodeStatus.events needs it"},
		"another policy": {set("rbac.nodePolicy", "maybe"),
			"at '/rbac/nodePolicy': value must be one of 'create', 'none'"},
	})

	for _, over := range []values{
		set("nodeStatus.conditions", true), merge(set("control.enabled", true), set("control.cordon", true)),
	} {
		if _, err := renderFor("1.29", loadChart(t), over); err == nil ||
			!strings.Contains(err.Error(), "rbac.nodePolicy: Kubernetes before 1.30") {
			t.Errorf("a cluster without admission policies: %v", err)
		}

		files, err := renderFor("1.29", loadChart(t), merge(over, set("rbac.nodePolicy", "none")))
		if err != nil {
			t.Fatal(err)
		}

		if text := files["mig-exporter/templates/node.yaml"]; strings.Contains(text, "ValidatingAdmissionPolicy") {
			t.Errorf("nodePolicy none:\n%s", text)
		}
	}
}

// TestRefusedDrivers: the same for the ways to the driver and to DCGM.
func TestRefusedDrivers(t *testing.T) {
	mustRefuse(t, map[string]refusal{
		"MIG, privileged, not root": {merge(readValues(t, "gke"), set("runAsUser", 65532)),
			"runAsUser: mig.monitor needs root"},
		"embedded DCGM, not root": {merge(set("dcgm.mode", "embedded"), set("runAsUser", 65532)),
			"runAsUser: dcgm.mode embedded needs root"},
		"driver without devices": {set("driver.hostPath", "/opt/nvidia"), "driver.hostPath: it needs privileged: true"},
		"off, as YAML reads it":  {set("dcgm.mode", false), "at '/dcgm/mode': value must be one of 'off', 'remote'"},
		"remote DCGM, where":     {set("dcgm.mode", "remote"), "dcgm.address: dcgm.mode remote needs the address"},
		"no port":                {set("dcgm.address", "dcgm"), "at '/dcgm/address': 'dcgm' does not match pattern"},
		"port too high":          {set("dcgm.address", "dcgm:0999999"), "at '/dcgm/address': 'dcgm:0999999' does not match"},
		"a port after a path":    {set("dcgm.address", "unix:///run/a:99"), "at '/dcgm/address': 'unix:///run/a:99' does not"},
		"a space":                {set("dcgm.address", "/run/x #y"), "at '/dcgm/address': '/run/x #y' does not match pattern"},
		"address, no DCGM":       {set("dcgm.address", "dcgm:5555"), "dcgm.address: it needs dcgm.mode: remote"},
		"address, embedded": {merge(set("dcgm.mode", "embedded"), set("dcgm.address", "dcgm:5555")),
			"dcgm.address: it needs dcgm.mode: remote"},
		"no device of CDI": {set("driver.nriDevice", "all"), "at '/driver/nriDevice': 'all' does not match pattern"},
		"two ways to the driver": {merge(readValues(t, "gpu-operator"), set("driver.nriDevice", management)),
			"driver.nriDevice: with the NRI plugin there is no runtime class"},
	})
}

// TestValuesWithoutEffect: a value that does nothing without a switch is refused, and the message
// names both.
func TestValuesWithoutEffect(t *testing.T) {
	control := set("control.enabled", true)

	noPods := set("kubelet.podResources.enabled", false)
	for _, tc := range []struct {
		value string
		to    any
		with  values
		needs string
	}{
		{"control.mode", "apply", nil, "control.enabled: control.mode=apply"},
		{"control.cordon", true, nil, "control.enabled: control.cordon"},
		{"control.restore", true, nil, "control.enabled: control.restore"},
		{"control.allowGid", 0, nil, "control.enabled: control.allowGid"},
		{"control.layouts.existingConfigMap", "layouts", nil, "control.enabled: control.layouts.existingConfigMap"},
		{"control.network.enabled", true, nil, "control.enabled: control.network.enabled"},
		{"control.network.hostPort", 9402, control, "control.network.enabled: control.network.hostPort"},
		{"control.network.existingSecret", "s", control, "control.network.enabled: control.network.existingSecret"},
		{"control.network.kubernetesTokens", true, control, "control.network.enabled: control.network.kubernetesTokens"},
		{"control.network.audiences", []any{"a"}, control, "control.network.enabled: control.network.audiences"},
		{"networkPolicy.controlFrom", []any{values{}}, control, "control.network.enabled: networkPolicy.controlFrom"},
		{"control.network.hostPort", 9402, nil, "control.network.enabled: control.network.hostPort"},
		{"control.kubectl.runs", true, nil, "control.kubectl.caCertificate: control.kubectl.runs"},
		{"control.kubectl.evict", true, nil, "control.kubectl.runs: control.kubectl.evict"},
		{"control.kubectl.accounts.get", true, nil, "control.kubectl.caCertificate: control.kubectl.accounts.get"},
		{"podMetadata.enabled", true, noPods, "kubelet.podResources.enabled: podMetadata.enabled"},
		{"prometheusRule.inference", true, nil, "prometheusRule.enabled: prometheusRule.inference"},
		{"advise.serverMetrics", true, nil, "podMetadata.enabled: advise.serverMetrics"},
		{"advise.serverMetrics", true, set("advise.enabled", false), "advise.enabled: advise.serverMetrics"},
		{"networkPolicy.serversTo", []any{values{}}, nil, "advise.serverMetrics: networkPolicy.serversTo"},
		{"kernelLog.deviceResource", "squat.ai/kmsg", nil, "kernelLog.enabled: kernelLog.deviceResource"},
		{"hostProcesses.enabled", true, noPods, "kubelet.podResources.enabled: hostProcesses.enabled"},
	} {
		_, err := renderFiles(loadChart(t), merge(tc.with, set(tc.value, tc.to)))
		if err == nil || !strings.Contains(err.Error(), tc.needs+" needs it") {
			t.Errorf("%s=%v: got %v\nwant %s needs it", tc.value, tc.to, err, tc.needs)
		}
	}
}

// TestNotes: what helm install prints says what is off, and that an image without a registry is
// pulled from nowhere.
func TestNotes(t *testing.T) {
	for _, tc := range []struct {
		line  string
		given values
	}{
		{"image.repository names no registry", set("image.repository", "registry.example.com/mig-exporter")},
		{"mig.monitor is off", set("mig.monitor", true)},
		{"podMetadata is off", set("podMetadata.enabled", true)},
	} {
		for _, over := range []values{{}, tc.given} {
			files, err := renderAll(kubernetes, loadChart(t), over)
			if err != nil {
				t.Fatal(err)
			}

			if said := strings.Contains(files[notes], tc.line); said != (len(over) == 0) {
				t.Errorf("%v: %q is said: %v\n%s", over, tc.line, said, files[notes])
			}
		}
	}
}

// TestNotesOnHolders: of which holders nothing is known, in clusters with DRA, and without a source
// besides the kubelet's list.
func TestNotesOnHolders(t *testing.T) {
	const claims, sources = "The cluster has DRA", "The kubelet's checkpoint is not read"
	user := set("runAsUser", 65532)

	reads := merge(set("podMetadata.enabled", true), set("podMetadata.resourceClaims", true))
	for name, tc := range map[string]struct {
		over   values
		groups []string
		want   []string
	}{
		"by default":               {values{}, nil, nil},
		"DRA":                      {values{}, []string{"resource.k8s.io/v1"}, []string{claims}},
		"DRA of Kubernetes 1.32":   {values{}, []string{"resource.k8s.io/v1beta1"}, []string{claims}},
		"DRA, pods alone":          {set("podMetadata.enabled", true), []string{"resource.k8s.io/v1"}, []string{claims}},
		"DRA with claims":          {reads, []string{"resource.k8s.io/v1"}, nil},
		"DRA with control":         {readValues(t, "control"), []string{"resource.k8s.io/v1"}, nil},
		"no pods":                  {set("kubelet.podResources.enabled", false), []string{"resource.k8s.io/v1"}, nil},
		"another user":             {user, nil, []string{sources}},
		"no checkpoint":            {set("kubelet.checkpoint.enabled", false), nil, []string{sources}},
		"no checkpoint, but pods":  {merge(set("kubelet.checkpoint.enabled", false), set("podMetadata.enabled", true)), nil, nil},
		"another user, no holders": {merge(user, set("kubelet.podResources.enabled", false)), nil, nil},
	} {
		files, err := renderAll(kubernetes, loadChart(t), tc.over, tc.groups...)
		if err != nil {
			t.Fatal(err)
		}

		for _, line := range []string{claims, sources} {
			if said := strings.Contains(files[notes], line); said != slices.Contains(tc.want, line) {
				t.Errorf("%s: %q is said: %v\n%s", name, line, said, files[notes])
			}
		}
	}
}

// TestOwnAccount: a service account of another's making gets the rights, and a release without any
// may use the namespace's default.
func TestOwnAccount(t *testing.T) {
	without := set("serviceAccount.create", false)

	pod, _ := container(t, render(t, without))
	if pod["serviceAccountName"] != "default" {
		t.Errorf("no account: %v", pod["serviceAccountName"])
	}

	objects := render(t, merge(without, set("serviceAccount.name", "gpu"), set("podMetadata.enabled", true)))
	equal(t, "subjects", find(t, objects, "ClusterRoleBinding")["subjects"],
		[]any{object{"kind": "ServiceAccount", "name": "gpu", "namespace": namespace}})

	for _, o := range objects {
		if o["kind"] == "ServiceAccount" {
			t.Errorf("%s is the chart's", describe(o))
		}
	}
}

// TestNotRoot: another user than root sees whole GPUs, and pods if a group may read the kubelet's
// socket.
func TestNotRoot(t *testing.T) {
	pod, c := container(t, render(t, merge(set("runAsUser", 65532), set("runAsGroup", 65532),
		set("supplementalGroups", []any{1234}))))
	equal(t, "pod", pod["securityContext"], object{"runAsUser": 65532, "runAsGroup": 65532, "runAsNonRoot": true,
		"supplementalGroups": []any{1234}, "seccompProfile": object{"type": "RuntimeDefault"}})
	equal(t, "container", c["securityContext"], object{"readOnlyRootFilesystem": true,
		"allowPrivilegeEscalation": false, "capabilities": object{"drop": []any{"ALL"}}})
}

// TestHighIDs: Helm reads the numbers of a values file as floating-point ones; ids, which OpenShift
// has above 10^9, stay integers.
func TestHighIDs(t *testing.T) {
	const high = 1000660000
	pod, _ := container(t, render(t, merge(set("runAsUser", float64(high)), set("runAsGroup", float64(high)),
		set("supplementalGroups", []any{float64(high)}), set("web.existingSecret", "web"))))
	equal(t, "pod", pod["securityContext"], object{"runAsUser": high, "runAsGroup": high, "runAsNonRoot": true,
		"supplementalGroups": []any{high}, "fsGroup": high, "seccompProfile": object{"type": "RuntimeDefault"}})

	_, c := container(t, render(t, merge(set("control.enabled", true), set("control.allowGid", float64(high)))))
	if args := c["args"].([]any); !slices.Contains(args, any("--control.allow-gid=1000660000")) {
		t.Errorf("arguments %v", args)
	}
}

// TestNotRootReadsSecrets: the files of a Secret are root's, mode 0440; the pod's fsGroup gives
// them to its group.
func TestNotRootReadsSecrets(t *testing.T) {
	secret := set("web.existingSecret", "web")

	pod, _ := container(t, render(t, merge(secret, set("runAsUser", 65532), set("runAsGroup", 65532))))
	if group := at(pod, "securityContext", "fsGroup"); group != 65532 {
		t.Errorf("another user: fsGroup %v", group)
	}

	pod, _ = container(t, render(t, secret))
	if group := at(pod, "securityContext", "fsGroup"); group != nil {
		t.Errorf("root: fsGroup %v", group)
	}
}

// TestLint: helm lint has nothing to say.
func TestLint(t *testing.T) {
	for name, files := range profiles() {
		for _, message := range lint.All(chartDir, readValues(t, files...), namespace, true).Messages {
			t.Errorf("%s: %v", name, message)
		}
	}
}

// TestScrapeTimeout: Prometheus takes no job whose timeout is longer than its interval. Without an
// interval there is nothing to compare with.
func TestScrapeTimeout(t *testing.T) {
	for _, monitor := range []string{"serviceMonitor", "podMonitor"} {
		for _, tc := range []struct {
			interval, timeout string
			refused           bool
		}{
			{"15s", "30s", true},
			{"30s", "1m", true},
			{"90s", "1m31s", true},
			{"1m30s", "91s", true},
			{"1m30s", "90s1ms", true},
			{"500ms", "1s", true},
			{"59m59s", "1h", true},
			{"6d", "1w", true},
			{"9s", "10s", true}, // longer as a number, shorter as a text
			{"08s", "9s", true}, // decimal, not octal
			{"010s", "9s", false},
			{"15s", "15s", false},
			{"1m30s", "90s", false},
			{"1s", "1000ms", false},
			{"1h", "59m59s999ms", false},
			{"1m", "", false},
			{"", "10s", false},
		} {
			over := merge(set(monitor+".enabled", true), set(monitor+".interval", tc.interval),
				set(monitor+".scrapeTimeout", tc.timeout))
			_, err := renderFiles(loadChart(t), over)

			want := monitor + ".scrapeTimeout: " + tc.timeout + " is longer than " + monitor + ".interval, " + tc.interval + ";"
			if tc.refused && (err == nil || !strings.Contains(err.Error(), want)) || !tc.refused && err != nil {
				t.Errorf("%s of %q, timeout %q: got %v, want refused: %v", monitor, tc.interval, tc.timeout, err, tc.refused)
			}
		}
	}
}

// TestMonitorDurations: durations are those of Prometheus' operator, whose units come in order.
func TestMonitorDurations(t *testing.T) {
	for _, duration := range []string{"30", "30s1m", "1.5m", "soon"} {
		mustRefuse(t, map[string]refusal{
			duration: {set("serviceMonitor.interval", duration), "at '/serviceMonitor/interval': '" + duration + "' does not match"},
		})
	}
}
