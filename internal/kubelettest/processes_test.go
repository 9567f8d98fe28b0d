package kubelettest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// forking returns a container that starts a process for every line that is written to the pipe
// /go/fork. Nothing else in it takes a process id.
func forking(name, resourceName string) corev1.Container {
	c := newContainer(name, resourceName, 1)
	c.Command[3] = "echo devices=$" + allocatedVariable + "; busybox mkfifo /go/fork; " +
		"while :; do if read line < /go/fork; then busybox sleep infinity & fi; done"
	c.VolumeMounts = []corev1.VolumeMount{{Name: "go", MountPath: "/go"}}

	return c
}

// newForkingPod returns a pod with such a container.
func newForkingPod(namespace, name, resourceName string) *corev1.Pod {
	pod := newPod(namespace, name, forking("main", resourceName))
	pod.Spec.Volumes = []corev1.Volume{{Name: "go", VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{}}}}

	return pod
}

// startProcess lets a container of newForkingPod start a process with a certain id in the PID
// namespace of the node: the kernel gives the next process the id after the last one, which can be
// set.
func (c *cluster) startProcess(t *testing.T, pod *corev1.Pod, pid int) {
	t.Helper()
	fifo := filepath.Join("/var/lib/kubelet/pods", string(pod.UID), "volumes/kubernetes.io~empty-dir/go/fork")

	err := await(time.Minute, func() error {
		if err := isInPod(pid, pod); err == nil || !errors.Is(err, os.ErrNotExist) {
			return err // another process may have taken the id
		}

		trigger, err := os.OpenFile(fifo, os.O_WRONLY|syscall.O_NONBLOCK, 0) // fails until the container reads
		if err != nil {
			return err
		}
		defer trigger.Close()

		last := strconv.Itoa(pid - 1)
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(last), 0o644); err != nil {
			return err
		}

		if _, err := trigger.WriteString("\n"); err != nil {
			return err
		}

		return await(time.Second, func() error { return isInPod(pid, pod) })
	})
	if err != nil {
		t.Fatalf("start process %d in pod %s: %v", pid, pod.Name, err)
	}
}

// isInPod returns an error unless a process is in a container of the pod, by its cgroup.
func isInPod(pid int, pod *corev1.Pod) error {
	cgroup, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err == nil && !strings.Contains(string(cgroup), "pod"+string(pod.UID)+"/") {
		err = fmt.Errorf("process %d is in %s", pid, cgroup)
	}

	return err
}

// simulatedProcess is a process that the simulated driver reports.
type simulatedProcess struct {
	pid    int
	device string
	memory float64
}

// simulatedProcesses returns the processes of a device, which testdata/node.yaml has.
func simulatedProcesses(t *testing.T, device string) []simulatedProcess {
	t.Helper()

	families, err := scrape()
	if err != nil {
		t.Fatal(err)
	}

	var list []simulatedProcess

	for _, m := range families["nvidia_gpu_process_memory_used_bytes"].GetMetric() {
		pid, err := strconv.Atoi(label(m, "pid"))
		if err != nil {
			t.Fatal(err)
		}

		if p := (simulatedProcess{pid, deviceOf(m), m.GetGauge().GetValue()}); p.device == device {
			list = append(list, p)
		}
	}

	return list
}

// TestProcessToContainer: a process that the driver reports is found in its container by its
// cgroup. The ids are those that the simulated driver reports, and real processes are started with
// them.
func TestProcessToContainer(t *testing.T) {
	largest, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil || strings.TrimSpace(string(largest)) != pidMax {
		t.Skipf("NOT TESTED: process ids end at %s here, and raising that would change the host before Linux 6.14", largest)
	}

	c := startShared(t)
	shared := simulatedProcesses(t, c.layout.GPUs[1].UUID)
	split, _ := c.layout.gpuInstance(2, 4)

	part := simulatedProcesses(t, fmt.Sprintf("%s/%d/0", c.layout.GPUs[2].UUID, split))
	if len(shared) != 2 || len(part) != 1 {
		t.Fatalf("the driver reports %v and %v", shared, part)
	}

	running := map[simulatedProcess]*corev1.Pod{
		shared[0]: c.run(t, newForkingPod("ml", "notebook", "nvidia.com/gpu.shared")),
		shared[1]: c.run(t, newForkingPod("chat", "serving", "nvidia.com/gpu.shared")),
		part[0]:   c.run(t, newForkingPod("ml", "part", "nvidia.com/mig-1c.3g.20gb")),
	}
	for process, pod := range running {
		c.startProcess(t, pod, process.pid)
	}

	for process, pod := range running {
		if err := await(time.Minute, func() error { return usesMemory(process, pod) }); err != nil {
			t.Error(err)
		}
	}

	c.checkLiveProcesses(t, running)
}

