package contract

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// Where checks and habits are known from.
const (
	inHeader  = "nvml.h"
	inGuide   = "NVIDIA's MIG user guide"
	inCapture = "published output of nvidia-smi"
	inSMI     = "NVIDIA's nvidia-smi 535 and 550 on this library"
	inDCGM    = "NVIDIA's DCGM core 4.5.3 on this library"
	inKernel  = "open-gpu-kernel-modules"
	inProject = "the documentation of the simulated node"
	inReading = "what internal/gpu says of a reading"
)

// sources are all of them.
func sources() []string {
	return []string{inHeader, inGuide, inCapture, inSMI, inDCGM, inKernel, inProject, inReading}
}

// habit is something that the driver does and nvml.h alone does not promise for every GPU, so that
// no real driver is held to it. It is seen through go-nvml on a scenario of its own, on a stepped
// clock.
type habit struct {
	name, seen string
	scenario   string
	check      func(t *testing.T, l nvml.Interface, node *sim.Node)
}

func habits() []habit {
	const a40, a80 = "gpus: [{model: A100-40GB, mig: true}]", "gpus: [{model: A100-80GB, mig: true}]"

	return []habit{
		{"placement of 2g, 1g", inGuide, a40, places([]uint32{14, 19}, "5@4 13@6")},
		{"placement of 1g, 2g, 4g", inGuide, a40, places([]uint32{19, 14, 5}, "13@6 5@4 1@0")},
		{"placement of three 2g and 1g+me", inGuide, a80, places([]uint32{14, 14, 14, 20}, "5@4 3@0 4@2 13@6")},
		{"compute instances at any slice", inKernel,
			"gpus: [{model: A100-80GB, mig: true, layout: [{gi: \"3g.40gb@4\", ci: []}]}]", checkComputePlaces},
		{"size of 7g.80gb", inCapture, a80, checkLargest},
		{"MIG mode of Ampere", inGuide, "gpus: [{model: A100-40GB}]", changesMode(nvml.SUCCESS)},
		{"MIG mode of Hopper", inGuide, "node: {passThrough: true}\ngpus: [{model: H100-80GB}]", changesMode(nvml.SUCCESS)},
		{"MIG mode in a pass-through machine", inHeader, "node: {passThrough: true}\ngpus: [{model: A100-40GB}]",
			changesMode(nvml.ERROR_RESET_REQUIRED)},
		{"fields without a value", inDCGM, a40, checkKnownFields},
		{"fields of power", inSMI, "gpus: [{model: H100-80GB}, {model: A100-40GB}]", checkPowerFields},
		{"fields of the reset status", inSMI, resetNode, checkResetFields},
		{"fields of remapped rows and of clocks held down", inDCGM, troubledNode, checkTroubledFields},
		{"replay counters", inSMI, a40, checkReplays},
		{"T.Limit", inCapture, "gpus: [{model: H100-80GB}, {model: A100-40GB}]", checkLimits},
		{"addressing mode of 580", inHeader, "gpus: [{model: H100-80GB}]", checkAddressing(nvml.SUCCESS)},
		{"addressing mode of 550", inHeader, "node: {driver: \"550.90.07\"}\ngpus: [{model: H100-80GB}]",
			checkAddressing(nvml.ERROR_FUNCTION_NOT_FOUND)},
		{"traffic of a workload", inProject, trafficNode, checkTraffic},
		{"GPM over a layout change", inDCGM, "gpus: [{model: H100-80GB, mig: true, layout: [\"3g.40gb@4\"]}]" + busySlice,
			checkCountersGoOn},
	}
}

func TestHabits(t *testing.T) {
	names := map[string]bool{}
	for _, h := range habits() {
		if names[h.name] || !slices.Contains(sources(), h.seen) {
			t.Errorf("%s: twice, or seen nowhere: %q", h.name, h.seen)
		}

		names[h.name] = true
		t.Run(strings.NewReplacer(" ", "-", ",", "", "+", "-", ".", "-").Replace(h.name), func(t *testing.T) {
			path := scenarioFile(t, "version: 1\n"+h.scenario+"\n")
			if inChild(t, "MIG_SIM_SCENARIO="+path, "MIG_SIM_CLOCK=step", "MIG_SIM_STATE="+filepath.Join(t.TempDir(), "state")) {
				node := joinState(t, os.Getenv("MIG_SIM_SCENARIO"), os.Getenv("MIG_SIM_STATE"))
				h.check(t, open(t), node)
			}
		})
	}
}

