package podresources

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// writeCgroup writes the cgroup file of a process, or of "self".
func (h *fakeHost) writeCgroup(process, cgroup string) {
	h.t.Helper()

	dir := filepath.Join(h.proc, process)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.t.Fatal(err)
	}

	if err := os.WriteFile(filepath.Join(dir, "cgroup"), []byte(cgroup), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// TestLiveContainers: those of the kubelet that have a process, with the UIDs of their pods.
func TestLiveContainers(t *testing.T) {
	h := newHost(t)
	h.addLogLink("a", idA)
	h.addLogLink("ended", idB)
	h.writeCgroup("12", "0::/kubepods/besteffort/pod"+uidA+"/"+idA+"\n")
	h.writeCgroup("13", "0::/user.slice\n")
	h.writeCgroup("irq", "0::/kubepods/besteffort/pod"+uidB+"/"+idB+"\n") // not a process
	live := h.containers().readLive()

	a := gpu.Container{Namespace: "ns", Pod: "a", Name: "main"}

	ended := gpu.Container{Namespace: "ns", Pod: "ended",
		Name: "main"}
	for name, tt := range map[string]struct {
		container gpu.Container
		uid       string
		want      bool
	}{
		"by name":              {a, "", true},
		"by UID":               {a, uidA, true},
		"of a predecessor":     {a, uidB, false},
		"without a process":    {ended, "", false},
		"another container":    {gpu.Container{Namespace: "ns", Pod: "a", Name: "other"}, uidA, false},
		"another one, by name": {gpu.Container{Namespace: "ns", Pod: "b", Name: "main"}, "", false},
	} {
		cmptest.Equal(t, name, live.has(tt.container, tt.uid), tt.want)
	}

	cmptest.Equal(t, "pods", len(live.pods), 1)
}

// TestLiveContainersAreNotSeen: without the folder of logs, as in a pod that sees its own processes
// alone, or without processes there are none, and no line is logged.
func TestLiveContainersAreNotSeen(t *testing.T) {
	for name, prepare := range map[string]func(h *fakeHost){
		"no folder of logs": func(h *fakeHost) {
			h.writeCgroup("12", "0::/kubepods/pod"+uidA+"/"+idA+"\n")
			h.logs = filepath.Join(h.logs, "missing")
		},
		"no processes": func(h *fakeHost) { h.addLogLink("a", idA) },
		"no /proc": func(h *fakeHost) {
			h.addLogLink("a", idA)
			h.proc = filepath.Join(h.proc, "missing")
		},
	} {
		h := newHost(t)
		prepare(h)
		cmptest.Equal(t, name+": pods", len(h.containers().readLive().pods), 0)
		cmptest.Equal(t, name+": log", h.log.String(), "")
	}
}

// TestPodUIDOf: in every form of a pod's cgroup.
func TestPodUIDOf(t *testing.T) {
	unit := strings.ReplaceAll(uidA, "-", "_")

	static := strings.Repeat("0a", 16)
	for cgroup, want := range map[string]string{
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + unit + ".slice/cri-containerd-" + idA +
			".scope\n": uidA,
		"0::/kubepods/besteffort/pod" + uidA + "/" + idA + "\n":                                           uidA,
		"12:devices:/kubepods/pod" + uidA + "/" + idA + "\n3:cpu:/kubepods/pod" + uidA + "\n":             uidA,
		"11:memory:/system.slice/containerd.service/kubepods-pod" + unit + ".slice:cri-containerd:" + idA: uidA,
		"0::/../../kubepods-pod" + unit + ".slice/crio-" + idA + ".scope":                                 uidA,
		"0::/kubepods/besteffort/pod" + static + "/" + idA:                                                static,
		"0::/kubepods/pod" + uidB + "/" + idB + "/kubepods/pod" + uidA + "/" + idA:                        uidA,
		"0::/kubepods/podx/" + idA: "",
		"0::/":                     "",
		"":                         "",
	} {
		cmptest.Equal(t, cgroup, podUIDOf(cgroup), want)
	}
}
