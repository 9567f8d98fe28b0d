package collector

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// testEpoch is the time of all Snapshots in these tests.
func testEpoch() time.Time { return time.Unix(1_750_000_000, 0).UTC() }

// newCounter is a counter that began a minute before epoch.
func newCounter(value float64) gpu.Counter {
	return gpu.Counter{Value: value, Since: testEpoch().Add(-time.Minute)}
}

// newNode makes a Snapshot of some GPUs.
func newNode(gpus ...gpu.GPU) *gpu.Snapshot {
	return &gpu.Snapshot{Generation: 7, Time: testEpoch(), GPUs: gpus}
}

// plainGPU is a GPU with short names and nothing to read.
func plainGPU(index int) gpu.GPU {
	return gpu.GPU{Facts: gpu.Facts{UUID: gpu.UUID(fmt.Sprintf("GPU-%d", index)), Index: index}, Device: gpu.Device{Up: true},
		LastRead: testEpoch()}
}

func exclusiveHolder(pod string) gpu.Holder {
	return gpu.Holder{
		Container: gpu.Container{Namespace: "ml", Pod: pod, Name: "main"},
		Workload:  "Deployment/train", Resource: "nvidia.com/gpu", Sharing: gpu.SharingExclusive,
		Labels: []gpu.Label{{Name: "app.kubernetes.io/name", Value: "train"}, {Name: "secret", Value: "x"}},
	}
}

func replicaHolder(pod, n string) gpu.Holder {
	h := exclusiveHolder(pod)
	h.Sharing = gpu.SharingTimeSlicing
	h.Replica = n
	h.Workload = ""
	h.Labels = nil

	return h
}

// onlyGroups disables every group but some.
func onlyGroups(groups ...string) map[string]bool {
	disabled := map[string]bool{}
	for _, name := range listGroupNames() {
		disabled[name] = !slices.Contains(groups, name)
	}

	return disabled
}

// everyGroup switches everything on.
func everyGroup() map[string]bool {
	disabled := map[string]bool{}
	for _, name := range listGroupNames() {
		disabled[name] = false
	}

	return disabled
}

// someCalls are calls of two classes.
func someCalls() []gpu.CallUse {
	return []gpu.CallUse{
		{Class: gpu.CallExclusive, Calls: 3, Took: 1500 * time.Millisecond},
		{Class: gpu.CallUnknown, Calls: 99, Took: 250 * time.Millisecond},
	}
}

// allOptions are Options with all that can be switched on.
func allOptions() Options {
	return Options{Jobs: true, Disabled: everyGroup(), DriverUse: someCalls, Advice: richAdvice}
}

// richAdvice is everything that right-sizing can say of two devices of richNode.
func richAdvice() []Advice {
	return []Advice{
		{
			GPU: richGPU(0).UUID, Action: "slice", Profile: "1g.5gb", Rejected: "provisional", Confidence: gpu.Some(0.5),
			Reclaimable: gpu.Some(0.75), StretchLow: gpu.Some(1.0), StretchHigh: gpu.Some(1.5),
			LatencyLow: gpu.Some(1.0), LatencyHigh: gpu.Some(4.5),
			Figure: "stretch", Deciding: gpu.Some(1.25), FreedGPUs: gpu.Some(0.5),
		},
		{
			GPU: richGPU(1).UUID, Instance: gpu.Some(gpu.InstanceID(7)), Placement: gpu.Some(gpu.Placement{Start: 0, Size: 1}),
			Holder: exclusiveHolder("train-1-0").Container, Action: "grow", Profile: "2g.10gb",
		},
	}
}

// fixedOptions are Options with a clock that stands still.
func fixedOptions(groups ...string) Options {
	return Options{Disabled: onlyGroups(groups...), Now: testEpoch}
}

func mustNew(t testing.TB, opts Options) *Collector {
	t.Helper()

	c, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}

	return c
}

// renderText gathers and returns the text exposition without help and without the report on the
// collectors.
func renderText(t testing.TB, c *Collector, s *gpu.Snapshot) string {
	t.Helper()

	families, err := c.Gather(s)
	if err != nil {
		t.Errorf("Gather: %v", err)
	}

	var out bytes.Buffer

	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "mig_exporter_collector_") {
			continue
		}

		if _, err := expfmt.MetricFamilyToText(&out, f); err != nil {
			t.Fatal(err)
		}
	}

	var kept []string

	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, "# HELP ") {
			kept = append(kept, line)
		}
	}

	return strings.Join(kept, "")
}

// expectText compares an exposition with lines that a test writes indented.
func expectText(t testing.TB, got, want string) {
	t.Helper()
	var lines []string

	for line := range strings.Lines(want) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line+"\n")
		}
	}

	if want := strings.Join(lines, ""); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// richNode has everything that a Snapshot can have: count GPUs, each with instances GPU instances