func handleOf(t *testing.T, l nvml.Interface, index int) nvml.Device {
	t.Helper()
	return ok[nvml.Device](t)(l.DeviceGetHandleByIndex(index))
}

// places creates GPU instances of some profiles without saying where, as nvidia-smi mig -cgi does;
// wanted are their ids and starts.
func places(profiles []uint32, wanted string) func(*testing.T, nvml.Interface, *sim.Node) {
	return func(t *testing.T, l nvml.Interface, _ *sim.Node) {
		d := handleOf(t, l, 0)
		var made []string

		for _, id := range profiles {
			gi := ok[nvml.GpuInstance](t)(d.CreateGpuInstance(&nvml.GpuInstanceProfileInfo{Id: id}))
			info := ok[nvml.GpuInstanceInfo](t)(gi.GetInfo())
			made = append(made, fmt.Sprintf("%d@%d", info.Id, info.Placement.Start))
		}

		if got := strings.Join(made, " "); got != wanted {
			t.Errorf("created %s, want %s", got, wanted)
		}
	}
}

// checkComputePlaces: the first run of free slices that is long enough is taken, wherever it
// begins.
func checkComputePlaces(t *testing.T, l nvml.Interface, _ *sim.Node) {
	gi := ok[nvml.GpuInstance](t)(handleOf(t, l, 0).GetGpuInstanceById(2))
	for _, c := range []struct{ profile, start uint32 }{{nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 0},
		{nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE, 1}} {
		ci := ok[nvml.ComputeInstance](t)(gi.CreateComputeInstance(&nvml.ComputeInstanceProfileInfo{Id: c.profile}))
		if info := ok[nvml.ComputeInstanceInfo](t)(ci.GetInfo()); info.Placement.Start != c.start {
			t.Errorf("compute instance of profile %d at %d, want %d", c.profile, info.Placement.Start, c.start)
		}
	}
}

// checkLargest: 79.00 GiB.
func checkLargest(t *testing.T, l nvml.Interface, _ *sim.Node) {
	p := ok[nvml.GpuInstanceProfileInfo](t)(handleOf(t, l, 0).GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_7_SLICE))
	cmptest.Equal(t, "memory in MiB", p.MemorySizeMB, 79<<10)
	cmptest.Equal(t, "copy engines", p.CopyEngineCount, 7)
	cmptest.Equal(t, "decoders", p.DecoderCount, 5)
}

// changesMode turns MIG on and off again on an idle GPU: at once, or pending for a reason.
func changesMode(activation nvml.Return) func(*testing.T, nvml.Interface, *sim.Node) {
	return func(t *testing.T, l nvml.Interface, node *sim.Node) {
		d := handleOf(t, l, 0)
		for _, mode := range []int{nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_DISABLE} {
			got, ret := d.SetMigMode(mode)
			want(t, "nvmlDeviceSetMigMode", ret, nvml.SUCCESS)
			want(t, "activation", got, activation)

			now, pending, _ := d.GetMigMode()
			if (now == mode) != (activation == nvml.SUCCESS) || pending != mode {
				t.Errorf("mode %d asked for: %d, pending %d", mode, now, pending)
			}

			if err := node.Reset(0); err != nil {
				t.Fatal(err)
			}

			if now, _, _ = d.GetMigMode(); now != mode {
				t.Errorf("mode %d after a reset, want %d", now, mode)
			}
		}
	}
}

// fieldOf is one field: its code, its type and the value's bits.
func fieldOf(t *testing.T, d nvml.Device, id, scope uint32) (nvml.Return, nvml.ValueType, uint64) {
	t.Helper()
	values := []nvml.FieldValue{{FieldId: id, ScopeId: scope}}
	want(t, "nvmlDeviceGetFieldValues", d.GetFieldValues(values), nvml.SUCCESS)
	v := values[0]

	return nvml.Return(v.NvmlReturn), nvml.ValueType(v.ValueType), binary.NativeEndian.Uint64(v.Value[:])
}

// checkKnownFields: DCGM watches whatever nvml.h defines and takes INVALID_ARGUMENT for a mistake
// of its own.
func checkKnownFields(t *testing.T, l nvml.Interface, _ *sim.Node) {
	d := handleOf(t, l, 0)
	for id := range uint32(nvml.FI_MAX) {
		switch ret, _, _ := fieldOf(t, d, id, 0); {
		case id == 0:
			want(t, "field 0", ret, nvml.ERROR_INVALID_ARGUMENT)
		case ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED:
			t.Errorf("field %d: return code %d", id, ret)
		}
	}

	ret, _, _ := fieldOf(t, d, nvml.FI_MAX, 0)
	want(t, "a field that nvml.h does not define", ret, nvml.ERROR_INVALID_ARGUMENT)
}

