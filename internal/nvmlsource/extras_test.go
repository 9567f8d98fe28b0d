package nvmlsource_test

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

func allExtras() gpu.Extras {
	return gpu.Extras{Media: true, InstanceECC: true, InstancePCIe: true, Fabric: true}
}

const extrasScenario = `
version: 1
node: {kubernetes: false, driver: "590.48.01"}
gpus:
  - {model: H200-141GB, mig: true, layout: ["4g.71gb@0", {gi: "3g.71gb@4", ci: ["1c", "2c"]}]}
  - {model: A100-40GB, mig: true, layout: ["7g.40gb@0"]}
workloads: [{name: w, memory: 1GiB, sm: 10, pcie: 100MiB}]
processes: [{device: 0/4g.71gb@0, workload: w}]
`

// extrasNode is a node that is asked for extra readings.
func extrasNode(t *testing.T, wanted gpu.Extras) *node {
	t.Helper()
	n := startNode(t, extrasScenario)
	n.source = nvmlsource.New(n.spy, nvmlsource.Options{
		Now: n.Now, SlowEvery: 15 * time.Second, GPM: true, Logger: log.NewNopLogger(),
	})
	n.cues.Extras = wanted
	t.Cleanup(func() {
		if err := n.source.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})

	return n
}

func (d spyDevice) GetGpuFabricInfoV() (nvml.GpuFabricInfo_v3, nvml.Return) {
	info, ret := d.Device.GetGpuFabricInfoV()
	if d.spy.fabric != nil {
		return *d.spy.fabric, nvml.SUCCESS
	}

	return info, ret
}

func (n noise) GetGpuFabricInfoV() (info nvml.GpuFabricInfo_v3, ret nvml.Return) {
	n.take(info.ClusterUuid[:])
	info.Status, info.CliqueId, info.State, info.HealthSummary = n.u32(), n.u32(), n.u8(), n.u8()

	return info, n.ret()
}

// noErrors holds that nothing of a GPU failed to be read.
func noErrors(t *testing.T, g gpu.GPU) {
	t.Helper()
	cmptest.Equal(t, g.Name+": errors", g.Errors, nil)

	for _, gi := range g.Instances {
		cmptest.Equal(t, g.Name+": errors of "+gi.Profile, gi.Errors, nil)
	}
}

// TestVolatileECCUnderMIG: an H200 with instances reports what its SRAM and memory had since the
// driver was loaded, and its MIG devices what their SRAM had. Where a driver refuses that, it is
// absent.
func TestVolatileECCUnderMIG(t *testing.T) {
	n := extrasNode(t, gpu.Extras{InstanceECC: true})
	ids := n.discover()
	h200 := n.read(ids[0])
	a100 := n.read(ids[1])
	noErrors(t, h200)
	noErrors(t, a100)

	volatile := func(g gpu.GPU) (locations []string) {
		for _, e := range g.Readings.ECC {
			if e.Lifetime == "volatile" && e.Severity == "uncorrected" && e.Location != "total" {
				locations = append(locations, e.Location)
			}
		}

		return locations
	}
	cmptest.Equal(t, "volatile counts of an H200 with MIG", volatile(h200), []string{"device_memory", "sram"})
	cmptest.Equal(t, "volatile counts of an A100 with MIG", volatile(a100), nil)

	sram := []gpu.ECCCount{{Severity: "uncorrected", Lifetime: "volatile", Location: "sram"}}

	for _, gi := range h200.Instances {
		for _, ci := range gi.ComputeInstances {
			cmptest.Equal(t, "counts of "+ci.Profile, ci.ECC, sram)
		}
	}

	cmptest.Equal(t, "counts of a MIG device of an A100", a100.Instances[0].ComputeInstances[0].ECC, nil)

	// Between two slow tiers the last counts stay, without a call.
	n.advance(time.Second)
	n.spy.taken()
	h200 = n.read(ids[0])
	cmptest.Equal(t, "counts between slow tiers", h200.Instances[0].ComputeInstances[0].ECC, sram)

	if calls := n.spy.taken()["GetMemoryErrorCounter"]; calls > 0 {
		t.Errorf("%d calls between slow tiers", calls)
	}

	n.cues.Extras.InstanceECC = false
	n.advance(15 * time.Second)
	cmptest.Equal(t, "no longer wanted", n.read(ids[0]).Instances[0].ComputeInstances[0].ECC, nil)
}