// usesMemory compares what is shown of a process and of its container with what the driver reports.
func usesMemory(process simulatedProcess, pod *corev1.Pod) error {
	families, err := scrape()
	if err != nil {
		return err
	}

	found := 0

	for _, family := range []string{"nvidia_gpu_process_memory_used_bytes", "nvidia_gpu_container_memory_used_bytes"} {
		for _, m := range families[family].GetMetric() {
			of := label(m, "namespace") == pod.Namespace && label(m, "pod") == pod.Name && label(m, "container") == "main"
			if of && deviceOf(m) == process.device && m.GetGauge().GetValue() == process.memory {
				found++
			}
		}
	}

	if found != 2 {
		return fmt.Errorf("process %d of pod %s, %.0f bytes of %s: found in %d of 2 series", process.pid, pod.Name,
			process.memory, process.device, found)
	}

	return nil
}

// checkLiveProcesses: while the kubelet is down, a holder with a process on its device is confirmed
// by that process alone, and one without is not.
func (c *cluster) checkLiveProcesses(t *testing.T, running map[simulatedProcess]*corev1.Pod) {
	t.Helper()
	idle := c.run(t, newPod("ml", "idle", newContainer("main", "nvidia.com/mig-2g.10gb", 1)))
	want := c.given(t, idle, "main", "exclusive")

	for _, pod := range running {
		sharing := "time-slicing"
		if pod.Name == "part" {
			sharing = "exclusive"
		}

		want = append(want, c.given(t, pod, "main", sharing)...)
	}

	c.awaitHolders(t, want)

	if err := c.killKubelet(); err != nil {
		t.Fatal(err)
	}

	if err := c.kubelet.start(); err != nil {
		t.Fatal(err)
	}

	unconfirmed := map[string]bool{}

	err := await(2*time.Minute, func() error {
		families, err := scrape()
		if err != nil {
			return err
		}

		for _, h := range holdersOf(families) {
			unconfirmed[h.pod] = unconfirmed[h.pod] || h.confirmed != "true"
		}

		document, err := readNodeDocument()
		if err == nil && (document.Node.HoldersIncomplete != "" || !unconfirmed["idle"]) {
			err = errors.New("the kubelet's list is not complete, or was complete throughout")
		}

		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	for _, pod := range running {
		if unconfirmed[pod.Name] {
			t.Errorf("pod %s, of which a process runs on the device, was not confirmed while the kubelet restarted", pod.Name)
		}
	}

	c.awaitHolders(t, want)
}

// TestOpenFilesOfOtherProcesses: what partition control reads of other processes, a pod may read
// with the capability SYS_PTRACE and not without, as docs/partition-control.md says. The simulated
// driver has no files that a process could have open, so that the exporter itself does not ask
// here.
func TestOpenFilesOfOtherProcesses(t *testing.T) {
	c := startShared(t)

	for _, pod := range []struct {
		name  string
		add   []corev1.Capability
		phase corev1.PodPhase
	}{
		{"without-ptrace", nil, corev1.PodFailed},
		{"with-ptrace", []corev1.Capability{"SYS_PTRACE"}, corev1.PodSucceeded},
	} {
		container := newContainer("main", "", 0)
		file := fmt.Sprintf("/proc/%d/fd/1", c.kubelet.process.Process.Pid)
		container.Command = []string{"/bin/busybox", "readlink", file}
		container.SecurityContext = &corev1.SecurityContext{
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: pod.add},
		}
		reader := newPod(monitorsNamespace, pod.name, container)
		reader.Spec.HostPID = true
		reader.Spec.RestartPolicy = corev1.RestartPolicyNever

		created, err := c.client.CoreV1().Pods(monitorsNamespace).Create(c.ctx, reader, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}

		c.deleteAfter(t, reader)

		if _, err := c.awaitPod(c.ctx, created, pod.phase); err != nil {
			t.Error(err)
		}
	}
}