// wantField holds a field against a value.
func wantField(t *testing.T, d nvml.Device, id uint32, kind nvml.ValueType, value uint64) {
	t.Helper()
	ret, gotKind, got := fieldOf(t, d, id, 0)
	cmptest.Equal(t, fmt.Sprintf("return code of field %d", id), ret, nvml.SUCCESS)
	cmptest.Equal(t, fmt.Sprintf("type of field %d", id), gotKind, kind)
	cmptest.Equal(t, fmt.Sprintf("field %d", id), got, value)
}

// checkPowerFields: nvidia-smi -q has all its power readings from them; the average is not of
// GA100, the module is one with a CPU.
func checkPowerFields(t *testing.T, l nvml.Interface, node *sim.Node) {
	h100 := handleOf(t, l, 0)

	a100 := handleOf(t, l, 1)
	if err := node.Advance(10 * time.Second); err != nil {
		t.Fatal(err)
	}

	draw := uint64(ok[uint32](t)(h100.GetPowerUsage()))
	for id, milliwatts := range map[uint32]uint64{
		nvml.FI_DEV_POWER_AVERAGE: draw, nvml.FI_DEV_POWER_INSTANT: draw, nvml.FI_DEV_POWER_MIN_LIMIT: 175_000,
		nvml.FI_DEV_POWER_MAX_LIMIT:     700_000,
		nvml.FI_DEV_POWER_DEFAULT_LIMIT: 700_000, nvml.FI_DEV_POWER_CURRENT_LIMIT: 700_000,
		nvml.FI_DEV_POWER_REQUESTED_LIMIT: 700_000,
	} {
		wantField(t, h100, id, nvml.VALUE_TYPE_UNSIGNED_INT, milliwatts)
		ret, _, _ := fieldOf(t, h100, id, nvml.POWER_SCOPE_MODULE)
		want(t, "of the module", ret, nvml.ERROR_NOT_SUPPORTED)
	}

	wantField(t, h100, nvml.FI_DEV_ENERGY, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG,
		ok[uint64](t)(h100.GetTotalEnergyConsumption()))
	ret, _, _ := fieldOf(t, a100, nvml.FI_DEV_POWER_AVERAGE, 0)
	want(t, "average of A100", ret, nvml.ERROR_NOT_SUPPORTED)
	wantField(t, a100, nvml.FI_DEV_POWER_INSTANT, nvml.VALUE_TYPE_UNSIGNED_INT,
		uint64(ok[uint32](t)(a100.GetPowerUsage())))
}

const resetNode = `gpus: [{model: H100-80GB, count: 3}]
faults: [{kind: xid, gpu: 1, xid: 79, recovery: reset}, {kind: xid, gpu: 2, xid: 95, recovery: drain_and_reset}]`

func checkResetFields(t *testing.T, l nvml.Interface, _ *sim.Node) {
	for index, recommended := range [][2]uint64{{0, 0}, {1, 0}, {0, 1}} {
		d := handleOf(t, l, index)
		wantField(t, d, nvml.FI_DEV_RESET_STATUS, nvml.VALUE_TYPE_UNSIGNED_INT, recommended[0])
		wantField(t, d, nvml.FI_DEV_DRAIN_AND_RESET_STATUS, nvml.VALUE_TYPE_UNSIGNED_INT, recommended[1])
	}
}

const troubledNode = `gpus: [{model: H100-80GB, count: 3}]
workloads: [{name: w, memory: 1GiB, sm: 132, tensor: 1, dram: 1}]
processes: [{device: 2, workload: w}]
faults: [{kind: xid, gpu: 0, xid: 63}, {kind: xid, gpu: 1, xid: 64}, {kind: overheat, gpu: 1, celsius: 88, at: 1s, for: 3s}]`