// TestInstancePCIe: GPM has the traffic of GPU instances; a driver that refuses the metrics is not
// asked again, and the activity stays.
func TestInstancePCIe(t *testing.T) {
	n := extrasNode(t, gpu.Extras{})
	id := n.discover()[0]
	n.read(id)
	n.advance(time.Second)
	cmptest.Equal(t, "not wanted", n.read(id).Instances[0].Rates, gpu.LinkRates{})

	n.cues.Extras.InstancePCIe = true
	n.advance(time.Second)
	g := n.read(id)
	noErrors(t, g)
	cmptest.Equal(t, "a busy instance", g.Instances[0].Rates,
		gpu.LinkRates{PCIeReceive: gpu.Some(100.0 * (1 << 20)), PCIeTransmit: gpu.Some(100.0 * (1 << 20))}, approx())
	cmptest.Equal(t, "an idle one", g.Instances[1].Rates,
		gpu.LinkRates{PCIeReceive: gpu.Some(0.0), PCIeTransmit: gpu.Some(0.0)})

	refusals := 0

	n.spy.refuses = func(metrics []nvmlsource.GPMMetric) nvml.Return {
		if len(metrics) == 2 {
			refusals++
			return nvml.ERROR_INVALID_ARGUMENT
		}

		return nvml.SUCCESS
	}
	for range 2 {
		n.advance(time.Second)
		g = n.read(id)
		noErrors(t, g)
		cmptest.Equal(t, "refused", g.Instances[0].Rates, gpu.LinkRates{})
		cmptest.Equal(t, "activity stays", g.Instances[0].Activity.SM.Present(), true)
	}

	cmptest.Equal(t, "refused calls: one for each instance", refusals, 2)
}

// TestFabric: GPUs on NVSwitches report their registration, others none.
func TestFabric(t *testing.T) {
	n := extrasNode(t, gpu.Extras{Fabric: true})
	ids := n.discover()
	h200 := n.read(ids[0])
	a100 := n.read(ids[1])
	noErrors(t, h200)
	noErrors(t, a100)
	const none = "00000000-0000-0000-0000-000000000000"
	cmptest.Equal(t, "H200", h200.Readings.Fabric, gpu.Some(gpu.Fabric{
		State: gpu.FabricCompleted, Health: gpu.FabricHealthy, ClusterUUID: none,
		Status: gpu.Some(uint32(0)), Clique: gpu.Some(uint32(0))}))
	cmptest.Equal(t, "A100", a100.Readings.Fabric, gpu.None[gpu.Fabric]())

	for _, c := range []struct {
		says nvml.GpuFabricInfo_v3
		want gpu.Opt[gpu.Fabric]
	}{
		{nvml.GpuFabricInfo_v3{State: nvml.GPU_FABRIC_STATE_NOT_SUPPORTED}, gpu.None[gpu.Fabric]()},
		{nvml.GpuFabricInfo_v3{State: 9}, gpu.None[gpu.Fabric]()},
		{nvml.GpuFabricInfo_v3{State: nvml.GPU_FABRIC_STATE_IN_PROGRESS, Status: 3, CliqueId: 5},
			gpu.Some(gpu.Fabric{State: gpu.FabricInProgress})},
		{nvml.GpuFabricInfo_v3{State: nvml.GPU_FABRIC_STATE_COMPLETED, Status: 999, CliqueId: 7},
			gpu.Some(gpu.Fabric{State: gpu.FabricCompleted, Status: gpu.Some(uint32(999))})},
		{nvml.GpuFabricInfo_v3{
			State: nvml.GPU_FABRIC_STATE_COMPLETED, CliqueId: 7,
			HealthSummary: nvml.GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY,
			ClusterUuid:   [16]uint8{0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
		}, gpu.Some(gpu.Fabric{State: gpu.FabricCompleted, Status: gpu.Some(uint32(0)),
			Clique: gpu.Some(uint32(7)), Health: gpu.FabricLimitedCapacity,
			ClusterUUID: "deadbeef-0102-0304-0506-0708090a0b0c"})},
	} {
		n.spy.fabric = &c.says
		n.advance(15 * time.Second)
		cmptest.Equal(t, "fabric", n.read(ids[0]).Readings.Fabric, c.want)
	}

	n.cues.Extras.Fabric = false
	n.spy.fabric = nil
	n.advance(15 * time.Second)
	n.spy.taken()
	cmptest.Equal(t, "not wanted", n.read(ids[0]).Readings.Fabric, gpu.None[gpu.Fabric]())
	cmptest.Equal(t, "calls", n.spy.taken()["GetGpuFabricInfoV"], 0)
}
