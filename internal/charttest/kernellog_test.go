package charttest

import (
	"slices"
	"testing"
)

// kernelLogFlag is the flag by which the exporter reads the kernel's log.
const kernelLogFlag = "--xid.kernel-log"

// TestKernelLogByDevicePlugin: the container gets CAP_SYSLOG and the device, and nothing else.
func TestKernelLogByDevicePlugin(t *testing.T) {
	over := merge(set("kernelLog.enabled", true), set("kernelLog.deviceResource", "squat.ai/kmsg"))
	pod, c := container(t, render(t, over))

	capabilities, dropped := added(c)
	if !slices.Equal(capabilities, []string{"SYSLOG"}) || !dropped {
		t.Errorf("capabilities %v, others dropped %v", capabilities, dropped)
	}

	equal(t, "privilege escalation", at(c, "securityContext", "allowPrivilegeEscalation"), false)
	equal(t, "privileged", at(c, "securityContext", "privileged"), nil)
	equal(t, "device", at(c, "resources", "limits", "squat.ai/kmsg"), "1")
	equal(t, "limit of memory", at(c, "resources", "limits", "memory"), "192Mi")

	if !slices.Contains(asList(c["args"]), any(kernelLogFlag)) {
		t.Errorf("args: %v", c["args"])
	}

	if _, mounted := mounts(pod, c)["/dev/kmsg"]; mounted {
		t.Error("the node's log is mounted over the device")
	}
}

// TestKernelLogOfAPrivilegedPod: the device is mounted for reading, unless all of /dev is there.
func TestKernelLogOfAPrivilegedPod(t *testing.T) {
	on := set("kernelLog.enabled", true)
	pod, c := container(t, render(t, merge(on, set("privileged", true))))
	equal(t, "mount", mounts(pod, c)["/dev/kmsg"], object{"name": "kmsg", "mountPath": "/dev/kmsg", "readOnly": true})

	pod, c = container(t, render(t, merge(readValues(t, "gke"), on)))
	if _, mounted := mounts(pod, c)["/dev/kmsg"]; mounted {
		t.Error("the log is mounted beside all of /dev")
	}
}

// TestKernelLogIsOff in every profile.
func TestKernelLogIsOff(t *testing.T) {
	for name, objects := range profileObjects(t) {
		_, c := container(t, objects)

		capabilities, _ := added(c)
		if slices.Contains(capabilities, "SYSLOG") || slices.Contains(asList(c["args"]), any(kernelLogFlag)) {
			t.Errorf("%s reads the kernel's log", name)
		}
	}
}
