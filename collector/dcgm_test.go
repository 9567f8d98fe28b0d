package collector

import (
	"maps"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func newCounters(fields ...string) []Counter {
	known := dcgmFields()
	var counters []Counter

	for _, f := range fields {
		kind := CounterGauge
		if known[f] != nil && known[f].label {
			kind = CounterLabel
		}

		counters = append(counters, Counter{Field: f, Type: kind, Help: "Help of " + f + "."})
	}

	return counters
}

// dcgmText is the exposition of some fields of a node, the exporter's own families aside.
func dcgmText(t *testing.T, opts Options, s *gpu.Snapshot, fields ...string) string {
	t.Helper()
	opts.Names, opts.Now, opts.Counters = NamesDCGM, testEpoch, newCounters(fields...)
	opts.Disabled = map[string]bool{ExporterGroup: true}
	c := mustNew(t, opts)
	c.Observe(s)

	return renderText(t, c, s)
}

// bareSnapshot is a node whose GPUs have an index and a UUID for labels and nothing else.
func bareSnapshot(gpus ...gpu.GPU) *gpu.Snapshot {
	s := newNode(gpus...)
	for i := range s.GPUs {
		s.GPUs[i].Name, s.GPUs[i].PCIBusID = "", ""
	}

	return s
}

// dcgmValues are those of the first GPU of dcgmNode, the fields aside that are another's under a
// newer name.
func dcgmValues() map[string]float64 {
	return map[string]float64{
		"DCGM_FI_DEV_SM_CLOCK": 1410, "DCGM_FI_DEV_MEM_CLOCK": 1215, "DCGM_FI_DEV_VIDEO_CLOCK": 1275,
		"DCGM_FI_DEV_MEMORY_TEMP": 50, "DCGM_FI_DEV_GPU_TEMP": 40, "DCGM_FI_DEV_POWER_USAGE": 250.5,
		"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1234567, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": 400,
		"DCGM_FI_DEV_PSTATE": 2, "DCGM_FI_DEV_FAN_SPEED": 42, "DCGM_FI_DEV_ENC_UTIL": 11, "DCGM_FI_DEV_DEC_UTIL": 22,
		"DCGM_FI_DEV_ENC_UTIL_RATIO": 0.11, "DCGM_FI_DEV_DEC_UTIL_RATIO": 0.22, "DCGM_FI_DEV_FAN_SPEED_RATIO": 0.42,
		"DCGM_FI_DEV_GPU_UTIL": 29, "DCGM_FI_DEV_MEM_COPY_UTIL": 7, "DCGM_FI_DEV_MIG_MODE": 0,
		"DCGM_FI_DEV_FB_TOTAL": 40960, "DCGM_FI_DEV_FB_FREE": 29696, "DCGM_FI_DEV_FB_USED": 10240, "DCGM_FI_DEV_FB_RESERVED": 600,
		"DCGM_FI_DEV_FB_USED_PERCENT": float64(10<<30+5) / float64(40<<30-600<<20),
		"DCGM_FI_DEV_FB_USED_RATIO":   float64(10<<30+5) / float64(40<<30-600<<20),

		"DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 3, "DCGM_FI_DEV_PCIE_LINK_GEN": 4, "DCGM_FI_DEV_PCIE_LINK_WIDTH": 16,
		"DCGM_FI_PROF_PCIE_TX_BYTES": 2e6, "DCGM_FI_PROF_PCIE_RX_BYTES": 1e6,
		"DCGM_FI_PROF_NVLINK_TX_BYTES": 2.048e6, "DCGM_FI_PROF_NVLINK_RX_BYTES": 1.024e6, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 3,
		"DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 1, "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": 2,
		"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 3, "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 4,

		"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 1, "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 2,
		"DCGM_FI_DEV_ROW_REMAP_FAILURE": 0, "DCGM_FI_DEV_ROW_REMAP_PENDING": 1, "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION": 2,
		"DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": 7, "DCGM_FI_DEV_ECC_DBE_VOL_SRM": 1,
		"DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 0x24, "DCGM_FI_DEV_POWER_VIOLATION": 0.5e9, "DCGM_FI_DEV_THERMAL_VIOLATION": 12e9,
		"DCGM_FI_DEV_SYNC_BOOST_VIOLATION": 2e9, "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS": 0.5e9,
		"DCGM_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_NS": 2e9, "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS": 4e9,
		"DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS": 8e9, "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS": 16e9,

		"DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.5, "DCGM_FI_PROF_SM_ACTIVE": 0.4, "DCGM_FI_PROF_SM_OCCUPANCY": 0.2,
		"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.15, "DCGM_FI_PROF_DRAM_ACTIVE": 0.3, "DCGM_FI_PROF_PIPE_FP64_ACTIVE": 0.05,
		"DCGM_FI_PROF_PIPE_FP32_ACTIVE": 0.1, "DCGM_FI_PROF_PIPE_FP16_ACTIVE": 0.075,

		"DCGM_FI_DEV_SM_CLOCK_HERTZ": 1.41e9, "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ": 1.215e9, "DCGM_FI_DEV_VIDEO_CLOCK_HERTZ": 1.275e9,
		"DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": 1234.567, "DCGM_FI_DEV_GPU_UTIL_RATIO": 0.29, "DCGM_FI_DEV_MEMORY_UTIL_RATIO": 0.07,
		"DCGM_FI_DEV_FB_FREE_BYTES": 29 << 30, "DCGM_FI_DEV_FB_USED_BYTES": 10<<30 + 5, "DCGM_FI_DEV_FB_RESERVED_BYTES": 600 << 20,
		"DCGM_FI_DEV_FB_CAPACITY_BYTES": 40 << 30, "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND": 3.072e6,
		"DCGM_FI_DEV_XID_ERRORS": 0, "DCGM_EXP_XID_ERRORS_COUNT": 0, "DCGM_EXP_XID_ERRORS_TOTAL": 0, "DCGM_EXP_CLOCK_EVENTS_COUNT": 1, "DCGM_EXP_GPU_HEALTH_STATUS": 10,
		"DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL": 0.5, "DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL": 12,
	}
}

// Every field has DCGM's value in DCGM's unit.
func TestDCGMValues(t *testing.T) {
	want := dcgmValues()
	s := dcgmNode()
	s.GPUs = s.GPUs[:1]
	s.GPUs[0].MIG.Enabled = gpu.Some(false)

	for _, n := range dcgmRenamedFields() { // the others are the old ones under another name
		if v, ok := want[n.old]; ok && n.id == 0 {
			want[n.name] = v
		}
	}

	for _, f := range dcgmFieldList() {
		if f.label {
			continue
		}

		c := mustNew(t, Options{Names: NamesDCGM, Counters: newCounters(f.name)})
		c.Observe(s)

		families, err := c.Gather(s)
		if err != nil {
			t.Fatal(err)
		}

		v, wanted := want[f.name]
		switch metrics := metricsOf(families, f.name); {
		case wanted && (len(metrics) == 0 || metrics[0].GetGauge().GetValue() != v):
			t.Errorf("%s is %v, want %v", f.name, metrics, v)
		case !wanted && len(metrics) > 0:
			t.Errorf("%s is %v, want none", f.name, metrics)
		case !wanted && !f.hasNoValue() && f.source != fromCounting && !strings.Contains(f.name, "_ECC_"):
			t.Errorf("%s is served and not tested", f.name)
		}
	}
}

// What is the whole GPU's is there once; what instances have is theirs alone.
func TestDCGMUnderMIG(t *testing.T) {
	s := bareSnapshot(dcgmNode().GPUs[1:3]...)
	expectText(t, dcgmText(t, Options{}, s, "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"), `
		# TYPE DCGM_FI_DEV_FB_USED gauge
		DCGM_FI_DEV_FB_USED{UUID="GPU-2",device="nvidia2",gpu="2"} 10240
		DCGM_FI_DEV_FB_USED{GPU_I_ID="2",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",device="nvidia1",gpu="1"} 2048
		DCGM_FI_DEV_FB_USED{GPU_I_ID="1",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",container="main",device="nvidia1",gpu="1",namespace="ml",pod="train"} 1024
		# TYPE DCGM_FI_DEV_POWER_USAGE gauge
		DCGM_FI_DEV_POWER_USAGE{UUID="GPU-1",device="nvidia1",gpu="1"} 251.5
		DCGM_FI_DEV_POWER_USAGE{UUID="GPU-2",device="nvidia2",gpu="2"} 252.5
		# TYPE DCGM_FI_PROF_DRAM_ACTIVE gauge
		DCGM_FI_PROF_DRAM_ACTIVE{UUID="GPU-2",device="nvidia2",gpu="2"} 0.3
		DCGM_FI_PROF_DRAM_ACTIVE{GPU_I_ID="2",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",device="nvidia1",gpu="1"} 0.3
		DCGM_FI_PROF_DRAM_ACTIVE{GPU_I_ID="1",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",container="main",device="nvidia1",gpu="1",namespace="ml",pod="train"} 0.44999999999999996
		# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge
		DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="GPU-2",device="nvidia2",gpu="2"} 0.5
		DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_I_ID="2",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",device="nvidia1",gpu="1"} 0.5
		DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_I_ID="1",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",container="main",device="nvidia1",gpu="1",namespace="ml",pod="train"} 0.75
		DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_CI_ID="0",GPU_I_ID="2",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",container="main",device="nvidia1",gpu="1",namespace="ml",pod="asr"} 1
		DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_CI_ID="1",GPU_I_ID="2",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",container="main",device="nvidia1",gpu="1",namespace="ml",pod="tts"} 0.25
	`)
}

// A pod that holds several compute instances of one GPU instance is on its memory once and on its
// activity once each.
func TestDCGMOnePodOfAll(t *testing.T) {
	s := bareSnapshot(dcgmNode().GPUs[1])
	gi := &s.GPUs[0].Instances[1]
	s.GPUs[0].Instances = s.GPUs[0].Instances[1:]
	holder := []gpu.Holder{exclusiveHolder("all")}
	gi.Holders, gi.ComputeInstances[0].Holders, gi.ComputeInstances[1].Holders = holder, holder, holder
	expectText(t, dcgmText(t, Options{}, s, "DCGM_FI_DEV_FB_USED", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"), `
		# TYPE DCGM_FI_DEV_FB_USED gauge
		DCGM_FI_DEV_FB_USED{GPU_I_ID="2",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",container="main",device="nvidia1",gpu="1",namespace="ml",pod="all"} 2048
		# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge
		DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_I_ID="2",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",device="nvidia1",gpu="1"} 0.5
		DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_CI_ID="0",GPU_I_ID="2",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",container="main",device="nvidia1",gpu="1",namespace="ml",pod="all"} 1
		DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_CI_ID="1",GPU_I_ID="2",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",container="main",device="nvidia1",gpu="1",namespace="ml",pod="all"} 0.25
	`)
}

// A single compute instance has series of its own if it is a part of its GPU instance.
func TestDCGMPartOfAnInstance(t *testing.T) {
	for _, test := range []struct {
		slices gpu.Opt[int]
		series int
	}{{gpu.Some(3), 1}, {gpu.None[int](), 1}, {gpu.Some(1), 2}} {
		s := bareSnapshot(dcgmNode().GPUs[1])
		s.GPUs[0].Instances = s.GPUs[0].Instances[:1]
		gi := &s.GPUs[0].Instances[0]
		gi.ComputeSlices = gpu.Some(3)
		gi.ComputeInstances[0].ComputeSlices = test.slices

		got := dcgmText(t, Options{}, s, "DCGM_FI_PROF_SM_ACTIVE")
		if n := strings.Count(got, "DCGM_FI_PROF_SM_ACTIVE{"); n != test.series || strings.Contains(got, "GPU_CI_ID") != (n == 2) {
			t.Errorf("%v of 3 slices: %s", test.slices, got)
		}
	}
}

func TestDCGMRepeatGPUFields(t *testing.T) {
	s := bareSnapshot(dcgmNode().GPUs[1])
	expectText(t, dcgmText(t, Options{RepeatGPUFields: true}, s, "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED", "DCGM_EXP_XID_ERRORS_COUNT",
		"DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"), `
		# TYPE DCGM_EXP_XID_ERRORS_COUNT gauge
		DCGM_EXP_XID_ERRORS_COUNT{UUID="GPU-1",device="nvidia1",gpu="1",window_size_in_ms="300000"} 0
		# TYPE DCGM_FI_DEV_FB_USED gauge
		DCGM_FI_DEV_FB_USED{GPU_I_ID="2",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",device="nvidia1",gpu="1"} 2048
		DCGM_FI_DEV_FB_USED{GPU_I_ID="1",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",container="main",device="nvidia1",gpu="1",namespace="ml",pod="train"} 1024
		# TYPE DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL gauge
		DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{UUID="GPU-1",device="nvidia1",gpu="1"} 3
		DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{GPU_I_ID="2",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",device="nvidia1",gpu="1"} 3
		DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{GPU_I_ID="1",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",container="main",device="nvidia1",gpu="1",namespace="ml",pod="train"} 3
		# TYPE DCGM_FI_DEV_POWER_USAGE gauge
		DCGM_FI_DEV_POWER_USAGE{UUID="GPU-1",device="nvidia1",gpu="1"} 251.5
		DCGM_FI_DEV_POWER_USAGE{GPU_I_ID="2",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",device="nvidia1",gpu="1"} 251.5
		DCGM_FI_DEV_POWER_USAGE{GPU_I_ID="1",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",container="main",device="nvidia1",gpu="1",namespace="ml",pod="train"} 251.5
		# TYPE DCGM_FI_PROF_NVLINK_RX_BYTES gauge
		DCGM_FI_PROF_NVLINK_RX_BYTES{UUID="GPU-1",device="nvidia1",gpu="1"} 1.024e+06
		# TYPE DCGM_FI_PROF_PCIE_TX_BYTES gauge
		DCGM_FI_PROF_PCIE_TX_BYTES{UUID="GPU-1",device="nvidia1",gpu="1"} 2e+06
	`)
}

// TestDCGMMedia: of GPU instances by GPM, of GPUs by the driver's utilization.
func TestDCGMMedia(t *testing.T) {
	s := bareSnapshot(dcgmNode().GPUs[:2]...)
	s.GPUs[1].Instances = s.GPUs[1].Instances[1:]
	s.GPUs[1].Instances[0].Media = gpu.Media{Decoder: gpu.Some(0.126)}
	s.GPUs[0].Holders = nil
	expectText(t, dcgmText(t, Options{RepeatGPUFields: true}, s, "DCGM_FI_DEV_ENC_UTIL", "DCGM_FI_DEV_DEC_UTIL", "DCGM_FI_DEV_DEC_UTIL_RATIO"), `
		# TYPE DCGM_FI_DEV_DEC_UTIL gauge
		DCGM_FI_DEV_DEC_UTIL{UUID="GPU-0",device="nvidia0",gpu="0"} 22
		DCGM_FI_DEV_DEC_UTIL{GPU_I_ID="2",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",device="nvidia1",gpu="1"} 13
		# TYPE DCGM_FI_DEV_DEC_UTIL_RATIO gauge
		DCGM_FI_DEV_DEC_UTIL_RATIO{UUID="GPU-0",device="nvidia0",gpu="0"} 0.22
		DCGM_FI_DEV_DEC_UTIL_RATIO{GPU_I_ID="2",GPU_I_PROFILE="3g.20gb",UUID="GPU-1",device="nvidia1",gpu="1"} 0.126
		# TYPE DCGM_FI_DEV_ENC_UTIL gauge
		DCGM_FI_DEV_ENC_UTIL{UUID="GPU-0",device="nvidia0",gpu="0"} 11
	`)
}

func TestDCGMLabels(t *testing.T) {
	labelsOf := func(t *testing.T, opts Options, s *gpu.Snapshot, fields ...string) map[string]string {
		opts.Names, opts.Counters = NamesDCGM, newCounters(append(fields, "DCGM_FI_DEV_GPU_TEMP")...)

		families, err := mustNew(t, opts).Gather(s)
		if err != nil {
			t.Fatal(err)
		}

		of := map[string]string{}
		for _, l := range metricsOf(families, "DCGM_FI_DEV_GPU_TEMP")[0].GetLabel() {
			of[l.GetName()] = l.GetValue()
		}

		return of
	}
	device := map[string]string{"gpu": "0", "UUID": "GPU-0", "pci_bus_id": "00000000:B7:00.0", "device": "nvidia0", "modelName": "NVIDIA A100-SXM4-40GB"}
	pod := map[string]string{"namespace": "ml", "pod": "whole", "container": "main"}

	all := []string{"DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION", "DCGM_FI_NVML_VERSION", "DCGM_FI_DEV_NAME", "DCGM_FI_DEV_SERIAL",
		"DCGM_FI_DEV_UUID", "DCGM_FI_DEV_MINOR_NUMBER", "DCGM_FI_DEV_PCI_BUSID", "DCGM_FI_DEV_VBIOS_VERSION", "DCGM_FI_DEV_BRAND"}
	for _, test := range []struct {
		name   string
		opts   Options
		change func(*gpu.GPU)
		fields []string
		want   []map[string]string
	}{
		{name: "as it is", want: []map[string]string{device, pod, {"Hostname": "dgx"}}},
		{name: "hostname", opts: Options{HostnameLabel: HostnameLower}, want: []map[string]string{device, pod, {"hostname": "dgx"}}},
		{name: "the name that the environment gives", opts: Options{NodeName: "gpu-7"}, want: []map[string]string{device, pod, {"Hostname": "gpu-7"}}},
		{name: "no hostname", opts: Options{HostnameLabel: HostnameOff}, want: []map[string]string{device, pod}},
		{name: "pods in info families alone", opts: Options{PodLabels: PodLabelsInfo, HostnameLabel: HostnameOff}, want: []map[string]string{device}},
		{name: "pod labels", opts: Options{PodLabelNames: []string{"app.kubernetes.io/name"}, HostnameLabel: HostnameOff},
			want: []map[string]string{device, pod}},
		{name: "a job", opts: Options{HostnameLabel: HostnameOff}, change: func(g *gpu.GPU) { g.Jobs = []string{"4711"} },
			want: []map[string]string{device, pod, {"hpc_job": "4711"}}},
		{name: "a job without pods", opts: Options{HostnameLabel: HostnameOff, PodLabels: PodLabelsOff},
			change: func(g *gpu.GPU) { g.Jobs = []string{"4711"} }, want: []map[string]string{device, {"hpc_job": "4711"}}},
		{name: "several jobs", opts: Options{HostnameLabel: HostnameOff}, change: func(g *gpu.GPU) { g.Jobs = []string{"1", "2"} },
			want: []map[string]string{device, pod}},
		{name: "shared", opts: Options{HostnameLabel: HostnameOff}, change: func(g *gpu.GPU) { g.Holders = []gpu.Holder{replicaHolder("a", "0"), replicaHolder("b", "1")} },
			want: []map[string]string{device}},
		{name: "texts", opts: Options{HostnameLabel: HostnameOff}, fields: all, want: []map[string]string{device, pod, {
			"DCGM_FI_DRIVER_VERSION": "580.95.05", "DCGM_FI_SYSTEM_DRIVER_VERSION": "580.95.05", "DCGM_FI_NVML_VERSION": "13.580.95.05",
			"DCGM_FI_DEV_NAME": "NVIDIA A100-SXM4-40GB", "DCGM_FI_DEV_SERIAL": "15", "DCGM_FI_DEV_UUID": "GPU-0",
			"DCGM_FI_DEV_MINOR_NUMBER": "4", "DCGM_FI_DEV_PCI_BUSID": "00000000:B7:00.0"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := dcgmNode()

			s.GPUs = s.GPUs[:1]
			if test.change != nil {
				test.change(&s.GPUs[0])
			}

			want := map[string]string{}
			for _, m := range test.want {
				maps.Copy(want, m)
			}

			if got := labelsOf(t, test.opts, s, test.fields...); !maps.Equal(got, want) {
				t.Errorf("labels %v, want %v", got, want)
			}
		})
	}
}

func TestNamesServed(t *testing.T) {
	for _, test := range []struct {
		names        Names
		native, dcgm bool
	}{{"", true, false}, {NamesNative, true, false}, {NamesDCGM, false, true}, {NamesBoth, true, true}} {
		s := dcgmNode()
		c := mustNew(t, Options{Names: test.names})
		c.Observe(s)

		families, err := c.Gather(s)
		if err != nil {
			t.Fatal(err)
		}

		has := func(prefix string) bool {
			return slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return strings.HasPrefix(f.GetName(), prefix) })
		}
		what := string(test.names) + ": has families of "
		cmptest.Equal(t, what+"GPUs", has("nvidia_gpu_"), test.native)
		cmptest.Equal(t, what+"dcgm-exporter", has("DCGM_"), test.dcgm)
		cmptest.Equal(t, what+"the exporter", has("mig_exporter_snapshot_timestamp_seconds"), true)
	}
}

func TestNewRefusesDCGM(t *testing.T) {
	for _, test := range []struct {
		opts Options
		want string
	}{
		{Options{Names: "DCGM"}, `names "DCGM": expected native, dcgm or both`},
		{Options{Names: NamesDCGM, HostnameLabel: "host"}, `hostname label "host": expected Hostname, hostname or off`},
		{Options{Names: NamesBoth, Counters: newCounters("DCGM_FI_DEV_MAX_SM_CLOCK")}, `counters: field DCGM_FI_DEV_MAX_SM_CLOCK: DCGM has it`},
		{Options{Names: NamesBoth, Counters: []Counter{{Field: "DCGM_FI_DRIVER_VERSION", Type: CounterGauge}}}, `counters: type gauge: `},
	} {
		if _, err := New(test.opts); err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("error %v, want %s", err, test.want)
		}
	}
}

// The type is the row's, whatever the field is. It has no created timestamp: DCGM has none either.
func TestDCGMTypes(t *testing.T) {
	s := bareSnapshot(dcgmNode().GPUs[0])
	c := mustNew(t, Options{Names: NamesDCGM, Counters: []Counter{{"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", CounterCounter, "x"}}})

	families, err := c.Gather(s)
	if err != nil {
		t.Fatal(err)
	}

	m := metricsOf(families, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL")
	if len(m) != 1 {
		t.Fatalf("got %v, want one series", m)
	}

	cmptest.Equal(t, "value", m[0].GetCounter().GetValue(), 3)

	if created := m[0].GetCounter().CreatedTimestamp; created != nil {
		t.Errorf("created %v, want none", created)
	}
}

// The labels of a device are made once for all its families.
func TestDCGMSharesLabels(t *testing.T) {
	d, err := newDCGM(Options{Counters: newCounters("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE")}, podLabels{mode: PodLabelsSeries})
	if err != nil {
		t.Fatal(err)
	}

	w := &metricWriter{}
	d.collect(w, newView(bareSnapshot(dcgmNode().GPUs[0]), &labelSet{}, d.podLabels))

	if len(w.metrics) != 2 {
		t.Fatalf("%d metrics", len(w.metrics))
	}

	a := w.metrics[0]

	b := w.metrics[1]
	if a.labels != b.labels {
		t.Error("two families of a GPU have labels of their own")
	}
}

func BenchmarkGatherDCGM(b *testing.B) {
	c := mustNew(b, Options{Names: NamesDCGM})
	s := richNode(9, 7)
	c.Observe(s)
	b.ReportAllocs()

	for b.Loop() {
		if _, err := c.Gather(s); err != nil {
			b.Fatal(err)
		}
	}
}
