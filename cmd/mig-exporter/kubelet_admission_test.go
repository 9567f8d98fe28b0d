package main

import (
	"os"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/podresources"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/kubelet"
)

// slowAdmission: "older" is bound while the kubelet is down, and its device plugin allocates for 25
// s. Until then the kubelet lists that and the exporter's own pod, and neither "young" nor "idle",
// which are younger and run.
const slowAdmission = `
version: 1
node: {hostname: n}
gpus: [{model: A100-40GB, count: 4}]
workloads: [{name: train, memory: 4GiB, sm: 20}]
pods:
  - {name: older, created: 1s, at: 101s, resource: nvidia.com/gpu}
  - {name: young, at: 5s, resource: nvidia.com/gpu, workload: train}
  - {name: idle, at: 6s, resource: nvidia.com/gpu}
faults:
  - {at: 100s, for: 3s, kind: kubelet-restart}
  - {at: 100s, for: 1m, kind: device-plugin-slow, delay: 25s}
`

// holderSources are what a profile of the chart has to find out who holds a device, besides the
// kubelet's list.
type holderSources struct{ checkpoint, metadata, containers bool }

// TestSlowAdmissionByProfile: in no profile is a device that is held shown as free while the
// kubelet waits for the device plugin of an older pod, nor the holder forgotten, and all is known
// again afterwards.
func TestSlowAdmissionByProfile(t *testing.T) {
	for name, sources := range map[string]holderSources{
		"the list alone":               {},
		"the defaults":                 {checkpoint: true},
		"hostProcesses alone":          {containers: true},
		"podMetadata alone":            {metadata: true},
		"mig, gpu-operator and others": {checkpoint: true, metadata: true},
		"a host with a kubelet":        {checkpoint: true, containers: true},
		"control without a checkpoint": {metadata: true, containers: true},
		"control":                      {checkpoint: true, metadata: true, containers: true},
	} {
		t.Run(name, func(t *testing.T) { checkSlowAdmission(t, sources) })
	}
}

func checkSlowAdmission(t *testing.T, sources holderSources) {
	t.Helper()
	node, server, client := newAdmissionNode(t, sources)
	blocked := 0

	for second := 1; second <= 140; second++ {
		if err := node.Advance(time.Second); err != nil {
			t.Fatal(err)
		}

		if err := server.Follow(node.Kubelet()); err != nil {
			t.Fatal(err)
		}

		got, _ := client.List(t.Context()) // while the kubelet is down it has an error, and what is known

		holds := map[string]bool{}
		for _, a := range got.List {
			holds[a.Holder.Pod] = true
		}

		if second > 6 && (!holds["young"] || !holds["idle"]) {
			t.Fatalf("after %d s: holders %v, incomplete %q", second, holds, got.Incomplete)
		}

		if listed := node.Containers(); second > 105 && len(listed) == 2 {
			blocked++

			if got.Incomplete == "" {
				t.Fatalf("after %d s: the kubelet lists %v alone, and devices without a holder are free", second, listed)
			}
		}

		if second == 99 && got.Incomplete != "" || second == 140 && (got.Incomplete != "" || !holds["older"]) {
			t.Errorf("after %d s: holders %v, incomplete %q", second, holds, got.Incomplete)
		}
	}

	if blocked < 20 {
		t.Errorf("the kubelet waits for the device plugin for %d s, want 20 at least", blocked)
	}
}

// newAdmissionNode starts the node of slowAdmission and its kubelet, and a client that has these
// sources.
func newAdmissionNode(t *testing.T, sources holderSources) (*sim.Node, *kubelet.Server, *podresources.Client) {
	t.Helper()

	scenario, err := sim.Parse("test.yaml", []byte(slowAdmission))
	if err != nil {
		t.Fatal(err)
	}

	node, err := sim.New(scenario, sim.NewClock(sim.ClockStep))
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = node.Close() })

	dir, err := os.MkdirTemp("", "adm-") //nolint:usetesting // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { os.RemoveAll(dir) })

	server, err := kubelet.New(node, dir, log.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = server.Close() })

	opts := podresources.Options{Socket: server.Socket(), Witness: sim.OwnNamespace + "/" + sim.OwnPod, Expected: true,
		StaleAfter: time.Minute, Now: node.Now, Logger: log.NewNopLogger()}
	if sources.checkpoint {
		opts.Checkpoint = server.Checkpoint()
	}

	if sources.metadata {
		opts.Metadata = simulatedMetadata{node: node}
	}

	if sources.containers {
		opts.Containers = podresources.NewContainers(podresources.ContainersOptions{ProcDir: server.ProcDir(),
			LogDir: server.LogDir(), Now: node.Now, Logger: log.NewNopLogger()})
	}

	client := podresources.New(opts)
	t.Cleanup(client.Close)

	return node, server, client
}