// checkTroubledFields: DCGM reads remapped rows, as counts and flags, and for how many nanoseconds
// clocks were held down, by fields.
func checkTroubledFields(t *testing.T, l nvml.Interface, node *sim.Node) {
	if err := node.Advance(10 * time.Second); err != nil {
		t.Fatal(err)
	}

	const second = uint64(time.Second)
	for index, want := range []struct{ uncorrectable, pending, failed, power, thermal uint64 }{
		{1, 1, 0, 0, 0},
		{0, 0, 1, 0, 3 * second},
		{0, 0, 0, 10 * second, 0},
	} {
		d := handleOf(t, l, index)
		wantField(t, d, nvml.FI_DEV_REMAPPED_COR, nvml.VALUE_TYPE_UNSIGNED_INT, 0)
		wantField(t, d, nvml.FI_DEV_REMAPPED_UNC, nvml.VALUE_TYPE_UNSIGNED_INT, want.uncorrectable)
		wantField(t, d, nvml.FI_DEV_REMAPPED_PENDING, nvml.VALUE_TYPE_UNSIGNED_INT, want.pending)
		wantField(t, d, nvml.FI_DEV_REMAPPED_FAILURE, nvml.VALUE_TYPE_UNSIGNED_INT, want.failed)
		wantField(t, d, nvml.FI_DEV_PERF_POLICY_POWER, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, want.power)
		wantField(t, d, nvml.FI_DEV_PERF_POLICY_THERMAL, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, want.thermal)
	}
}

func checkReplays(t *testing.T, l nvml.Interface, _ *sim.Node) {
	d := handleOf(t, l, 0)
	wantField(t, d, nvml.FI_DEV_PCIE_REPLAY_COUNTER, nvml.VALUE_TYPE_UNSIGNED_INT, 0)
	wantField(t, d, nvml.FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER, nvml.VALUE_TYPE_UNSIGNED_INT, 0)
}

// checkLimits: relative to the highest operating temperature since Ada, -8, -2 and 0 of H100;
// absolute before.
func checkLimits(t *testing.T, l nvml.Interface, _ *sim.Node) {
	h100 := handleOf(t, l, 0)
	a100 := handleOf(t, l, 1)
	celsius := int32(ok[uint32](t)(h100.GetTemperature(nvml.TEMPERATURE_GPU)))
	highest := int32(ok[uint32](t)(a100.GetTemperatureThreshold(nvml.TEMPERATURE_THRESHOLD_GPU_MAX)))
	_, ret := h100.GetTemperatureThreshold(nvml.TEMPERATURE_THRESHOLD_GPU_MAX)
	want(t, "a threshold of H100", ret, nvml.ERROR_NOT_SUPPORTED)

	if m := ok[nvml.MarginTemperature](t)(h100.GetMarginTemperature()); m.MarginTemperature != highest-celsius {
		t.Errorf("%d C below the limit at %d of %d C", m.MarginTemperature, celsius, highest)
	}

	want(t, "margin of A100", code(a100.GetMarginTemperature()), nvml.ERROR_NOT_SUPPORTED)

	for id, margin := range map[uint32]int32{
		nvml.FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT: -8, nvml.FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT: -2,
		nvml.FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT: 0, nvml.FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT: 0,
	} {
		wantField(t, h100, id, nvml.VALUE_TYPE_SIGNED_INT, uint64(uint32(margin)))
		ret, _, _ := fieldOf(t, a100, id, 0)
		want(t, "T.Limit of A100", ret, nvml.ERROR_NOT_SUPPORTED)
	}
}

func checkAddressing(wanted nvml.Return) func(*testing.T, nvml.Interface, *sim.Node) {
	return func(t *testing.T, l nvml.Interface, _ *sim.Node) {
		mode, ret := handleOf(t, l, 0).GetAddressingMode()
		want(t, "nvmlDeviceGetAddressingMode", ret, wanted)

		if mode.Value != uint32(nvml.DEVICE_ADDRESSING_MODE_NONE) {
			t.Errorf("addressing mode %d", mode.Value)
		}
	}
}

const trafficNode = `node: {kubernetes: false}
gpus: [{model: H100-80GB}]
workloads: [{name: w, sm: 10, pcie: 24MiB, nvlink: 36MiB}]
processes: [{gpu: 0, workload: w}]`

// checkTraffic: what the scenario says is in every counter and rate, in both directions.
func checkTraffic(t *testing.T, l nvml.Interface, node *sim.Node) {
	d := handleOf(t, l, 0)
	g := openGPM(t)
	before := g.sample(g.devices[0].GpmSampleGet)

	if err := node.Advance(10 * time.Second); err != nil {
		t.Fatal(err)
	}

	after := g.sample(g.devices[0].GpmSampleGet)
	for metric, mebibytes := range map[nvml.GpmMetricId]float64{
		nvml.GPM_METRIC_PCIE_TX_PER_SEC: 24, nvml.GPM_METRIC_PCIE_RX_PER_SEC: 24,
		nvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: 36, nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: 36,
	} {
		if got := g.metric(before, after, metric); got != mebibytes {
			t.Errorf("metric %d is %g MiB/s, want %g", metric, got, mebibytes)
		}
	}

	for _, counter := range []nvml.PcieUtilCounter{nvml.PCIE_UTIL_TX_BYTES, nvml.PCIE_UTIL_RX_BYTES} {
		if kilobytes := ok[uint32](t)(d.GetPcieThroughput(counter)); kilobytes != 24<<20/1000 {
			t.Errorf("PCIe counter %d: %d KB/s", counter, kilobytes)
		}
	}

	for _, id := range []uint32{nvml.FI_DEV_PCIE_COUNT_TX_BYTES, nvml.FI_DEV_PCIE_COUNT_RX_BYTES} {
		wantField(t, d, id, nvml.VALUE_TYPE_UNSIGNED_INT, 240<<20)
	}

	for _, id := range []uint32{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX} {
		wantField(t, d, id, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, 20<<10) // of link 0 of 18
	}
}

