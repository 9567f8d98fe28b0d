package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestOwnPod(t *testing.T) {
	credentials := t.TempDir()
	if err := os.WriteFile(filepath.Join(credentials, "namespace"), []byte("mig-exporter\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	for _, tt := range []struct {
		name, dir, hostname string
		env                 map[string]string
		want                string
	}{
		{"the downward API", t.TempDir(), "node-1", map[string]string{"POD_NAMESPACE": "a", "POD_NAME": "b"}, "a/b"},
		{"the service account and the host name", credentials, "mig-exporter-x7k2p", nil, "mig-exporter/mig-exporter-x7k2p"},
		{"a name alone", credentials, "node-1", map[string]string{"POD_NAME": "b"}, "mig-exporter/b"},
		{"nothing", t.TempDir(), "node-1", nil, ""},
	} {
		if got := ownPod(func(name string) string { return tt.env[name] }, tt.dir, tt.hostname); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestKubeletMarkLastsUntilTheNodeBoots(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "kubelet-boot")

	mark := kubeletMark{path: path, boot: "boot-1", logger: log.NewNopLogger()}
	if mark.isSet() {
		t.Error("set before a kubelet has answered")
	}

	mark.set()

	if !mark.isSet() || !(kubeletMark{path: path, boot: "boot-1"}).isSet() {
		t.Error("not remembered")
	}

	if (kubeletMark{path: path, boot: "boot-2"}).isSet() {
		t.Error("remembered after a boot")
	}
}

// TestUnreadableKubeletMark: only a file that is not there says that no kubelet has answered.
func TestUnreadableKubeletMark(t *testing.T) {
	if !(kubeletMark{path: t.TempDir(), boot: "boot-1"}).isSet() {
		t.Error("a mark that cannot be read counts as proof of no kubelet")
	}
}

func TestKubernetesFlags(t *testing.T) {
	for _, tt := range []struct{ flag, want string }{
		{"--kubernetes.witness-pod=kube-system/calico-node-*", ""},
		{"--kubernetes.witness-pod=mig-exporter/mig-exporter-x7k2p", ""},
		{"--kubernetes.witness-pod=calico-node", "expected NAMESPACE/NAME"},
		{"--kubernetes.witness-pod=a/b/c", "expected NAMESPACE/NAME"},
		{"--kubernetes.witness-pod=Kube_System/x", "expected NAMESPACE/NAME"},
		{"--kubernetes.witness-pod=a/*b*", "expected NAMESPACE/NAME"},
		{"--kubernetes.checkpoint=relative", "expected an absolute path"},
		{"--kubernetes.checkpoint=", ""},
		{"--kubernetes.socket=", ""},
	} {
		_, err := parseCommandLine([]string{tt.flag}, nil)
		expectError(t, tt.flag, err, tt.want)
	}
}

type pidContainers map[uint32]gpu.Container

func (c pidContainers) ContainerOf(pid uint32) (gpu.Container, bool) {
	found, ok := c[pid]
	return found, ok
}

// TestRunningContainers: a process counts for the device that it runs on, and for what that is a
// part of.
func TestRunningContainers(t *testing.T) {
	a := gpu.Container{Pod: "a"}
	b := gpu.Container{Pod: "b"}
	s := &gpu.Snapshot{Generation: 1, GPUs: []gpu.GPU{{
		Facts: gpu.Facts{UUID: "GPU-1"}, Device: gpu.Device{Up: true},
		Readings: gpu.Readings{Processes: gpu.Some([]gpu.Process{{PID: 1, Instance: gpu.Some(gpu.InstanceID(3)),
			Compute: gpu.Some(gpu.ComputeID(0))}})},
		Instances: []gpu.GPUInstance{
			{ID: 3, ComputeInstances: []gpu.ComputeInstance{{ID: 0, UUID: "MIG-1"}, {ID: 1, UUID: "MIG-2"}}},
			{ID: 5, ComputeInstances: []gpu.ComputeInstance{{ID: 0, UUID: "MIG-3"}}},
		},
	}}}

	r := runningContainers{current: func() *gpu.Snapshot { return s }}
	for _, tt := range []struct {
		container gpu.Container
		device    gpu.DeviceRef
		want      bool
	}{
		{a, gpu.DeviceRef{MIG: "MIG-1"}, true},
		{a, gpu.DeviceRef{GPU: "GPU-1", Instance: gpu.Some(gpu.InstanceID(3))}, true},
		{a, gpu.DeviceRef{GPU: "GPU-1"}, true},
		{a, gpu.DeviceRef{MIG: "MIG-2"}, false},
		{a, gpu.DeviceRef{MIG: "MIG-3"}, false},
		{a, gpu.DeviceRef{MIG: "MIG-4"}, false},
		{b, gpu.DeviceRef{MIG: "MIG-1"}, false},
	} {
		got := r.isRunning(pidContainers{1: a},
			&gpu.Assignment{Device: tt.device, Holder: gpu.Holder{Container: tt.container}})
		if got != tt.want {
			t.Errorf("%s on %+v: %v, want %v", tt.container.Pod, tt.device, got, tt.want)
		}
	}

	early := runningContainers{current: func() *gpu.Snapshot { return nil }}
	if early.isRunning(pidContainers{1: a}, &gpu.Assignment{}) {
		t.Error("something runs before the first Snapshot")
	}
}