// of one compute instance that a pod of its own holds; the first GPU is without MIG and held by two
// replicas.
func richNode(count, instances int) *gpu.Snapshot {
	s := newNode()
	s.Driver = gpu.Some(gpu.Driver{Version: "580.95.05", NVML: "13.580.95.05", CUDA: "13.0"})
	s.Witness = gpu.Some(true)
	s.Processes = gpu.ProcessUsers
	s.Pace = gpu.Pace{
		Fast: gpu.TierPace{Configured: time.Second, Now: time.Second},
		Slow: gpu.TierPace{Configured: 15 * time.Second, Now: 15 * time.Second},
	}
	s.Sources = []gpu.SourceState{
		{Name: gpu.SourceNVML, Up: true, LastSuccess: testEpoch()},
		{Name: gpu.SourceKubelet, Up: true, LastSuccess: testEpoch()},
	}

	for i := range count {
		g := richGPU(i)
		if i == 0 {
			g.MIG = gpu.MIGState{Enabled: gpu.Some(false), Pending: gpu.Some(false)}
			g.Readings.Utilization, g.Readings.MemoryCopy = gpu.Some(0.5), gpu.Some(0.25)
			g.Readings.Media = gpu.Media{Encoder: gpu.Some(0.1), Decoder: gpu.Some(0.2), JPEG: gpu.Some(0.3), OFA: gpu.Some(0.4)}
			g.Readings.Fans = []gpu.Fan{{Index: 0, Speed: 0.3}, {Index: 1, Speed: 0.31}}
			g.Holders = []gpu.Holder{replicaHolder("a", "0"), replicaHolder("b", "1")}
			g.Containers = []gpu.ContainerUse{
				{Container: g.Holders[0].Container, Sharing: gpu.SharingTimeSlicing, MemoryUsed: gpu.Some[uint64](1 << 30)}}
			g.Power.UnallocatedWatts = gpu.None[float64]()
			g.Power.Method = gpu.PowerNotApplicable
		} else {
			for j := range instances {
				gi := richInstance(i, j)
				g.Instances = append(g.Instances, gi)
				g.Containers = append(g.Containers, gpu.ContainerUse{
					Container: gi.Holders[0].Container, Instance: gpu.Some(gi.ID), Compute: gpu.Some(gi.ComputeInstances[0].ID),
					Sharing:    gpu.SharingExclusive,
					MemoryUsed: gi.Memory.Used, PowerWatts: gi.PowerWatts, EnergyJoules: gpu.Some(newCounter(50)),
				})
			}
		}

		s.GPUs = append(s.GPUs, g)
	}

	return s
}

func richGPU(i int) gpu.GPU {
	bytes := gpu.Some[uint64](1 << 32)
	g := plainGPU(i)
	g.UUID = gpu.UUID(fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i))
	g.Name = "NVIDIA A100-SXM4-40GB"
	g.Architecture = "Ampere"
	g.PCIBusID = "00000000:07:00.0"
	g.Serial = "1"
	g.VBIOS = "92.00.45.00.03"
	g.Minor, g.SMs, g.Allocated = gpu.Some(i), gpu.Some(108), gpu.Some(true)
	g.Readings = gpu.Readings{
		SlowReadings: gpu.SlowReadings{
			TemperatureMarginCelsius: gpu.Some(31.0),
			TemperatureThresholds:    []gpu.TemperatureThreshold{{Kind: "slowdown", Celsius: 89}}, PowerLimitWatts: gpu.Some(400.0),
			ECC: []gpu.ECCCount{
				{Severity: "corrected", Lifetime: "aggregate", Location: "total", Count: 1},
				{Severity: "uncorrected", Lifetime: "aggregate", Location: "total"}},
			Fabric: gpu.Some(gpu.Fabric{State: gpu.FabricCompleted, Status: gpu.Some(uint32(0)), Health: gpu.FabricHealthy,
				ClusterUUID: "00000000-0000-0000-0000-000000000000", Clique: gpu.Some(uint32(0))}),
			RemappedRows: gpu.Some(gpu.RemappedRows{Correctable: 1}), RecoveryAction: gpu.Some(gpu.RecoveryNone),
		},
		Memory:     gpu.Memory{Total: bytes, Used: bytes, Free: bytes, Reserved: bytes},
		PowerWatts: gpu.Some(250.5), EnergyJoules: gpu.Some(1e6),
		TemperatureCelsius: gpu.Some(40.0), MemoryCelsius: gpu.Some(50.0),
		ClockHertz: gpu.Clocks{SM: gpu.Some(1.41e9), Memory: gpu.Some(1.215e9), Graphics: gpu.Some(1.41e9),
			Video: gpu.Some(1.275e9)},
		PCIe: gpu.PCIe{Replays: gpu.Some[uint64](3), LinkWidth: gpu.Some(16), LinkGeneration: gpu.Some(4)},
		NVLink: gpu.NVLink{Errors: []gpu.NVLinkErrors{
			{Kind: "crc_flit"}, {Kind: "crc_data"}, {Kind: "replay", Count: 2}, {Kind: "recovery"}}},
		Processes: gpu.Some([]gpu.Process{
			{PID: 100, MemoryBytes: bytes, SM: gpu.Some(0.25)}, {PID: 101, MemoryBytes: bytes},
			{PID: 100, Instance: gpu.Some(gpu.InstanceID(7))}}),
	}
	g.Activity = richActivity()
	g.ActivitySource = gpu.ActivityDCGM
	g.ActivityRollup = true
	rate := gpu.Some(1e9)
	g.Rates = gpu.LinkRates{PCIeReceive: rate, PCIeTransmit: rate, NVLinkReceive: rate, NVLinkTransmit: rate}
	g.Jobs = []string{"4242"}
	g.MIG = gpu.MIGState{Enabled: gpu.Some(true), Pending: gpu.Some(true), LayoutGeneration: 1}

	capacity := gpu.Capacity{Compute: gpu.SliceCount{Used: 5, Free: 1, Stranded: 1}, Memory: gpu.SliceCount{Used: 8}}
	for _, name := range []string{"1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"} {
		capacity.Profiles = append(capacity.Profiles, gpu.ProfileCapacity{Name: name, Max: 7})
	}

	g.Capacity = gpu.Some(capacity)
	traffic := gpu.Some(newCounter(1e9))
	g.Totals = gpu.Totals{
		Unavailable: gpu.Some(newCounter(1)), RecoveryActions: gpu.Some(newCounter(2)),
		XIDs: newCounter(1), XIDErrors: []gpu.XIDCount{{XID: 31, Counter: newCounter(1), Last: testEpoch()}},
		ReadErrors:  []gpu.ErrorCount{{Reading: gpu.ReadingECC, Reason: gpu.ReasonTimeout, Counter: newCounter(1)}},
		PCIeReceive: traffic, PCIeTransmit: traffic, NVLinkReceive: traffic, NVLinkTransmit: traffic,
		ActivityAnomalies: gpu.Some(newCounter(2)),
		LayoutChanges:     newCounter(0), EnergyUnallocatedJoules: gpu.Some(newCounter(100)),
	}
	g.Readings.ClockEvents, g.Readings.PerformanceState = gpu.Some(gpu.ClockEvents(0)), gpu.Some(0)

	g.Readings.PersistenceMode = gpu.Some(true)
	for _, r := range gpu.ClockEventReasons() {
		g.Totals.ClockEvents = append(g.Totals.ClockEvents, gpu.ReasonSeconds{Reason: r.Name, Seconds: newCounter(0)})
	}

	g.Power = gpu.PowerEstimate{Method: gpu.PowerByActivity, IdleWatts: gpu.Some(52.0), UnallocatedWatts: gpu.Some(1.5)}

	return g
}

