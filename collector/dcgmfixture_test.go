package collector

import (
	"path/filepath"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// dcgmNode is a node with a GPU of each kind: 0 whole and held by a pod; 1 partitioned into two
// halves, the first held by one pod and the second by two pods, each of which has a compute
// instance of it; 2 partitioned into nothing; 3 whole and shared.
func dcgmNode() *gpu.Snapshot {
	s := newNode(dcgmGPU(0), dcgmGPU(1), dcgmGPU(2), dcgmGPU(3))
	s.Hostname = "dgx"

	s.Driver = gpu.Some(gpu.Driver{Version: "580.95.05", NVML: "13.580.95.05", CUDA: "13.0"})
	for i := range s.GPUs {
		g := &s.GPUs[i]
		switch i {
		case 0:
			g.Holders = []gpu.Holder{exclusiveHolder("whole")}
		case 3:
			g.Holders = []gpu.Holder{replicaHolder("a", "0"), replicaHolder("b", "1")}
		default:
			g.MIG = gpu.MIGState{Enabled: gpu.Some(true), Pending: gpu.Some(true)}
			g.Readings.Media = gpu.Media{}
			g.Readings.Utilization, g.Readings.MemoryCopy, g.Readings.RemappedRows = gpu.None[float64](), gpu.None[float64](),
				gpu.None[gpu.RemappedRows]()
		}
	}

	s.GPUs[1].ActivityRollup = true
	s.GPUs[1].Instances = []gpu.GPUInstance{
		dcgmInstance(1, 0.75, dcgmCompute(0, "3g.20gb", 0.75, "train")),
		dcgmInstance(2, 0.5, dcgmCompute(0, "1c.3g.20gb", 1, "asr"), dcgmCompute(1, "2c.3g.20gb", 0.25, "tts")),
	}
	s.GPUs[1].Instances[0].Holders = s.GPUs[1].Instances[0].ComputeInstances[0].Holders

	return s
}

func dcgmGPU(index int) gpu.GPU {
	g := plainGPU(index)
	g.Name, g.PCIBusID, g.Serial, g.Minor = "NVIDIA A100-SXM4-40GB", "00000000:b7:00.0", "15", gpu.Some(index+4)
	g.Readings = gpu.Readings{
		SlowReadings: gpu.SlowReadings{
			Fans: []gpu.Fan{{Index: 0, Speed: 0.42}, {Index: 1, Speed: 0.9}}, PowerLimitWatts: gpu.Some(400.0),
			ECC: []gpu.ECCCount{{Severity: "corrected", Lifetime: "aggregate", Location: "total", Count: 7},
				{Severity: "uncorrected", Lifetime: "volatile", Location: "sram", Count: 1}},
			RemappedRows:   gpu.Some(gpu.RemappedRows{Correctable: 2, Uncorrectable: 1, Pending: true}),
			RecoveryAction: gpu.Some(gpu.RecoveryReboot),
		},
		Memory: gpu.Memory{Total: gpu.Some[uint64](40 << 30), Used: gpu.Some[uint64](10<<30 + 5),
			Free: gpu.Some[uint64](29 << 30), Reserved: gpu.Some[uint64](600 << 20)},
		Utilization: gpu.Some(0.29), MemoryCopy: gpu.Some(0.07),
		Media: gpu.Media{Encoder: gpu.Some(0.11), Decoder: gpu.Some(0.22)}, PerformanceState: gpu.Some(2),
		PowerWatts: gpu.Some(250.5 + float64(index)), EnergyJoules: gpu.Some(1234.567),
		TemperatureCelsius: gpu.Some(40.0 + float64(index)), MemoryCelsius: gpu.Some(50.0),
		ClockHertz:  gpu.Clocks{SM: gpu.Some(1.41e9), Memory: gpu.Some(1.215e9), Video: gpu.Some(1.275e9)},
		ClockEvents: gpu.Some(gpu.ClockEvents(0x24)),
		PCIe:        gpu.PCIe{Replays: gpu.Some[uint64](3), LinkWidth: gpu.Some(16), LinkGeneration: gpu.Some(4)},
		NVLink: gpu.NVLink{Errors: []gpu.NVLinkErrors{{Kind: "crc_flit", Count: 1}, {Kind: "crc_data", Count: 2},
			{Kind: "replay", Count: 3}, {Kind: "recovery", Count: 4}}},
	}
	g.Activity = dcgmActivity(0.5)
	g.ActivitySource = gpu.ActivityDCGM
	g.Rates = gpu.LinkRates{PCIeReceive: gpu.Some(1e6), PCIeTransmit: gpu.Some(2e6), NVLinkReceive: gpu.Some(1.024e6),
		NVLinkTransmit: gpu.Some(2.048e6)}

	g.Totals = gpu.Totals{XIDs: newCounter(0)}
	for _, r := range gpu.ClockEventReasons() {
		g.Totals.ClockEvents = append(g.Totals.ClockEvents,
			gpu.ReasonSeconds{Reason: r.Name, Seconds: newCounter(float64(r.Bit) / 8)})
	}

	return g
}

func dcgmActivity(v float64) gpu.Activity {
	return gpu.Activity{
		GraphicsEngine: gpu.Some(v), SM: gpu.Some(v * 0.8), SMOccupancy: gpu.Some(v * 0.4), Tensor: gpu.Some(v * 0.3),
		FP64: gpu.Some(v * 0.1), FP32: gpu.Some(v * 0.2), FP16: gpu.Some(v * 0.15), DRAM: gpu.Some(v * 0.6),
	}
}

func dcgmInstance(id int, activity float64, computeInstances ...gpu.ComputeInstance) gpu.GPUInstance {
	return gpu.GPUInstance{
		ID: gpu.InstanceID(id), Profile: "3g.20gb",
		Device:           gpu.Device{Up: true, Activity: dcgmActivity(activity)},
		LastRead:         testEpoch(),
		ComputeInstances: computeInstances,
		Memory: gpu.Memory{Total: gpu.Some[uint64](20 << 30), Used: gpu.Some(uint64(id) << 30),
			Free: gpu.Some(uint64(19-id) << 30), Reserved: gpu.Some[uint64](0)},
	}
}

func dcgmCompute(id int, profile string, activity float64, pod string) gpu.ComputeInstance {
	a := dcgmActivity(activity)
	a.DRAM = gpu.None[float64]()

	return gpu.ComputeInstance{ID: gpu.ComputeID(id), Profile: profile, Device: gpu.Device{Up: true, Activity: a,
		Holders: []gpu.Holder{exclusiveHolder(pod)}}}
}

// TestDocsDCGMFixture holds the exposition that internal/promtest runs dashboards' queries on. With
// -update it rewrites it.
func TestDocsDCGMFixture(t *testing.T) {
	all := DefaultCounters()
	for _, f := range []string{"DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_FB_TOTAL"} {
		all = append(all, Counter{Field: f, Type: CounterGauge, Help: "An optional row."})
	}

	c := mustNew(t, Options{Names: NamesDCGM, Counters: all, Disabled: map[string]bool{ExporterGroup: true},
		Now: testEpoch})
	s := dcgmNode()
	c.Observe(s)
	upToDate(t, filepath.Join("..", "internal", "promtest", "testdata", "dcgm.prom"), []byte(renderText(t, c, s)))
}
