package sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// outageNode has a static pod and one of the API server, which come at the start, and two more
// after 3 s.
const outageNode = `
version: 1
node: {hostname: n}
gpus: [{model: A30, count: 4}]
workloads: [{name: w, memory: 1GiB, sm: 4}]
pods:
  - {name: static, static: true, resource: nvidia.com/gpu, workload: w}
  - {name: api, resource: nvidia.com/gpu, workload: w}
  - {name: late-static, static: true, resource: nvidia.com/gpu, workload: w, at: 3s}
  - {name: late-api, resource: nvidia.com/gpu, workload: w, at: 3s}
faults:
`

// listedPods are the names of the pods that the kubelet lists, short.
func listedPods(n *Node) string {
	var names []string
	for _, c := range n.Containers() {
		names = append(names, strings.TrimSuffix(c.Pod, "-n"))
	}

	slices.Sort(names)

	return strings.Join(names, " ")
}

func TestRestartOfTheKubelet(t *testing.T) {
	const (
		none   = ""
		static = "static"
		all    = "api mig-exporter-sim static"
		whole  = "api late-api late-static mig-exporter-sim static"
		late   = "late-static static"
	)
	for name, tc := range map[string]struct {
		faults string
		want   []string // by second
	}{
		"never":               {"", []string{all, all, all, whole}},
		"in an instant":       {"{at: 1s, kind: kubelet-restart}", []string{all, none, static, whole}},
		"that takes a second": {"{at: 1s, for: 1s, kind: kubelet-restart}", []string{all, none, none, late, whole, whole}},
		"after an outage": {"{at: 1s, for: 4s, kind: kubelet-down}",
			[]string{all, none, none, none, none, none, late, whole}},
		"twice": {"{at: 0s, kind: kubelet-restart}, {at: 1s, kind: kubelet-restart}",
			[]string{none, none, static, whole}},
		"in an outage": {"{at: 1s, for: 2s, kind: kubelet-down}, {at: 2s, kind: kubelet-restart}",
			[]string{all, none, none, none, late, whole}},
		"with an API server that is back in time": {"{at: 1s, kind: kubelet-restart}, {at: 1s, for: 1s, kind: " +
			"api-server-down}",
			[]string{all, none, static, whole}},
		"for good": {"{at: 1s, kind: kubelet-down}", []string{all, none, none, none}},
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t, strings.Replace(outageNode, "faults:", "faults: ["+tc.faults+"]", 1))
			for second, want := range tc.want {
				if got := listedPods(n); got != want {
					t.Errorf("after %d s: %q, want %q", second, got, want)
				}

				advance(t, n, time.Second)
			}
		})
	}
}

// TestPodsRunOnWhileTheKubeletRestarts: nothing on the GPUs depends on what the kubelet knows.
func TestPodsRunOnWhileTheKubeletRestarts(t *testing.T) {
	n := start(t, outageNode+"  - {at: 5s, for: 2s, kind: kubelet-restart}\n")
	advance(t, n, 4*time.Second)

	holdings := fmt.Sprint(n.Holdings())

	running := fmt.Sprint(n.Running())
	for range 8 {
		advance(t, n, time.Second)

		if got := fmt.Sprint(n.Holdings()); got != holdings {
			t.Errorf("holdings %s, want %s", got, holdings)
		}

		if got := fmt.Sprint(n.Running()); got != running {
			t.Errorf("containers %s, want %s", got, running)
		}

		for i := range n.Count() {
			if s := state(t, n, i); len(s.Processes) != 1 || s.Activity.SM == 0 {
				t.Errorf("GPU %d: %v, %g of the SMs busy", i, s.Processes, s.Activity.SM)
			}
		}
	}
}

// TestRestartWithoutAnAPIServer: the pods of the API server are listed, and new ones admitted, 40 s
// after it is back.
func TestRestartWithoutAnAPIServer(t *testing.T) {
	n := start(t, outageNode+"  - {at: 1s, kind: kubelet-restart}\n  - {at: 2s, for: 10s, kind: api-server-down}\n")
	for _, step := range []struct {
		to   time.Duration
		want string
	}{
		{2 * time.Second, "static"}, {3 * time.Second, "late-static static"}, {12 * time.Second, "late-static static"},
		{52*time.Second - 1, "late-static static"}, {52 * time.Second, "api late-api late-static mig-exporter-sim static"},
	} {
		advance(t, n, step.to-n.Now().Sub(StepStart()))

		if got := listedPods(n); got != step.want {
			t.Errorf("after %s: %q, want %q", step.to, got, step.want)
		}
	}
}

// TestAdmissionWaits: for the kubelet and the API server. Pods that waited are admitted in the
// order in which they came.
func TestAdmissionWaits(t *testing.T) {
	n := start(t, `
version: 1
gpus: [{model: A30, count: 1}]
pods:
  - {name: second, resource: nvidia.com/gpu, at: 3s}
  - {name: first, resource: nvidia.com/gpu, at: 2s, for: 10s}
  - {name: static, static: true, at: 3s}
faults: [{at: 1s, for: 29s, kind: api-server-down}]
`)
	advance(t, n, 29*time.Second)

	for text, want := range map[string]bool{"default/static: admitted": true, "first": false, "second": false} {
		if got := recorded(n, text); got != want {
			t.Errorf("while the API server is away: %q is recorded: %v, want %v: %+v", text, got, want, n.Records())
		}
	}

	advance(t, n, time.Second)

	if !recorded(n, "default/first: admitted") || !recorded(n, "default/second: refused") {
		t.Errorf("when it is back: %+v", n.Records())
	}

	advance(t, n, 10*time.Second)

	if !recorded(n, "default/first: ended") {
		t.Error("its time does not count from its admission")
	}
}

func TestOwnPod(t *testing.T) {
	n := start(t, "version: 1\ngpus: [{model: A30}]\n")

	list := n.Containers()
	if len(list) != 1 {
		t.Fatalf("listed: %+v, want one container", list)
	}

	cmptest.Equal(t, "namespace, pod and container", [3]string{list[0].Namespace, list[0].Pod, list[0].Name},
		[3]string{OwnNamespace, OwnPod, OwnContainer})
	cmptest.Equal(t, "its devices", len(list[0].Devices), 0)
	p, ok := n.PodByName(OwnNamespace, OwnPod, n.Now())
	cmptest.Equal(t, "the API server has it", ok, true)
	cmptest.Equal(t, "UID and owner", [2]string{p.UID, p.Owner}, [2]string{list[0].PodUID, "DaemonSet/mig-exporter"})

	if h := n.Holdings(); len(h) != 0 || n.PodGone(OwnNamespace, OwnPod, list[0].PodUID) {
		t.Errorf("it holds %+v, or is gone", h)
	}

	if list := start(t, "version: 1\nnode: {kubernetes: false}\ngpus: [{model: A30}]\n").Containers(); len(list) != 0 {
		t.Errorf("without Kubernetes: %+v", list)
	}
}
