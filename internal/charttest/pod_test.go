package charttest

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// profileObjects returns the objects of each profile of deploy/manifests.
func profileObjects(t *testing.T) map[string][]object {
	t.Helper()

	all := map[string][]object{}
	for name, files := range profiles() {
		all[name] = render(t, readValues(t, files...))
	}

	return all
}

// variables returns the environment variables of a container that have a value.
func variables(c object) map[string]any {
	all := map[string]any{}

	for _, one := range c["env"].([]any) {
		variable := one.(map[string]any)
		all[variable["name"].(string)] = variable["value"]
	}

	return all
}

// added returns the capabilities of a container, and whether all others are dropped.
func added(c object) (capabilities []string, rest bool) {
	for _, one := range asList(at(c, "securityContext", "capabilities", "add")) {
		capabilities = append(capabilities, one.(string))
	}

	return capabilities, slices.Contains(asList(at(c, "securityContext", "capabilities", "drop")), any("ALL"))
}

func asList(value any) []any {
	list, _ := value.([]any)
	return list
}

// Without CAP_SYS_ADMIN the container toolkit refuses a container with NVIDIA_MIG_MONITOR_DEVICES
// or _CONFIG_DEVICES.
func TestMIGVariablesNeedTheCapability(t *testing.T) {
	for name, objects := range profileObjects(t) {
		_, c := container(t, objects)
		capabilities, dropped := added(c)

		privileged := at(c, "securityContext", "privileged") == true
		if !dropped && !privileged {
			t.Errorf("%s: capabilities are not dropped", name)
		}

		may := privileged || slices.Contains(capabilities, "SYS_ADMIN")

		monitors := variables(c)["NVIDIA_MIG_MONITOR_DEVICES"] == "all"
		if monitors != may {
			t.Errorf("%s: monitors MIG: %v, may: %v", name, monitors, may)
		}

		if at(c, "securityContext", "allowPrivilegeEscalation") == false && may {
			t.Errorf("%s: the API server refuses CAP_SYS_ADMIN without privilege escalation", name)
		}

		if at(c, "securityContext", "readOnlyRootFilesystem") != true {
			t.Errorf("%s: the root file system can be written", name)
		}
	}

	_, c := container(t, render(t, nil))
	if capabilities, dropped := added(c); len(capabilities) > 0 || !dropped {
		t.Errorf("by default: capabilities %v, dropped %v", capabilities, dropped)
	}

	for mode, want := range map[string]any{"plan": nil, "apply": "all"} {
		_, c := container(t, render(t, merge(set("control.enabled", true), set("control.mode", mode))))
		if got := variables(c)["NVIDIA_MIG_CONFIG_DEVICES"]; got != want {
			t.Errorf("%s: NVIDIA_MIG_CONFIG_DEVICES %v, want %v", mode, got, want)
		}
	}
}

// What is mounted from the node can be written in the folders of the state and the control socket
// alone. A privileged container may write the node's /dev, mounted or not.
func TestMounts(t *testing.T) {
	for name, objects := range profileObjects(t) {
		pod, c := container(t, objects)
		hostPaths := map[any]string{}

		for _, one := range asList(pod["volumes"]) {
			if path, ok := at(one, "hostPath", "path").(string); ok {
				hostPaths[at(one, "name")] = path
			}
		}

		for _, one := range asList(c["volumeMounts"]) {
			path, isHost := hostPaths[at(one, "name")]

			writable := at(one, "readOnly") != true
			if path == "/dev" && at(c, "securityContext", "privileged") == true {
				continue
			}

			if isHost && writable && path != "/var/lib/mig-exporter" && path != "/run/mig-exporter" {
				t.Errorf("%s: %s of the node can be written", name, path)
			}

			if strings.Contains(path, ".sock") {
				t.Errorf("%s: %s: a restarted kubelet makes another socket; mount its folder", name, path)
			}
		}

		for _, forbidden := range []string{"hostNetwork", "hostIPC"} {
			if pod[forbidden] == true {
				t.Errorf("%s: %s", name, forbidden)
			}
		}

		if controls := strings.HasPrefix(name, "control"); (pod["hostPID"] == true) != controls {
			t.Errorf("%s: hostPID: %v", name, pod["hostPID"])
		}
	}
}

