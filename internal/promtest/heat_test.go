package promtest

import (
	"testing"
	"time"
)

// harsh has a GPU that becomes hot, one that the power supply slows down, one whose instances
// cannot be read, and a driver that is unloaded twice.
const harsh = `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: true, privileged: true}
seed: 1
gpus:
  - {model: H100-80GB, count: 3}
  - {model: H100-80GB, mig: true, layout: ["3g.40gb@0", "3g.40gb@4"]}
workloads:
  - {name: train, memory: 60GiB, sm: 100, dram: 0.3, tensor: 0.3}
  - {name: slice, memory: 9GiB, sm: 24, dram: 0.3, tensor: 0.3}
pods:
  - {namespace: ml, name: hot-0, resource: nvidia.com/gpu, device: "1", workload: train}
  - {namespace: ml, name: slow-0, resource: nvidia.com/gpu, device: "2", workload: train}
  - {namespace: ml, name: slice-0, resource: nvidia.com/mig-3g.40gb, device: "3/3g.40gb@0", workload: slice}
faults:
  - {at: 10m10s, for: 15m, gpu: 1, kind: overheat, celsius: 93}
  - {at: 10m, for: 10m, gpu: 3, kind: not-supported, reading: mig}
  - {at: 40m, for: 5m, gpu: 2, kind: power-brake}
  - {at: 60m, for: 10m, kind: no-driver}
  - {at: 85m, for: 20m, kind: no-driver}
`

// TestRulesOnHeatAndPower: a GPU that is hot, one that the power supply slows down, and a slice
// that does not answer are named with their pods.
func TestRulesOnHeatAndPower(t *testing.T) {
	t.Parallel()
	n := startRuledNode(t, harsh, "--poll.interval=15s") // seconds between two readings count if these are not far apart
	n.run(59*time.Minute, 30*time.Second)
	n.expectStory("GpuTemperatureHigh", "GpuThermalSlowdownHardware", "GpuThermalSlowdownSoftware", "GpuPowerBrake",
		"MigGpuInstanceDown")
	n.expectSummary("MigGpuInstanceDown",
		"3g.40gb (instance 1) on GPU 3 of gpu-node-1:9401 does not answer (held by ml/slice-0).")
	n.expectSummary("GpuTemperatureHigh", "The die of GPU 1 of gpu-node-1:9401 is at 93 °C (held by ml/hot-0).")

	for _, name := range []string{"GpuThermalSlowdownHardware", "GpuThermalSlowdownSoftware", "GpuPowerBrake"} {
		if f := n.fired[name]; f != nil && len(f.alerts) != 1 {
			t.Errorf("%s fires for %d GPUs", name, len(f.alerts))
		}
	}
}

// TestRulesWithoutRights: under MIG the driver accepts the registration of a process without
// rights, and is silent.
func TestRulesWithoutRights(t *testing.T) {
	t.Parallel()
	n := startRuledNode(t, `
version: 1
node: {hostname: gpu-node-1}
gpus:
  - {model: H100-SXM5-80GB, mig: true, layout: [3g.40gb@0]}
  - {model: H100-SXM5-80GB}
faults: [{at: 5m, for: 30m, kind: no-permission}]
`)
	n.run(time.Hour, 30*time.Second)
	n.expectStory("GpuXidsNotReceived")
	n.expectSummary("GpuXidsNotReceived", "XIDs of GPU 0 of gpu-node-1:9401 are not received.")
}

// TestRulesWithoutADriver: a driver that is unloaded under the exporter, and one that is not there
// when the next exporter is started, have one critical alert for the node, and none for its GPUs.
func TestRulesWithoutADriver(t *testing.T) {
	t.Parallel()
	r := newRollout(t, harsh)
	r.start("gpu-node-1", "mig-exporter-a")
	r.run(59 * time.Minute)
	clear(r.fired)
	r.run(90 * time.Minute)
	r.stopPod(false)
	r.start("gpu-node-1", "mig-exporter-b")
	r.run(120 * time.Minute)
	r.expectStory("MigDriverUnavailable", "GpuReadErrors")
	r.expectSummary("MigDriverUnavailable", "The NVIDIA driver of gpu-node-1 does not answer (GPUs without readings: 4).")
}
