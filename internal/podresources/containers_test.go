package podresources

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	idA = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	idB = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
)

func TestContainerIDs(t *testing.T) {
	const uid = "2f0b7c1e-8a53-4f0e-9d8e-3b1f6f8f0f11"

	unit := strings.ReplaceAll(uid, "-", "_")
	for _, tc := range []struct {
		name, cgroup string
		want         []string
	}{
		{"v2, systemd, containerd", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + unit +
			".slice/cri-containerd-" + idA + ".scope\n", []string{idA}},
		{"v2, cgroupfs", "0::/kubepods/besteffort/pod" + uid + "/" + idA + "\n", []string{idA}},
		{"v2, CRI-O", "0::/kubepods.slice/kubepods-pod" + unit + ".slice/crio-" + idA + ".scope\n", []string{idA}},
		{"v2, CRI-O with a container cgroup below", "0::/kubepods.slice/kubepods-pod" + unit + ".slice/crio-" + idA +
			".scope/container\n", []string{idA}},
		{"v2, docker", "0::/kubepods.slice/kubepods-pod" + unit + ".slice/docker-" + idA + ".scope\n", []string{idA}},
		{"v2, seen from another cgroup namespace", "0::/../../kubepods-pod" + unit + ".slice/cri-containerd-" + idA +
			".scope\n", []string{idA}},
		{"v1", "12:devices:/kubepods/pod" + uid + "/" + idA + "\n3:cpu,cpuacct:/kubepods/pod" + uid + "/" + idA +
			"\n1:name=systemd:/kubepods/pod" + uid + "/" + idA + "\n", []string{idA}},
		{"v1, containerd with another driver than the kubelet",
			"11:memory:/system.slice/containerd.service/kubepods-besteffort-pod" + unit + ".slice:cri-containerd:" + idA + "\n",
			[]string{idA}},
		{"docker without Kubernetes", "0::/docker/" + idA + "\n", []string{idA}},
		{"a node in a container", "0::/docker/" + idA + "/kubelet.slice/kubepods.slice/cri-containerd-" + idB + ".scope\n",
			[]string{idB, idA}},
		{"systemd in a container", "0::/kubepods/pod" + uid + "/" + idA + "/init.scope\n", []string{idA}},
		{"a login session", "0::/user.slice/user-1000.slice/session-2.scope\n", nil},
		{"a kernel thread", "0::/\n", nil},
		{"an id that is too long", "0::/kubepods/a" + idA + "\n", nil},
		{"an id in upper case", "0::/kubepods/" + strings.ToUpper(idA) + "\n", nil},
		{"nothing", "", nil},
		{"garbage", "\x00\n::\n0:\n", nil},
	} {
		if got := containerIDs(tc.cgroup); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}

func FuzzContainerIDs(f *testing.F) {
	f.Add("0::/kubepods/besteffort/podx/" + idA + "\n")
	f.Add("11:memory:/system.slice/containerd.service/kubepods.slice:cri-containerd:" + idA + "\n0::/docker/" + idB)
	f.Fuzz(func(t *testing.T, cgroup string) {
		for _, id := range containerIDs(cgroup) {
			cmptest.Equal(t, "length of "+id, len(id), containerIDLen)

			if !isHex(id) || !strings.Contains(cgroup, id) {
				t.Errorf("%q is not a hexadecimal part of %q", id, cgroup)
			}
		}
	})
}

func TestParseLogName(t *testing.T) {
	want := gpu.Container{Namespace: "vision", Pod: "resnet-0", Name: "side-car"}
	id, got, ok := parseLogName("resnet-0_vision_side-car-" + idA + ".log")
	cmptest.Equal(t, "valid name", ok, true)
	cmptest.Equal(t, "id", id, idA)
	cmptest.Equal(t, "container", got, want)
	cut := func(pod string) string { return (pod + "_ns_main-" + idA)[:251] + ".log" }
	id, got, ok = parseLogName(cut(strings.Repeat("p", 251-len("_ns_main-")-20)))
	cmptest.Equal(t, "valid truncated name", ok, true)
	cmptest.Equal(t, "truncated id", id, idA[:20])
	cmptest.Equal(t, "container of a truncated name", got.Name, "main")

	for _, name := range []string{
		"", ".log", "a.log", "a_b_c.log", "a_b_c-" + idA, "a_b_c_d-" + idA + ".log", "a_b_c-" + idA[1:] + ".log",
		"a_b_c-" + idA + "0.log",
		"a_b_c-" + strings.ToUpper(idA) + ".log", cut(strings.Repeat("p", 251-len("_ns_main-")-5)),
	} {
		if id, got, ok := parseLogName(name); ok {
			t.Errorf("parseLogName(%q) = %q, %+v, want a refusal", name, id, got)
		}
	}
}

// fakeHost is a /proc and a directory of container logs.
type fakeHost struct {
	t          *testing.T
	proc, logs string
	now        time.Time
	log        bytes.Buffer
}

func newHost(t *testing.T) *fakeHost {
	t.Helper()
	h := &fakeHost{t: t, proc: t.TempDir(), logs: t.TempDir(), now: time.Unix(1000, 0)}

	return h
}

func (h *fakeHost) containers() *Containers {
	return NewContainers(ContainersOptions{
		ProcDir: h.proc, LogDir: h.logs, Now: func() time.Time { return h.now }, Logger: log.NewLogfmtLogger(&h.log),
	})
}

func (h *fakeHost) addProcess(pid int, id string) {
	h.t.Helper()

	dir := filepath.Join(h.proc, fmt.Sprint(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.t.Fatal(err)
	}

	content := "0::/kubepods.slice/kubepods-podx.slice/cri-containerd-" + id + ".scope\n"
	if err := os.WriteFile(filepath.Join(dir, "cgroup"), []byte(content), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

func (h *fakeHost) addLogLink(pod, id string) {
	h.t.Helper()

	if err := os.Symlink("/nowhere", filepath.Join(h.logs, pod+"_ns_main-"+id+".log")); err != nil {
		h.t.Fatal(err)
	}
}

func wantPod(t *testing.T, c *Containers, pid uint32, pod string) {
	t.Helper()
	got, ok := c.ContainerOf(pid)

	want := gpu.Container{Namespace: "ns", Pod: pod, Name: "main"}
	switch {
	case ok != (pod != ""):
		t.Errorf("process %d: found is %v, want %v", pid, ok, pod != "")
	case ok && got != want:
		t.Errorf("process %d is in %+v, want %+v", pid, got, want)
	}
}

func TestContainerOf(t *testing.T) {
	h := newHost(t)
	h.addProcess(100, idA)
	h.addLogLink("first", idA)
	c := h.containers()
	wantPod(t, c, 100, "first")
	wantPod(t, c, 101, "") // no such process

	// The process id is used again by another container, which was not looked up before.
	h.addProcess(100, idB)
	h.addLogLink("second", idB)
	wantPod(t, c, 100, "second")

	if err := os.RemoveAll(filepath.Join(h.proc, "100")); err != nil {
		t.Fatal(err)
	}

	wantPod(t, c, 100, "")
}

func TestContainerOfFindsALateLink(t *testing.T) {
	h := newHost(t)
	h.addProcess(100, idA)
	c := h.containers()
	wantPod(t, c, 100, "")
	h.addLogLink("late", idA)
	h.now = h.now.Add(retryUnknown - 1)
	wantPod(t, c, 100, "")
	h.now = h.now.Add(1)
	wantPod(t, c, 100, "late")
}

func TestContainerOfInsideAContainerOfThePod(t *testing.T) {
	h := newHost(t)
	h.addProcess(100, idA+".scope/docker/"+idB)
	h.addLogLink("outer", idA)
	wantPod(t, h.containers(), 100, "outer")
}

func TestContainerOfATruncatedName(t *testing.T) {
	h := newHost(t)
	h.addProcess(100, idA)
	pod := strings.Repeat("p", 251-len("_ns_main-")-30)
	h.addLogLink(pod, idA[:30])
	wantPod(t, h.containers(), 100, pod)
}

func TestContainerOfForgetsWhatIsGone(t *testing.T) {
	h := newHost(t)

	c := h.containers()
	for i := range maxUnknown + 10 {
		h.addProcess(100, fmt.Sprintf("%064x", i))
		wantPod(t, c, 100, "")
	}

	if len(c.unknown) > maxUnknown {
		t.Errorf("%d unknown ids are remembered", len(c.unknown))
	}

	h.addProcess(100, idA)
	h.addLogLink("first", idA)
	wantPod(t, c, 100, "first")

	if err := os.Remove(filepath.Join(h.logs, "first_ns_main-"+idA+".log")); err != nil {
		t.Fatal(err)
	}

	h.addProcess(101, idB)
	wantPod(t, c, 101, "")

	if len(c.byID) != 0 {
		t.Errorf("%d containers are remembered of an empty directory", len(c.byID))
	}
}

func (h *fakeHost) wantLogged(text string, times int) {
	h.t.Helper()

	if n := strings.Count(h.log.String(), text); n != times {
		h.t.Errorf("%q was logged %d times, want %d:\n%s", text, n, times, h.log.String())
	}
}

func TestContainerOfSaysThatTheLinksAreMissing(t *testing.T) {
	h := newHost(t)
	h.addProcess(100, idA)

	if err := os.Remove(h.logs); err != nil {
		t.Fatal(err)
	}

	c := h.containers()
	h.wantLogged("container logs", 0) // nothing was looked up

	for range 3 {
		wantPod(t, c, 100, "")
		h.now = h.now.Add(retryUnknown)
	}

	h.wantLogged("container logs", 1)
	h.wantLogged(h.logs, 1)
}

func TestContainerOfSaysThatProcessesAreMissing(t *testing.T) {
	h := newHost(t)

	c := h.containers()
	for i := range uint32(enoughAbsent - 1) {
		wantPod(t, c, i, "")
	}

	h.wantLogged("hostPID", 0)

	for i := range uint32(enoughAbsent) {
		wantPod(t, c, i, "")
	}

	h.wantLogged("hostPID", 1)

	// One process is enough to know that the others have ended.
	h.log.Reset()
	h.addProcess(100, idA)
	c = h.containers()
	wantPod(t, c, 100, "")

	for i := range uint32(2 * enoughAbsent) {
		wantPod(t, c, i, "")
	}

	h.wantLogged("hostPID", 0)
}