// TestCheckpoint: every profile reads the kubelet's checkpoint, from a folder that it cannot write.
// One value turns that off, and another user than root, who could not read it, gets none.
func TestCheckpoint(t *testing.T) {
	const mounted = "/var/lib/kubelet/device-plugins"

	folder := func(objects []object) any {
		pod, c := container(t, objects)
		for _, mount := range asList(c["volumeMounts"]) {
			if at(mount, "mountPath") != mounted || at(mount, "readOnly") != true {
				continue
			}

			for _, volume := range asList(pod["volumes"]) {
				if at(volume, "name") == at(mount, "name") {
					return at(volume, "hostPath", "path")
				}
			}
		}

		return nil
	}
	for name, objects := range profileObjects(t) {
		equal(t, name, folder(objects), any(mounted))
		off := merge(readValues(t, profiles()[name]...), set("kubelet.checkpoint.enabled", false))
		equal(t, name+" with the value off", folder(render(t, off)), any(nil))
	}

	for name, tc := range map[string]struct {
		over values
		want any
	}{
		"another user": {set("runAsUser", 65532), nil},
		"no pods":      {set("kubelet.podResources.enabled", false), nil},
		"k0s": {set("kubelet.podResources.hostPath", "/var/lib/k0s/kubelet/pod-resources"),
			"/var/lib/k0s/kubelet/device-plugins"},
		"its own folder": {set("kubelet.checkpoint.hostPath", "/srv/device-plugins"), "/srv/device-plugins"},
	} {
		equal(t, name, folder(render(t, tc.over)), tc.want)
	}
}

