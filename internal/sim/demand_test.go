package sim

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// truthOf returns what the only process of a workload achieves.
func truthOf(t *testing.T, n *Node, workload string) Truth {
	t.Helper()
	var found []Truth

	for _, p := range n.Truth() {
		if p.Workload == workload {
			found = append(found, p)
		}
	}

	if len(found) != 1 {
		t.Fatalf("workload %s: %+v, want one process", workload, found)
	}

	return found[0]
}

// TestPublishedInferenceServer: a Triton server on an A100-PCIE-40GB and on its 3g.20gb slice, one
// client to three.
func TestPublishedInferenceServer(t *testing.T) {
	for _, c := range []struct {
		gpu, device string
		concurrency int
		perSecond   float64
		latency     float64 // ms
	}{
		{"", "0", 1, 38.8, 26}, {"", "0", 2, 41.8, 48}, {"", "0", 3, 41.8, 72},
		{`, mig: true, layout: ["3g.20gb@4"]`, "0/3g.20gb@4", 1, 19.6, 52},
		{`, mig: true, layout: ["3g.20gb@4"]`, "0/3g.20gb@4", 2, 20.4, 99},
		{`, mig: true, layout: ["3g.20gb@4"]`, "0/3g.20gb@4", 3, 20.2, 149},
	} {
		n := start(t, fmt.Sprintf(`
version: 1
node: {kubernetes: false}
gpus: [{model: A100-PCIE-40GB%s}]
workloads: [{name: triton, memory: 3GiB, width: 40, bandwidth: 0.9, requests: {concurrency: %d, gpu: 24ms, host: 2ms}}]
processes: [{device: %s, workload: triton}]
`, c.gpu, c.concurrency, c.device))

		got := truthOf(t, n, "triton")
		if math.Abs(got.PerSecond/c.perSecond-1) > 0.05 {
			t.Errorf("GPU %s, %d clients: %.1f inferences/s, want %.1f", c.device, c.concurrency, got.PerSecond, c.perSecond)
		}

		if ms := got.Latency.Seconds() * 1000; math.Abs(ms/c.latency-1) > 0.05 {
			t.Errorf("GPU %s, %d clients: %.1f ms, want %.0f", c.device, c.concurrency, ms, c.latency)
		}

		s := state(t, n, 0).Activity
		if len(state(t, n, 0).Instances) > 0 {
			s = state(t, n, 0).Instances[0].Activity
		}

		if math.Abs(s.Graphics-got.Busy) > 1e-9 || s.Graphics < 0.9 {
			t.Errorf("GPU %s, %d clients: graphics engine %g of the time, kernels %g", c.device, c.concurrency, s.Graphics,
				got.Busy)
		}
	}
}

