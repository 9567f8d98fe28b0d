package sim

import (
	"errors"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const replaceScenario = `
version: 1
gpus: [{model: A100-40GB}, {model: A100-40GB}]
workloads: [{name: w, memory: 2GiB, width: 20, busy: 0.5}]
pods:
- {namespace: ml, name: serve-0, owner: StatefulSet/serve, resource: nvidia.com/gpu, workload: w}
- {namespace: ml, name: train-0, resource: nvidia.com/gpu, workload: w, for: 1h}
`

// device returns the device that a pod holds now; empty if there is no such pod.
func device(n *Node, pod string) (gpu.MIGUUID, string) {
	for _, h := range n.Holdings() {
		if h.Pod == pod {
			return h.MIG, h.PodUID
		}
	}

	return "", ""
}

// TestReplacedPodWaitsForItsSlice: the owner asks for a slice, the pod leaves its GPU, which is
// partitioned, and comes back on the slice.
func TestReplacedPodWaitsForItsSlice(t *testing.T) {
	n := start(t, replaceScenario)

	_, before := device(n, "serve-0")
	if err := n.SetMIGMode(0, true); !errors.Is(err, gpu.ErrInUse) {
		t.Fatalf("the GPU of a pod is partitioned: %v", err)
	}

	if err := n.ReplacePod("ml", "serve-0", "nvidia.com/mig-2g.10gb"); err != nil {
		t.Fatal(err)
	}

	if _, uid := device(n, "serve-0"); uid != "" {
		t.Errorf("the pod that has left holds a device")
	}

	advance(t, n, 5*time.Second)

	if _, ok := findContainer(n, "serve-0"); ok || !n.PodGone("ml", "serve-0", before) {
		t.Error("the pod that has left is listed")
	}

	if !recorded(n, "ml/serve-0: waits: no free device of nvidia.com/mig-2g.10gb") {
		t.Errorf("records %v", n.Records())
	}

	if err := n.SetMIGMode(0, true); err != nil {
		t.Fatal(err)
	}

	gi, err := n.CreateGPUInstance(0, 14, gpu.Opt[int]{})
	if err != nil {
		t.Fatal(err)
	}

	advance(t, n, 3*time.Second)

	if _, uid := device(n, "serve-0"); uid != "" {
		t.Error("admitted without a compute instance")
	}

	if _, err := n.CreateComputeInstance(0, gi, 2); err != nil {
		t.Fatal(err)
	}

	advance(t, n, time.Second)

	slice, after := device(n, "serve-0")
	if slice == "" || after == before {
		t.Errorf("holds %q as %s, want the slice under another UID", slice, after)
	}

	got := mustContainer(t, n, "serve-0")
	cmptest.Equal(t, "devices", got.Devices,
		[]DeviceGrant{{Resource: "nvidia.com/mig-2g.10gb", IDs: []string{string(slice)}}})
	cmptest.Equal(t, "owner", got.Owner, "StatefulSet/serve")

	if p, ok := n.PodByName("ml", "serve-0", time.Time{}); !ok || p.UID != after {
		t.Errorf("the API server has %+v", p)
	}

	for _, p := range n.Truth() {
		if p.Pod == "serve-0" {
			cmptest.Equal(t, "profile of the slice", p.Profile, "2g.10gb")
			cmptest.Equal(t, "throughput on it", p.Throughput, 1)
			cmptest.Equal(t, "stretch on it", p.Stretch, 1)
		}
	}
}

// TestWaitingPodGetsAnotherRequest: a pod that waits is given another request.
func TestWaitingPodGetsAnotherRequest(t *testing.T) {
	n := start(t, replaceScenario)
	for _, resource := range []string{"nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb", "nvidia.com/gpu"} {
		if err := n.ReplacePod("ml", "train-0", resource); err != nil {
			t.Fatal(err)
		}

		if got := len(n.Holdings()); got != 1 {
			t.Errorf("asking for %s: %d holdings, want that of the other pod", resource, got)
		}

		advance(t, n, time.Second)
	}

	advance(t, n, time.Second)

	if _, uid := device(n, "train-0"); uid == "" {
		t.Errorf("not admitted: %v", n.Records())
	}

	advance(t, n, time.Hour-2*time.Second)

	if _, uid := device(n, "train-0"); uid == "" {
		t.Error("ended with the pod that it has replaced")
	}

	advance(t, n, time.Second)

	if _, uid := device(n, "train-0"); uid != "" {
		t.Error("did not end after its own time")
	}

	if err := n.ReplacePod("ml", "absent-0", "nvidia.com/gpu"); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("a pod that is not there: %v", err)
	}
}

// TestWaitingPodOfAScenario is admitted when another one leaves; one that does not wait is refused.
func TestWaitingPodOfAScenario(t *testing.T) {
	n := start(t, `
version: 1
gpus: [{model: A30}]
pods:
- {name: first, resource: nvidia.com/gpu, for: 1500ms}
- {name: patient, resource: nvidia.com/gpu, waits: true}
- {name: hasty, resource: nvidia.com/gpu}
`)
	advance(t, n, time.Second)

	if _, uid := device(n, "patient"); uid != "" || !recorded(n, "hasty: refused") {
		t.Errorf("records %v", n.Records())
	}

	advance(t, n, time.Second)

	if _, uid := device(n, "patient"); uid == "" {
		t.Errorf("not admitted: %v", n.Records())
	}
}

// TestReplacedPodOnSharedNodes: all nodes of a shared state give the pod the same device, whatever
// comes at the same time.
func TestReplacedPodOnSharedNodes(t *testing.T) {
	path := statePath(t)
	a := join(t, path)
	b := join(t, path)
	advance(t, a, 1500*time.Millisecond)

	if err := b.ReplacePod("default", "one", "nvidia.com/mig-1g.5gb"); err != nil {
		t.Fatal(err)
	}

	same(t, a, b)
	advance(t, b, 2500*time.Millisecond) // the pod tries again at this full second

	for range 2 {
		gi, err := a.CreateGPUInstance(0, 19, gpu.Opt[int]{})
		if err != nil {
			t.Fatal(err)
		}

		if _, err := b.CreateComputeInstance(0, gi, 1); err != nil {
			t.Fatal(err)
		}
	}

	same(t, a, b)

	if _, uid := device(a, "one"); uid != "" {
		t.Error("admitted before it tries again")
	}

	advance(t, a, time.Second)
	same(t, a, b)
	same(t, a, join(t, path))

	if slice, _ := device(b, "one"); slice == "" {
		t.Errorf("not admitted: %v", b.Records())
	}
}