func richActivity() gpu.Activity {
	return gpu.Activity{
		GraphicsEngine: gpu.Some(0.9), SM: gpu.Some(0.8), SMOccupancy: gpu.Some(0.4), Tensor: gpu.Some(0.3),
		FP64: gpu.Some(0.0), FP32: gpu.Some(0.2), FP16: gpu.Some(0.1), DRAM: gpu.Some(0.5),
	}
}

func richInstance(i, j int) gpu.GPUInstance {
	bytes := gpu.Some(uint64(j+1) << 30)
	holders := []gpu.Holder{exclusiveHolder(fmt.Sprintf("train-%d-%d", i, j))}
	compute := richActivity()
	compute.DRAM = gpu.None[float64]()

	return gpu.GPUInstance{
		ID: gpu.InstanceID(7 + j), Generation: 1, Profile: "1g.5gb", Placement: gpu.Some(gpu.Placement{Start: j, Size: 1}),
		ComputeSlices: gpu.Some(1), MemorySlices: gpu.Some(1), SMs: gpu.Some(14),
		Device:   gpu.Device{Up: true, Activity: richActivity(), Allocated: gpu.Some(true), Holders: holders},
		LastRead: testEpoch(),
		Memory:   gpu.Memory{Total: bytes, Used: bytes, Free: bytes, Reserved: bytes},
		Media:    gpu.Media{Decoder: gpu.Some(0.5)},
		Rates:    gpu.LinkRates{PCIeReceive: gpu.Some(1e9), PCIeTransmit: gpu.Some(1e9)}, Processes: gpu.Some(1), Jobs: []string{"4242"},
		XIDErrors:  []gpu.XIDCount{{XID: 31, Counter: newCounter(1), Last: testEpoch()}},
		PowerWatts: gpu.Some(30.0), EnergyJoules: gpu.Some(newCounter(10)),
		ComputeInstances: []gpu.ComputeInstance{{
			ID: 0, Generation: 1, UUID: gpu.MIGUUID(fmt.Sprintf("MIG-00000000-0000-0000-%04d-%012d", i, j)), Profile: "1g.5gb",
			Placement: gpu.Some(gpu.Placement{Start: 0, Size: 1}), ComputeSlices: gpu.Some(1), SMs: gpu.Some(14),
			Device: gpu.Device{Up: true, Activity: compute, Allocated: gpu.Some(true), Holders: holders},
			ECC:    []gpu.ECCCount{{Severity: "uncorrected", Lifetime: "volatile", Location: "sram"}}, Processes: gpu.Some(1),
		}},
	}
}
