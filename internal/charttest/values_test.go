package charttest

import (
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
)

// Values that cannot work are refused, and the message names the value.
func TestRefusedValues(t *testing.T) {
	for name, tc := range map[string]struct {
		over values
		want string
	}{
		"unknown":             {set("contorl.enabled", true), "additional properties 'contorl' not allowed"},
		"unknown, deeper":     {set("mig.enabled", true), "at '/mig': additional properties 'enabled' not allowed"},
		"mode":                {set("control.mode", "aply"), "at '/control/mode': value must be one of 'plan', 'apply'"},
		"a text for a switch": {set("mig.monitor", "yes"), "at '/mig/monitor': got string, want boolean"},
		"port":                {set("web.port", 0), "at '/web/port': minimum: got 0, want 1"},
		"relative folder":     {set("state.hostPath", "state"), "at '/state/hostPath': 'state' does not match pattern"},
		"no flag": {set("args", []any{"log.level=debug"}),
			"at '/args/0': 'log.level=debug' does not match pattern"},
		"tag as digest": {set("image.digest", "latest"), "at '/image/digest': 'latest' does not match pattern"},
		"control, not root": {merge(set("control.enabled", true), set("runAsUser", 65532)),
			"runAsUser: control.enabled needs root"},
		"MIG, not root": {merge(set("mig.monitor", true), set("runAsUser", 65532)), "runAsUser: mig.monitor needs root"},
		"checkpoint, not root": {merge(set("kubelet.checkpoint.enabled", true), set("runAsUser", 65532)),
			"runAsUser: kubelet.checkpoint needs root"},
		"evidence, not root": {merge(set("advise.keepEvidence", true), set("runAsUser", 65532)),
			"runAsUser: advise.keepEvidence needs root"},
		"control, no kubelet": {merge(set("control.enabled", true), set("kubelet.podResources.enabled", false)),
			"kubelet.podResources.enabled: control.enabled needs it"},
		"driver without devices": {set("driver.hostPath", "/opt/nvidia"), "driver.hostPath: it needs privileged: true"},
		"labels without pods":    {set("podMetadata.labels", []any{"team"}), "podMetadata.enabled: podMetadata.labels"},
		"restore without apply": {merge(set("control.enabled", true), set("control.restore", true)),
			"control.restore: it needs control.mode: apply"},
		"cordon without control": {set("control.cordon", true), "control.enabled: control.network, control.cordon"},
		"network without secret": {merge(set("control.enabled", true), set("control.network.enabled", true)),
			"control.network.existingSecret: control.network.enabled needs a Secret"},
		"tokens without network": {merge(set("control.enabled", true), set("control.network.kubernetesTokens", true)),
			"control.network.enabled: control.network.kubernetesTokens needs it"},
		"scheme without TLS": {set("web.probeScheme", "HTTPS"), "web.probeScheme: it is for web.existingSecret"},
		"scraped twice": {merge(set("serviceMonitor.enabled", true), set("podMonitor.enabled", true)),
			"serviceMonitor, podMonitor: enable one of them"},
		"monitor without service": {merge(set("serviceMonitor.enabled", true), set("service.enabled", false)),
			"service.enabled: serviceMonitor needs it"},
	} {
		_, err := renderFiles(loadChart(t), tc.over)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v\nwant %s", name, err, tc.want)
		}
	}
}

// TestNotRoot: another user than root sees whole GPUs, and pods if a group may read the kubelet's socket.
func TestNotRoot(t *testing.T) {
	pod, c := container(t, render(t, merge(set("runAsUser", 65532), set("runAsGroup", 65532),
		set("supplementalGroups", []any{1234}))))
	equal(t, "pod", pod["securityContext"], object{"runAsUser": 65532, "runAsGroup": 65532, "runAsNonRoot": true,
		"supplementalGroups": []any{1234}, "seccompProfile": object{"type": "RuntimeDefault"}})
	equal(t, "container", c["securityContext"], object{"readOnlyRootFilesystem": true,
		"allowPrivilegeEscalation": false, "capabilities": object{"drop": []any{"ALL"}}})
}

// TestLint: helm lint has nothing to say but that the chart has no icon.
func TestLint(t *testing.T) {
	for name, files := range profiles() {
		for _, message := range lint.All(chartDir, readValues(t, files...), namespace, true).Messages {
			if message.Severity > support.InfoSev || !strings.Contains(message.Err.Error(), "icon is recommended") {
				t.Errorf("%s: %v", name, message)
			}
		}
	}
}