// The GPUs are an H100 (132 SMs), a whole one and one with a 1g.10gb (16 SMs) and a 3g.40gb (60
// SMs).
func TestDemandOnWholeGPUsAndSlices(t *testing.T) {
	for _, c := range []struct {
		about, workload, device string
		graphics, sm, dram      float64 // of the device
		throughput, stretch     float64
	}{
		{"narrow, whole", "width: 12, busy: 0.5", "0", 0.5, 6. / 132, 0, 1, 1},
		{"narrow, in a slice", "width: 12, busy: 0.5", "1/1g.10gb@0", 0.5, 6. / 16, 0, 1, 1},
		{"rare and wide, whole", "width: 128, busy: 0.1", "0", 0.1, 12.8 / 132, 0, 1, 1},
		{"rare and wide, in a slice", "width: 128, busy: 0.1", "1/1g.10gb@0", 0.8, 0.8, 0, 1, 8},
		{"frequent and wide, in a slice", "width: 128, busy: 0.25", "1/1g.10gb@0", 1, 1, 0, 0.5, 8},
		{"bandwidth, whole", "width: 4, bandwidth: 0.45, busy: 0.6", "0", 0.6, 2.4 / 132, 0.27, 1, 1},
		{"bandwidth, in a slice", "width: 4, bandwidth: 0.45, busy: 0.6", "1/1g.10gb@0", 1, 1. / 16, 0.9, 1 / 2.4, 4},
		{"phases, in a slice", "phases: [{share: 0.5, width: 120}, {share: 0.5, width: 4}], busy: 0.4", "1/3g.40gb@4", 0.6,
			24.8 / 60, 0, 1, 1.5},
		{"a loss, whole", "width: 12, busy: 0.5, loss: 0.2", "0", 0.5, 6. / 132, 0, 1, 1},
		{"a loss, in a slice", "width: 12, busy: 0.5, loss: 0.2", "1/1g.10gb@0", 0.6, 7.2 / 16, 0, 1, 1.2},
		{"shorthand, whole", "sm: 33, dram: 0.4", "0", 1, 0.25, 0.1, 1, 1},
		{"shorthand, in a slice", "sm: 32, dram: 0.4", "1/1g.10gb@0", 1, 1, 0.4, 0.5, 2},
		{"wider than the GPU, whole", "width: 264, busy: 0.25", "0", 0.5, 0.5, 0, 1, 1},
		{"idle", "memory: 1GiB", "1/1g.10gb@0", 0, 0, 0, 1, 1},
		{"requests that keep up", "width: 60, requests: {rate: 5, gpu: 20ms}", "1/3g.40gb@4", 0.1, 0.1, 0, 1, 1},
		{"requests that queue", "width: 128, requests: {rate: 5, gpu: 50ms}", "1/1g.10gb@0", 1, 1, 0, 0.5, 8},
	} {
		n := start(t, fmt.Sprintf(`
version: 1
node: {kubernetes: false}
gpus: [{model: H100-80GB}, {model: H100-80GB, mig: true, layout: ["1g.10gb@0", "3g.40gb@4"]}]
workloads: [{name: w, %s}]
processes: [{device: %s, workload: w}]
`, c.workload, c.device))
		advance(t, n, time.Second)

		got := state(t, n, 0).Activity
		if p := truthOf(t, n, "w"); p.Profile != "" {
			for _, i := range state(t, n, 1).Instances {
				if i.Profile.Name == p.Profile {
					got = i.Activity
				}
			}
		}

		truth := truthOf(t, n, "w")
		for name, v := range map[string][2]float64{
			"graphics engine": {got.Graphics, c.graphics}, "SM activity": {got.SM, c.sm}, "DRAM activity": {got.DRAM, c.dram},
			"throughput": {truth.Throughput, c.throughput}, "stretch": {truth.Stretch, c.stretch},
		} {
			if math.Abs(v[0]-v[1]) > 1e-9 {
				t.Errorf("%s: %s %v, want %v", c.about, name, v[0], v[1])
			}
		}
	}
}