// TestPauseLabel: mig-manager ends the pod by this label, so that only the profile of the GPU
// operator has it, and a controlling pod must have none of the operator's, in no place.
func TestPauseLabel(t *testing.T) {
	const label = "nvidia.com/gpu.deploy.dcgm-exporter"

	for name, objects := range profileObjects(t) {
		pod, _ := container(t, objects)

		selected := at(pod, "nodeSelector", label) != nil
		if operator := name == "gpu-operator" || name == "openshift"; selected != operator {
			t.Errorf("%s: selected by %s: %v", name, label, selected)
		}
	}

	const client = "nvidia.com/gpu.deploy.client"

	terms := values{"nodeSelectorTerms": []any{values{"matchExpressions": []any{
		values{"key": client, "operator": "In", "values": []any{"true"}}}}}}
	for want, over := range map[string]values{
		"nodeSelector: " + label:  readValues(t, "gpu-operator"),
		"nodeSelector: " + client: {"nodeSelector": values{client: "true"}},
		"affinity: " + client:     set("affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", terms),
	} {
		_, err := renderFiles(loadChart(t), merge(over, set("control.enabled", true)))
		if err == nil || !strings.Contains(err.Error(), want+" ends the pod") {
			t.Errorf("a controlling pod, %s: %v", want, err)
		}

		if _, err := renderFiles(loadChart(t), over); err != nil {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestRollout: nodes whose driver does not answer have a pod that is not ready; one of them must
// not stop an upgrade.
func TestRollout(t *testing.T) {
	equal(t, "strategy", at(find(t, render(t, nil), "DaemonSet"), "spec", "updateStrategy"),
		object{"type": "RollingUpdate", "rollingUpdate": object{"maxUnavailable": "10%"}})
}

// TestProbes: liveness asks whether the process answers and nothing more, whatever is switched on;
// with a password or a client certificate, which the kubelet has not got, it only connects.
func TestProbes(t *testing.T) {
	plain := object{"httpGet": object{"path": "/-/healthy", "port": "metrics", "scheme": "HTTP"},
		"periodSeconds": 20, "timeoutSeconds": 5, "failureThreshold": 3}

	for name, objects := range profileObjects(t) {
		_, c := container(t, objects)
		equal(t, name, c["livenessProbe"], plain)

		if path := at(c, "readinessProbe", "httpGet", "path"); path != "/-/ready" {
			t.Errorf("%s: readiness: %v", name, path)
		}
	}

	secret := set("web.existingSecret", "web")
	for scheme, want := range map[string]any{
		"":      object{"tcpSocket": object{"port": "metrics"}},
		"HTTPS": object{"httpGet": object{"path": "/-/ready", "port": "metrics", "scheme": "HTTPS"}},
	} {
		_, c := container(t, render(t, merge(secret, set("web.probeScheme", scheme))))
		got := c["readinessProbe"].(map[string]any)
		delete(got, "periodSeconds")
		delete(got, "timeoutSeconds")
		equal(t, "readiness with TLS", got, want)
	}
}

// TestSecrets: certificates and passwords come from Secrets, and no user but root and no group of
// others reads them.
func TestSecrets(t *testing.T) {
	objects := render(t, merge(readValues(t, "control"), set("web.existingSecret", "mig-exporter-web")))
	pod, c := container(t, objects)
	found := map[string]any{}

	for _, one := range asList(pod["volumes"]) {
		if name, ok := at(one, "secret", "secretName").(string); ok {
			found[name] = at(one, "secret", "defaultMode")
		}
	}

	equal(t, "secrets", found, map[string]any{"mig-exporter-control": 0o440, "mig-exporter-web": 0o440})

	for _, flag := range []string{
		"--web.config.file=/etc/mig-exporter/web/web-config.yaml",
		"--control.config.file=/etc/mig-exporter/control/control.yaml",
	} {
		if !slices.Contains(asList(c["args"]), any(flag)) {
			t.Errorf("%s is missing in %v", flag, c["args"])
		}
	}

	for _, o := range objects {
		if o["kind"] == "Secret" {
			t.Errorf("%s is in the chart", describe(o))
		}
	}
}

// TestAppArmor: a controlling pod may see the open files of other processes, by the field or,
// before Kubernetes 1.30, by the annotation; a pod that only reads metrics stays confined.
func TestAppArmor(t *testing.T) {
	for name, objects := range profileObjects(t) {
		_, c := container(t, objects)

		unconfined := at(c, "securityContext", "appArmorProfile", "type") == "Unconfined"
		if unconfined != strings.HasPrefix(name, "control") {
			t.Errorf("%s: unconfined: %v", name, unconfined)
		}
	}

	for version, annotated := range map[string]bool{"1.29": true, "1.30": false} {
		files, err := renderFor(version, loadChart(t), set("control.enabled", true))
		if err != nil {
			t.Fatal(err)
		}

		text := files["mig-exporter/templates/daemonset.yaml"]
		if strings.Contains(text, "apparmor.security.beta.kubernetes.io/mig-exporter: unconfined") != annotated ||
			strings.Contains(text, "appArmorProfile: {type: Unconfined}") == annotated {
			t.Errorf("Kubernetes %s:\n%s", version, text)
		}
	}
}

// TestControlGroup: a process without CAP_CHOWN gives the socket only to a group of its own.
func TestControlGroup(t *testing.T) {
	over := merge(set("control.enabled", true), set("control.allowGid", 2000), set("supplementalGroups", []any{7}))
	pod, c := container(t, render(t, over))
	equal(t, "groups", at(pod, "securityContext", "supplementalGroups"), []any{7, 2000})

	if !slices.Contains(asList(c["args"]), any("--control.allow-gid=2000")) {
		t.Errorf("args: %v", c["args"])
	}
}

// TestFlags: each flag and variable that the chart sets is one of mig-exporter's.
func TestFlags(t *testing.T) {
	sources, err := filepath.Glob(root + "/cmd/mig-exporter/*.go")
	if err != nil || len(sources) == 0 {
		t.Fatal(err)
	}

	var source strings.Builder

	for _, file := range sources {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}

		source.WriteString(readFile(t, strings.TrimPrefix(file, root+"/")))
	}

	all := profileObjects(t)
	all["everything"] = render(t, everything(t))
	all["nothing"] = render(t, values{"web": values{"state": false}, "advise": values{"enabled": false},
		"kubelet": values{"podResources": values{"enabled": false}}})
	checked := map[string]bool{}

	for name, objects := range all {
		_, c := container(t, objects)

		flags := slices.Clone(asList(c["args"]))
		for variable := range variables(c) {
			if rest, ours := strings.CutPrefix(variable, "MIG_EXPORTER_"); ours {
				flags = append(flags, "--"+strings.ReplaceAll(strings.Replace(strings.ToLower(rest), "_", ".", 1), "_", "-"))
			}
		}

		for _, one := range flags {
			flag, _, _ := strings.Cut(strings.TrimPrefix(one.(string), "--"), "=")
			flag = strings.TrimPrefix(flag, "no-")

			checked[flag] = true
			if !strings.Contains(source.String(), strconv.Quote(flag)) {
				t.Errorf("%s: mig-exporter has no flag --%s", name, flag)
			}
		}
	}

	if len(checked) < 15 {
		t.Errorf("only %d flags: %v", len(checked), checked)
	}
}
