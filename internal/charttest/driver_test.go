package charttest

import (
	"slices"
	"strings"
	"testing"
)

// management is every device node of the driver, by the name that NVIDIA's tools give it.
const management = "management.nvidia.com/gpu=all"

// mounts returns the mounts of the container by the folder of the node that each has.
func mounts(pod, c object) map[string]object {
	paths := map[any]string{}

	for _, one := range asList(pod["volumes"]) {
		if path, ok := at(one, "hostPath", "path").(string); ok {
			paths[at(one, "name")] = path
		}
	}

	found := map[string]object{}

	for _, one := range asList(c["volumeMounts"]) {
		if path, ok := paths[at(one, "name")]; ok {
			found[path] = one.(map[string]any)
		}
	}

	return found
}

// TestDriverOfTheNode: a pod that starts before its driver sees the devices that appear later,
// since its /dev is the node's, and what an installer mounts over the driver's folder.
func TestDriverOfTheNode(t *testing.T) {
	pod, c := container(t, render(t, readValues(t, "gke")))
	found := mounts(pod, c)
	equal(t, "devices", found["/dev"], object{"name": "dev", "mountPath": "/dev"})
	equal(t, "driver", found["/home/kubernetes/bin/nvidia"], object{"name": "driver", "mountPath": "/usr/local/nvidia",
		"readOnly": true, "mountPropagation": "HostToContainer"})

	for name, objects := range profileObjects(t) {
		pod, c := container(t, objects)
		if _, mounted := mounts(pod, c)["/dev"]; mounted != (name == "gke") {
			t.Errorf("%s: the node's /dev is mounted: %v", name, mounted)
		}
	}
}

// TestNRIPlugin: the annotation names the container, and the device for it.
func TestNRIPlugin(t *testing.T) {
	objects := render(t, merge(readValues(t, "gpu-operator"), set("runtimeClassName", ""),
		set("driver.nriDevice", management)))
	pod, c := container(t, objects)

	annotations := at(find(t, objects, "DaemonSet"), "spec", "template", "metadata", "annotations").(map[string]any)
	if got := annotations["nvidia.cdi.k8s.io/container."+c["name"].(string)]; got != management {
		t.Errorf("annotations: %v", annotations)
	}

	if pod["runtimeClassName"] != nil {
		t.Errorf("runtime class: %v", pod["runtimeClassName"])
	}

	for name, objects := range profileObjects(t) {
		for key := range at(find(t, objects, "DaemonSet"), "spec", "template", "metadata", "annotations").(map[string]any) {
			if strings.HasPrefix(key, "nvidia.cdi.k8s.io/") {
				t.Errorf("%s has the annotation %s", name, key)
			}
		}
	}
}

// TestVisibleDevices: what is asked of the container toolkit reaches it unchanged.
func TestVisibleDevices(t *testing.T) {
	for _, devices := range []string{"all", "void", management} {
		_, c := container(t, render(t, set("driver.visibleDevices", devices)))
		if got := variables(c)["NVIDIA_VISIBLE_DEVICES"]; got != devices {
			t.Errorf("got %v, want %s", got, devices)
		}
	}
}

// TestDCGM: the flags, and the capability without which a host engine in this process may not
// profile.
func TestDCGM(t *testing.T) {
	for name, tc := range map[string]struct {
		dcgm  values
		flags []any
		admin bool
	}{
		"off": {values{"mode": "off"}, nil, false},
		"remote": {values{"mode": "remote", "address": "dcgm:5555"},
			[]any{"--dcgm.address=dcgm:5555"}, false},
		"embedded": {values{"mode": "embedded"}, []any{"--dcgm.address=embedded"}, true},
	} {
		objects := render(t, merge(set("dcgm", tc.dcgm), set("openshift.createSCC", true)))
		_, c := container(t, objects)

		flags := slices.DeleteFunc(slices.Clone(asList(c["args"])), func(flag any) bool {
			return !strings.HasPrefix(flag.(string), "--dcgm.")
		})
		if !slices.Equal(flags, tc.flags) {
			t.Errorf("%s: %v, want %v", name, flags, tc.flags)
		}

		capabilities, dropped := added(c)

		got := []any{slices.Contains(capabilities, "SYS_ADMIN"), at(c, "securityContext", "allowPrivilegeEscalation"), dropped}
		if want := []any{tc.admin, tc.admin, true}; !slices.Equal(got, want) {
			t.Errorf("%s: SYS_ADMIN, allowPrivilegeEscalation and drops all others: %v, want %v", name, got, want)
		}

		constraints := find(t, objects, "SecurityContextConstraints")
		if constraints["allowPrivilegeEscalation"] != tc.admin {
			t.Errorf("%s: constraints %v", name, constraints)
		}
	}
}

// TestCollectors: the list is one flag, which is left out where the list is empty.
func TestCollectors(t *testing.T) {
	for want, list := range map[string][]any{
		"":                         {},
		"--collectors=+pipes,-ecc": {"+pipes", "-ecc"},
		"--collectors=info,up":     {"info", "up"},
	} {
		_, c := container(t, render(t, set("collectors", list)))

		var got string

		for _, arg := range asList(c["args"]) {
			if strings.HasPrefix(arg.(string), "--collectors") {
				got += arg.(string)
			}
		}

		if got != want {
			t.Errorf("%v: %q, want %q", list, got, want)
		}
	}
}

// TestHostNetwork: names of services are still found, and OpenShift's constraints allow it and its
// port.
func TestHostNetwork(t *testing.T) {
	for _, on := range []bool{true, false} {
		objects := render(t, merge(set("hostNetwork", on), set("openshift.createSCC", true)))

		pod, _ := container(t, objects)
		if (pod["hostNetwork"] == true) != on || (pod["dnsPolicy"] == "ClusterFirstWithHostNet") != on {
			t.Errorf("%v: hostNetwork %v, dnsPolicy %v", on, pod["hostNetwork"], pod["dnsPolicy"])
		}

		constraints := find(t, objects, "SecurityContextConstraints")
		if constraints["allowHostNetwork"] != on || constraints["allowHostPorts"] != on {
			t.Errorf("%v: constraints %v", on, constraints)
		}
	}
}

// TestInitContainers: they come into the pod as they are given.
func TestInitContainers(t *testing.T) {
	wait := []any{values{"name": "wait", "image": "registry.example.com/wait:1"}}
	pod, _ := container(t, render(t, set("initContainers", wait)))
	equal(t, "init containers", pod["initContainers"], wait)
}

// TestClusterNames: what is the cluster's has the namespace in its name, and the pod asks for the
// constraints that are made for it.
func TestClusterNames(t *testing.T) {
	objects := render(t, everything(t))
	kinds := map[any]int{
		"ClusterRole": 0, "ClusterRoleBinding": 0, "SecurityContextConstraints": 0, "ValidatingAdmissionPolicy": 0,
		"ValidatingAdmissionPolicyBinding": 0,
	}

	for _, o := range objects {
		if _, ok := kinds[o["kind"]]; !ok {
			continue
		}

		kinds[o["kind"]]++

		if name := at(o, "metadata", "name").(string); !strings.HasPrefix(name, namespace+"-mig-exporter") {
			t.Errorf("%s %s", o["kind"], name)
		}
	}

	for kind, count := range kinds {
		if count == 0 {
			t.Errorf("no %s", kind)
		}
	}

	annotations := at(find(t, objects, "DaemonSet"), "spec", "template", "metadata", "annotations")
	if asked := at(annotations, "openshift.io/required-scc"); asked != namespace+"-mig-exporter" {
		t.Errorf("the pod asks for the constraints %v", asked)
	}
}
