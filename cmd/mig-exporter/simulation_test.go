package main

import (
	"errors"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/podresources"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

const monitoredNode = `
version: 1
node: {hostname: n, allocator: dra}
gpus: [{model: A30, count: 2}]
pods:
  - {name: monitor, owner: DaemonSet/monitor, labels: {app: m, tier: t}, container: c, resource: nvidia.com/gpu, count: 2, admin: true}
  - {name: file, static: true}
faults: [{at: 10s, for: 10s, kind: api-server-down}]
`

// TestSimulatedMetadata: what we know of pods and claims, with the API server and without it.
func TestSimulatedMetadata(t *testing.T) {
	scenario, err := sim.Parse("test.yaml", []byte(monitoredNode))
	if err != nil {
		t.Fatal(err)
	}

	n, err := sim.New(scenario, sim.NewClock(sim.ClockStep))
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = n.Close() })
	m := simulatedMetadata{node: n, labels: []string{"app", "none"}}
	var _ podresources.Metadata = m
	claim := gpu.ClaimDevice{Namespace: "default", Claim: "monitor-c", Driver: "gpu.nvidia.com", Pool: "n",
		Device: "gpu-0"}
	began := n.Now()

	known, ok := m.PodMetadata("default", "monitor", began)
	want := gpu.PodMetadata{UID: known.UID, Workload: "DaemonSet/monitor", Labels: []gpu.Label{{Name: "app", Value: "m"}}}
	cmptest.Equal(t, "monitor", known, want)
	file, fileOK := m.PodMetadata("default", "file-n", began)
	cmptest.Equal(t, "workload of a static pod", file.Workload, "")
	namespace, pod, uidOK := m.PodByUID(known.UID)
	cmptest.Equal(t, "pod by UID", namespace+"/"+pod, "default/monitor")
	cmptest.Equal(t, "found: monitor, static pod, by UID", [3]bool{ok, fileOK, uidOK}, [3]bool{true, true, true})

	if known.UID == "" || file.UID == "" {
		t.Errorf("UIDs %q and %q", known.UID, file.UID)
	}

	if admin, err := m.AdminAccess(claim, began); !admin || err != nil {
		t.Errorf("admin access: %v, %v", admin, err)
	}

	if _, err := m.AdminAccess(gpu.ClaimDevice{}, began); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("no claim: %v", err)
	}

	if pods, current := m.BoundPods(began); !current || len(pods) != 3 || pods[0].String() != "default/file-n" {
		t.Errorf("pods of the node: %v, current %v, want three", pods, current)
	}

	if m.PodGone("default", "monitor", known.UID, began) || !m.PodGone("default", "", "another", began) {
		t.Error("the wrong pod is gone")
	}

	cmptest.Equal(t, "state", m.State(), gpu.SourceState{Name: gpu.SourceKubernetes, Up: true, LastSuccess: began})

	if err := n.Advance(15 * time.Second); err != nil {
		t.Fatal(err)
	}

	if _, ok := m.PodMetadata("default", "monitor", began); !ok {
		t.Error("what was known before is not reported without the API server")
	}

	if _, ok := m.PodMetadata("default", "monitor", n.Now()); ok {
		t.Error("the API server has answered since")
	}

	if _, err := m.AdminAccess(claim, began); !errors.Is(err, gpu.ErrUnavailable) {
		t.Errorf("without the API server: %v", err)
	}

	if m.PodGone("default", "monitor", "another", began) {
		t.Error("a pod is gone without the API server's word")
	}

	cmptest.Equal(t, "state after the API server failed", m.State(),
		gpu.SourceState{Name: gpu.SourceKubernetes, LastSuccess: began.Add(10 * time.Second), Err: gpu.ErrUnavailable})
}