const busySlice = `
node: {kubernetes: false}
workloads: [{name: w, sm: 30}]
processes: [{device: "0/3g.40gb@4", workload: w, for: 10s}]`

// checkCountersGoOn: the last sample of an id that another instance has now is not ahead of that
// one's; samples of two entities are refused.
func checkCountersGoOn(t *testing.T, l nvml.Interface, node *sim.Node) {
	g := openGPM(t)
	d := g.devices[0]
	sample := func() nvmlsource.GPMSample {
		return g.sample(func(s nvmlsource.GPMSample) nvml.Return { return d.GpmMigSampleGet(2, s) })
	}

	if err := node.Advance(10 * time.Second); err != nil {
		t.Fatal(err)
	}

	before := sample()
	raw := handleOf(t, l, 0)
	gi := ok[nvml.GpuInstance](t)(raw.GetGpuInstanceById(2))
	ci := ok[nvml.ComputeInstance](t)(gi.GetComputeInstanceById(0))
	want(t, "destruction", ci.Destroy(), nvml.SUCCESS)
	want(t, "destruction", gi.Destroy(), nvml.SUCCESS)
	gi = ok[nvml.GpuInstance](t)(raw.CreateGpuInstance(&nvml.GpuInstanceProfileInfo{Id: 9}))
	want(t, "a sample without a compute instance", d.GpmMigSampleGet(2, before), nvml.ERROR_UNKNOWN)
	ok[nvml.ComputeInstance](t)(gi.CreateComputeInstance(&nvml.ComputeInstanceProfileInfo{Id: 2}))

	if err := node.Advance(time.Second); err != nil {
		t.Fatal(err)
	}

	after := sample()
	for _, metric := range []nvml.GpmMetricId{nvml.GPM_METRIC_GRAPHICS_UTIL, nvml.GPM_METRIC_SM_UTIL,
		nvml.GPM_METRIC_SM_OCCUPANCY} {
		if percent := g.metric(before, after, metric); percent != 0 {
			t.Errorf("metric %d is %g %%, of an instance on which nothing has run", metric, percent)
		}
	}

	whole := g.sample(d.GpmSampleGet)
	metrics := []nvmlsource.GPMMetric{{ID: uint32(nvml.GPM_METRIC_SM_UTIL)}}
	want(t, "samples of a GPU instance and of its GPU", g.lib.GpmMetricsGet(after, whole, metrics),
		nvml.ERROR_INVALID_ARGUMENT)
}

// gpm takes samples by the binding of the exporter.
type gpm struct {
	t       *testing.T
	lib     nvmlsource.Library
	devices []nvmlsource.Device
}

func openGPM(t *testing.T) *gpm {
	t.Helper()
	g := &gpm{t: t, lib: nvmlsource.Open(built("libnvidia-ml.so.1"))}
	want(t, "nvmlInit", g.lib.Init(), nvml.SUCCESS)
	g.devices = append(g.devices, ok[nvmlsource.Device](t)(g.lib.DeviceGetHandleByIndex(0)))

	return g
}

func (g *gpm) sample(take func(nvmlsource.GPMSample) nvml.Return) nvmlsource.GPMSample {
	g.t.Helper()
	s := ok[nvmlsource.GPMSample](g.t)(g.lib.GpmSampleAlloc())
	want(g.t, "sample", take(s), nvml.SUCCESS)

	return s
}

func (g *gpm) metric(before, after nvmlsource.GPMSample, id nvml.GpmMetricId) float64 {
	g.t.Helper()
	metrics := []nvmlsource.GPMMetric{{ID: uint32(id)}}
	want(g.t, "nvmlGpmMetricsGet", g.lib.GpmMetricsGet(before, after, metrics), nvml.SUCCESS)
	want(g.t, "metric", metrics[0].Return, nvml.SUCCESS)

	return metrics[0].Value
}