// TestSharedDevices: MPS runs kernels side by side, time-slicing one after the other; compute
// instances share their memory alone.
func TestSharedDevices(t *testing.T) {
	for _, c := range []struct {
		about, gpu, devices    string // the devices of a and b
		a, b                   string
		throughputA, graphics  float64
		throughputB, sm, drawn float64
	}{
		{"MPS, room for both", ", sharing: {kind: mps}", "0 0", "width: 40, busy: 0.5", "width: 60, busy: 0.5", 1, 0.75, 1,
			50. / 132, 0},
		{"MPS, too many SMs", ", sharing: {kind: mps}", "0 0", "sm: 99", "sm: 66", 0.8, 1, 0.8, 1, 0},
		{"time-slicing, room for both", ", sharing: {kind: time-slicing}", "0 0", "width: 99, busy: 0.5",
			"width: 66, busy: 0.25", 1, 0.75, 1, 66. / 132, 0},
		{"time-slicing, no time", ", sharing: {kind: time-slicing}", "0 0", "sm: 99", "sm: 66", 0.5, 1, 0.5, 82.5 / 132, 0},
		{"two processes", "", "0 0", "width: 99, busy: 1", "width: 33, busy: 0.25", 0.8, 1, 0.8, (99*0.8 + 33*0.2) / 132, 0},
		{"two compute instances", `, mig: true, layout: [{gi: "2g.20gb@0", ci: ["1c", "1c"]}]`, "0/2g.20gb@0/0 0/2g.20gb@0/1",
			"width: 8, bandwidth: 0.2, busy: 1", "width: 8, bandwidth: 0.1, busy: 1", 0.75, 1, 0.75, 12. / 132, 0.225},
	} {
		var on [2]string
		if _, err := fmt.Sscan(c.devices, &on[0], &on[1]); err != nil {
			t.Fatal(err)
		}

		n := start(t, fmt.Sprintf(`
version: 1
node: {kubernetes: false}
gpus: [{model: H100-80GB%s}]
workloads: [{name: a, %s}, {name: b, %s}]
processes: [{device: %s, workload: a}, {device: %s, workload: b}]
`, c.gpu, c.a, c.b, on[0], on[1]))

		got := state(t, n, 0).Activity
		if i := state(t, n, 0).Instances; len(i) > 0 {
			got.Graphics = i[0].Activity.Graphics
		}

		for name, v := range map[string][2]float64{
			"throughput of a": {truthOf(t, n, "a").Throughput, c.throughputA},
			"throughput of b": {truthOf(t, n, "b").Throughput, c.throughputB},
			"graphics engine": {got.Graphics, c.graphics}, "SM activity": {got.SM, c.sm}, "bandwidth": {got.DRAM, c.drawn},
		} {
			if math.Abs(v[0]-v[1]) > 1e-9 {
				t.Errorf("%s: %s %v, want %v", c.about, name, v[0], v[1])
			}
		}
	}
}

// TestGraphicsEngineOfMIG: two 3g.20gb at 0.534 are 0.457 of an A100, as in NVIDIA's guide to DCGM.
func TestGraphicsEngineOfMIG(t *testing.T) {
	n := start(t, `
version: 1
node: {kubernetes: false}
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@0", "3g.20gb@4"]}]
workloads: [{name: w, width: 10, busy: 0.534}]
processes: [{device: 0/3g.20gb@0, workload: w}, {device: 0/3g.20gb@4, workload: w}]
`)
	if got := state(t, n, 0).Activity.Graphics; math.Abs(got-0.4577) > 1e-4 {
		t.Errorf("graphics engine of the GPU %g, want 0.4577", got)
	}
}

// TestTruthOfAKilledProcess: it stays on record with throughput 0.
func TestTruthOfAKilledProcess(t *testing.T) {
	n := start(t, `
version: 1
gpus: [{model: H100-80GB, mig: true, layout: ["1g.10gb@0"]}]
workloads: [{name: w, memory: {steps: [{at: 0s, value: 4GiB}, {at: 5s, value: 12GiB}]}, width: 8, busy: 0.5}]
pods: [{namespace: ml, name: serve, container: main, resource: nvidia.com/mig-1g.10gb, workload: w}]
`)
	before := truthOf(t, n, "w")
	want := before
	want.Namespace = "ml"
	want.Pod = "serve"
	want.Container = "main"
	want.Profile = "1g.10gb"
	want.PodUID = mustContainer(t, n, "serve").PodUID
	want.Throughput = 1
	want.Failed = ""
	cmptest.Equal(t, "running", before, want)

	if before.MIG == "" {
		t.Error("a process on a MIG device without its UUID")
	}

	advance(t, n, 10*time.Second)
	after := truthOf(t, n, "w")
	want = after
	want.Throughput, want.PodUID, want.FailedAt = 0, before.PodUID, StepStart().Add(5*time.Second)
	cmptest.Equal(t, "killed", after, want)

	if after.Failed == "" {
		t.Error("killed without a reason")
	}
}
