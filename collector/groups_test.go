package collector

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// migGPU is a GPU with one GPU instance of two compute instances.
func migGPU() gpu.GPU {
	g := plainGPU(2)
	g.MIG.Enabled = gpu.Some(true)
	g.Instances = []gpu.GPUInstance{{
		ID: 1, Profile: "3g.20gb", Device: gpu.Device{Up: true}, LastRead: testEpoch(),
		ComputeInstances: []gpu.ComputeInstance{{ID: 0, UUID: "MIG-a", Device: gpu.Device{Up: true}}, {ID: 1, UUID: "MIG-b"}},
	}}

	return g
}

// groupCase is what one group says of a GPU that a test has filled.
type groupCase struct {
	group string
	fill  func(*gpu.GPU)
	want  string
}

func identityCases() []groupCase {
	return []groupCase{
		{"info", func(g *gpu.GPU) {
			g.Readings.PersistenceMode = gpu.Some(false)
			g.Name, g.Serial, g.Minor, g.SMs = "A100", `1"2`, gpu.Some(3), gpu.Some(108)
			gi := &g.Instances[0]
			gi.Placement, gi.ComputeSlices, gi.MemorySlices = gpu.Some(gpu.Placement{Start: 4, Size: 4}), gpu.Some(3),
				gpu.Some(4)
			gi.SMs, gi.ComputeInstances[0].SMs = gpu.Some(42), gpu.Some(14)
			gi.ComputeInstances[0].Profile, gi.ComputeInstances[0].Placement = "1c.3g.20gb", gpu.Some(gpu.Placement{Start: 0,
				Size: 1})
		}, `# TYPE nvidia_gpu_info gauge
			nvidia_gpu_info{gpu="2",minor="3",name="A100",serial="1\"2",uuid="GPU-2"} 1
			# TYPE nvidia_gpu_persistence_mode gauge
			nvidia_gpu_persistence_mode{gpu="2",uuid="GPU-2"} 0
			# TYPE nvidia_gpu_sms gauge
			nvidia_gpu_sms{gpu="2",uuid="GPU-2"} 108
			# TYPE nvidia_mig_compute_instance_info gauge
			nvidia_mig_compute_instance_info{compute_instance="1",gpu="2",gpu_instance="1",mig_profile="3g.20gb",mig_uuid="MIG-b",uuid="GPU-2"} 1
			nvidia_mig_compute_instance_info{compute_instance="0",compute_profile="1c.3g.20gb",gpu="2",gpu_instance="1",mig_profile="3g.20gb",mig_uuid="MIG-a",placement="0:1",uuid="GPU-2"} 1
			# TYPE nvidia_mig_compute_instance_sms gauge
			nvidia_mig_compute_instance_sms{compute_instance="0",gpu="2",gpu_instance="1",mig_profile="3g.20gb",mig_uuid="MIG-a",uuid="GPU-2"} 14
			# TYPE nvidia_mig_gpu_instance_info gauge
			nvidia_mig_gpu_instance_info{compute_slices="3",gpu="2",gpu_instance="1",memory_slices="4",mig_profile="3g.20gb",placement="4:4",uuid="GPU-2"} 1
			# TYPE nvidia_mig_gpu_instance_sms gauge
			nvidia_mig_gpu_instance_sms{gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2"} 42`},
		{"up", func(g *gpu.GPU) {
			g.Totals.ReadErrors = []gpu.ErrorCount{{Reading: gpu.ReadingPower, Reason: gpu.ReasonTimeout,
				Counter: newCounter(2)}}
		}, `# TYPE nvidia_gpu_last_read_timestamp_seconds gauge
			nvidia_gpu_last_read_timestamp_seconds{gpu="2",uuid="GPU-2"} 1.75e+09
			# TYPE nvidia_gpu_read_errors_total counter
			nvidia_gpu_read_errors_total{gpu="2",reading="power",reason="timeout",uuid="GPU-2"} 2
			# TYPE nvidia_gpu_up gauge
			nvidia_gpu_up{gpu="2",uuid="GPU-2"} 1
			# TYPE nvidia_mig_compute_instance_up gauge
			nvidia_mig_compute_instance_up{compute_instance="0",gpu="2",gpu_instance="1",mig_profile="3g.20gb",mig_uuid="MIG-a",uuid="GPU-2"} 1
			nvidia_mig_compute_instance_up{compute_instance="1",gpu="2",gpu_instance="1",mig_profile="3g.20gb",mig_uuid="MIG-b",uuid="GPU-2"} 0
			# TYPE nvidia_mig_gpu_instance_up gauge
			nvidia_mig_gpu_instance_up{gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2"} 1`},
	}
}

func readingCases() []groupCase {
	return []groupCase{
		{"memory memory_details", func(g *gpu.GPU) {
			g.Readings.Memory = gpu.Memory{Total: gpu.Some[uint64](40), Used: gpu.Some[uint64](0)}
			g.Instances[0].Memory = gpu.Memory{Free: gpu.Some[uint64](19), Reserved: gpu.Some[uint64](1)}
		}, `# TYPE nvidia_gpu_memory_total_bytes gauge
			nvidia_gpu_memory_total_bytes{gpu="2",uuid="GPU-2"} 40
			# TYPE nvidia_gpu_memory_used_bytes gauge
			nvidia_gpu_memory_used_bytes{gpu="2",uuid="GPU-2"} 0
			# TYPE nvidia_mig_gpu_instance_memory_free_bytes gauge
			nvidia_mig_gpu_instance_memory_free_bytes{gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2"} 19
			# TYPE nvidia_mig_gpu_instance_memory_reserved_bytes gauge
			nvidia_mig_gpu_instance_memory_reserved_bytes{gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2"} 1`},
		{"utilization", func(g *gpu.GPU) {
			g.Readings.Utilization, g.Readings.MemoryCopy = gpu.Some(0.42), gpu.Some(0.07)
		}, `# TYPE nvidia_gpu_memory_copy_utilization_ratio gauge
			nvidia_gpu_memory_copy_utilization_ratio{gpu="2",uuid="GPU-2"} 0.07
			# TYPE nvidia_gpu_utilization_ratio gauge
			nvidia_gpu_utilization_ratio{gpu="2",uuid="GPU-2"} 0.42`},
		{"power", func(g *gpu.GPU) {
			g.Readings.PowerWatts, g.Readings.PowerLimitWatts, g.Readings.EnergyJoules = gpu.Some(100.0), gpu.Some(400.0),
				gpu.Some(5e6)
			g.Power = gpu.PowerEstimate{Method: gpu.PowerByActivity, IdleWatts: gpu.Some(52.0), UnallocatedWatts: gpu.Some(30.0)}
			g.Totals.EnergyUnallocatedJoules = gpu.Some(newCounter(300))
			g.Instances[0].PowerWatts, g.Instances[0].EnergyJoules = gpu.Some(70.0), gpu.Some(newCounter(700))
		}, `# TYPE nvidia_gpu_energy_joules_total counter
			nvidia_gpu_energy_joules_total{gpu="2",uuid="GPU-2"} 5e+06
			# TYPE nvidia_gpu_energy_unallocated_joules_total counter
			nvidia_gpu_energy_unallocated_joules_total{gpu="2",uuid="GPU-2"} 300
			# TYPE nvidia_gpu_power_estimate_method gauge
			nvidia_gpu_power_estimate_method{gpu="2",method="activity",uuid="GPU-2"} 1
			# TYPE nvidia_gpu_power_idle_watts gauge
			nvidia_gpu_power_idle_watts{gpu="2",uuid="GPU-2"} 52
			# TYPE nvidia_gpu_power_limit_watts gauge
			nvidia_gpu_power_limit_watts{gpu="2",uuid="GPU-2"} 400
			# TYPE nvidia_gpu_power_unallocated_watts gauge
			nvidia_gpu_power_unallocated_watts{gpu="2",uuid="GPU-2"} 30
			# TYPE nvidia_gpu_power_watts gauge
			nvidia_gpu_power_watts{gpu="2",uuid="GPU-2"} 100
			# TYPE nvidia_mig_gpu_instance_energy_estimate_joules_total counter
			nvidia_mig_gpu_instance_energy_estimate_joules_total{gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2"} 700
			# TYPE nvidia_mig_gpu_instance_power_estimate_watts gauge
			nvidia_mig_gpu_instance_power_estimate_watts{gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2"} 70`},
		temperatureCase(),
	}
}

func temperatureCase() groupCase {
	return groupCase{"temperature", func(g *gpu.GPU) {
		g.Readings.TemperatureCelsius, g.Readings.MemoryCelsius = gpu.Some(37.0), gpu.Some(45.0)
		g.Readings.TemperatureMarginCelsius = gpu.Some(-2.0)
		g.Readings.Fans = []gpu.Fan{{Index: 0, Speed: 0.3}, {Index: 2, Speed: 1.02}}
		g.Readings.TemperatureThresholds = []gpu.TemperatureThreshold{{Kind: "shutdown", Celsius: 92},
			{Kind: "mem_max", Celsius: 95}}
	}, `# TYPE nvidia_gpu_fan_speed_ratio gauge
		nvidia_gpu_fan_speed_ratio{fan="0",gpu="2",uuid="GPU-2"} 0.3
		nvidia_gpu_fan_speed_ratio{fan="2",gpu="2",uuid="GPU-2"} 1.02
		# TYPE nvidia_gpu_temperature_celsius gauge
		nvidia_gpu_temperature_celsius{gpu="2",sensor="gpu",uuid="GPU-2"} 37
		nvidia_gpu_temperature_celsius{gpu="2",sensor="memory",uuid="GPU-2"} 45
		# TYPE nvidia_gpu_temperature_margin_celsius gauge
		nvidia_gpu_temperature_margin_celsius{gpu="2",uuid="GPU-2"} -2
		# TYPE nvidia_gpu_temperature_threshold_celsius gauge
		nvidia_gpu_temperature_threshold_celsius{gpu="2",kind="mem_max",uuid="GPU-2"} 95
		nvidia_gpu_temperature_threshold_celsius{gpu="2",kind="shutdown",uuid="GPU-2"} 92`}
}

func wholeGPUCases() []groupCase {
	return []groupCase{
		{"clocks", func(g *gpu.GPU) {
			g.Readings.ClockHertz = gpu.Clocks{SM: gpu.Some(1.41e9), Video: gpu.Some(1.275e9)}
			g.Readings.ClockEvents, g.Readings.PerformanceState = gpu.Some(gpu.ClockEvents(0x4)), gpu.Some(8)
			g.Totals.ClockEvents = []gpu.ReasonSeconds{
				{Reason: "gpu_idle", Seconds: newCounter(0)}, {Reason: "sw_power_cap", Active: true, Seconds: newCounter(12.5)}}
		}, `# TYPE nvidia_gpu_clock_event_seconds_total counter
			nvidia_gpu_clock_event_seconds_total{gpu="2",reason="sw_power_cap",uuid="GPU-2"} 12.5
			# TYPE nvidia_gpu_clock_hertz gauge
			nvidia_gpu_clock_hertz{domain="sm",gpu="2",uuid="GPU-2"} 1.41e+09
			nvidia_gpu_clock_hertz{domain="video",gpu="2",uuid="GPU-2"} 1.275e+09
			# TYPE nvidia_gpu_performance_state gauge
			nvidia_gpu_performance_state{gpu="2",uuid="GPU-2"} 8`},
		{"pcie", func(g *gpu.GPU) {
			g.Totals.PCIeReceive, g.Totals.PCIeTransmit = gpu.Some(newCounter(5)), gpu.Some(newCounter(6))
			g.Readings.PCIe = gpu.PCIe{
				ReceiveBytes: gpu.Some[uint64](1), Replays: gpu.Some[uint64](3), LinkWidth: gpu.Some(16),
				LinkGeneration: gpu.Some(4)}
		}, `# TYPE nvidia_gpu_pcie_link_generation gauge
			nvidia_gpu_pcie_link_generation{gpu="2",uuid="GPU-2"} 4
			# TYPE nvidia_gpu_pcie_link_width gauge
			nvidia_gpu_pcie_link_width{gpu="2",uuid="GPU-2"} 16
			# TYPE nvidia_gpu_pcie_receive_bytes_total counter
			nvidia_gpu_pcie_receive_bytes_total{gpu="2",uuid="GPU-2"} 5
			# TYPE nvidia_gpu_pcie_replays_total counter
			nvidia_gpu_pcie_replays_total{gpu="2",uuid="GPU-2"} 3
			# TYPE nvidia_gpu_pcie_transmit_bytes_total counter
			nvidia_gpu_pcie_transmit_bytes_total{gpu="2",uuid="GPU-2"} 6`},
		{"nvlink", func(g *gpu.GPU) {
			g.Totals.NVLinkReceive, g.Totals.NVLinkTransmit = gpu.Some(newCounter(5)), gpu.Some(newCounter(6))
			g.Readings.NVLink.Errors = []gpu.NVLinkErrors{{Kind: "crc_flit", Count: 4}}
		}, `# TYPE nvidia_gpu_nvlink_errors_total counter
			nvidia_gpu_nvlink_errors_total{gpu="2",kind="crc_flit",uuid="GPU-2"} 4
			# TYPE nvidia_gpu_nvlink_receive_bytes_total counter
			nvidia_gpu_nvlink_receive_bytes_total{gpu="2",uuid="GPU-2"} 5
			# TYPE nvidia_gpu_nvlink_transmit_bytes_total counter
			nvidia_gpu_nvlink_transmit_bytes_total{gpu="2",uuid="GPU-2"} 6`},
	}
}

func errorCases() []groupCase {
	return []groupCase{
		{"ecc", func(g *gpu.GPU) {
			g.Readings.ECC = []gpu.ECCCount{{Severity: "uncorrected", Lifetime: "aggregate", Location: "sram", Count: 2}}
			g.Readings.RemappedRows = gpu.Some(gpu.RemappedRows{Correctable: 1, Uncorrectable: 3, Pending: true})
			g.Readings.RecoveryAction = gpu.Some(gpu.RecoveryReset)
		}, `# TYPE nvidia_gpu_ecc_errors_total counter
			nvidia_gpu_ecc_errors_total{gpu="2",lifetime="aggregate",location="sram",severity="uncorrected",uuid="GPU-2"} 2
			# TYPE nvidia_gpu_recovery_action gauge
			nvidia_gpu_recovery_action{action="reset",gpu="2",uuid="GPU-2"} 1
			# TYPE nvidia_gpu_remapped_rows gauge
			nvidia_gpu_remapped_rows{gpu="2",severity="corrected",uuid="GPU-2"} 1
			nvidia_gpu_remapped_rows{gpu="2",severity="uncorrected",uuid="GPU-2"} 3
			# TYPE nvidia_gpu_row_remap_failure gauge
			nvidia_gpu_row_remap_failure{gpu="2",uuid="GPU-2"} 0
			# TYPE nvidia_gpu_row_remap_pending gauge
			nvidia_gpu_row_remap_pending{gpu="2",uuid="GPU-2"} 1`},
		{"xid", func(g *gpu.GPU) {
			g.Totals.XIDs = newCounter(3)
			g.Totals.XIDErrors = []gpu.XIDCount{{XID: 79, Counter: newCounter(3), Last: testEpoch()}}
			g.Instances[0].XIDErrors = []gpu.XIDCount{{XID: 79, Counter: newCounter(1), Last: testEpoch()}}
		}, `# TYPE nvidia_gpu_xid_errors_total counter
			nvidia_gpu_xid_errors_total{gpu="2",uuid="GPU-2",xid="79"} 3
			# TYPE nvidia_gpu_xid_last_timestamp_seconds gauge
			nvidia_gpu_xid_last_timestamp_seconds{gpu="2",uuid="GPU-2",xid="79"} 1.75e+09
			# TYPE nvidia_gpu_xids_total counter
			nvidia_gpu_xids_total{gpu="2",uuid="GPU-2"} 3
			# TYPE nvidia_mig_gpu_instance_xid_errors_total counter
			nvidia_mig_gpu_instance_xid_errors_total{gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2",xid="79"} 1
			# TYPE nvidia_mig_gpu_instance_xid_last_timestamp_seconds gauge
			nvidia_mig_gpu_instance_xid_last_timestamp_seconds{gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2",xid="79"} 1.75e+09`},
		{"processes instance_processes", func(g *gpu.GPU) {
			g.Readings.Processes = gpu.Some([]gpu.Process{{PID: 1}, {PID: 1, Graphics: true}, {PID: 2}})
			g.Instances[0].Processes, g.Instances[0].ComputeInstances[1].Processes = gpu.Some(2), gpu.Some(0)
		}, `# TYPE nvidia_gpu_processes gauge
			nvidia_gpu_processes{gpu="2",uuid="GPU-2"} 2
			# TYPE nvidia_mig_compute_instance_processes gauge
			nvidia_mig_compute_instance_processes{compute_instance="1",gpu="2",gpu_instance="1",mig_profile="3g.20gb",mig_uuid="MIG-b",uuid="GPU-2"} 0
			# TYPE nvidia_mig_gpu_instance_processes gauge
			nvidia_mig_gpu_instance_processes{gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2"} 2`},
	}
}

func layoutCases() []groupCase {
	return []groupCase{
		{"mig", func(g *gpu.GPU) {
			g.MIG.Pending, g.Totals.LayoutChanges = gpu.Some(false), newCounter(4)
		}, `# TYPE nvidia_gpu_mig_enabled gauge
			nvidia_gpu_mig_enabled{gpu="2",uuid="GPU-2"} 1
			# TYPE nvidia_gpu_mig_layout_changes_total counter
			nvidia_gpu_mig_layout_changes_total{gpu="2",uuid="GPU-2"} 4
			# TYPE nvidia_gpu_mig_pending gauge
			nvidia_gpu_mig_pending{gpu="2",uuid="GPU-2"} 0`},
		{"capacity profile_max", func(g *gpu.GPU) {
			g.Capacity = gpu.Some(gpu.Capacity{
				Compute:  gpu.SliceCount{Used: 3, Free: 3, Stranded: 1},
				Memory:   gpu.SliceCount{Used: 4, Free: 4},
				Profiles: []gpu.ProfileCapacity{{Name: "1g.5gb", Max: 7, Available: 4}, {Name: "1g.5gb+me", Max: 1, Available: 1}},
			})
		}, `# TYPE nvidia_gpu_mig_profile_instances_available gauge
			nvidia_gpu_mig_profile_instances_available{gpu="2",mig_profile="1g.5gb",uuid="GPU-2"} 4
			nvidia_gpu_mig_profile_instances_available{gpu="2",mig_profile="1g.5gb+me",uuid="GPU-2"} 1
			# TYPE nvidia_gpu_mig_profile_instances_max gauge
			nvidia_gpu_mig_profile_instances_max{gpu="2",mig_profile="1g.5gb",uuid="GPU-2"} 7
			nvidia_gpu_mig_profile_instances_max{gpu="2",mig_profile="1g.5gb+me",uuid="GPU-2"} 1
			# TYPE nvidia_gpu_mig_slices gauge
			nvidia_gpu_mig_slices{gpu="2",kind="compute",state="free",uuid="GPU-2"} 3
			nvidia_gpu_mig_slices{gpu="2",kind="compute",state="stranded",uuid="GPU-2"} 1
			nvidia_gpu_mig_slices{gpu="2",kind="compute",state="used",uuid="GPU-2"} 3
			nvidia_gpu_mig_slices{gpu="2",kind="memory",state="free",uuid="GPU-2"} 4
			nvidia_gpu_mig_slices{gpu="2",kind="memory",state="stranded",uuid="GPU-2"} 0
			nvidia_gpu_mig_slices{gpu="2",kind="memory",state="used",uuid="GPU-2"} 4`},
	}
}

func TestGroups(t *testing.T) {
	for _, test := range slices.Concat(identityCases(), readingCases(), wholeGPUCases(), mediaCases(), extraCases(),
		errorCases(),
		layoutCases(), activityCases()) {
		t.Run(test.group, func(t *testing.T) {
			g := migGPU()
			test.fill(&g)
			expectText(t, renderText(t, mustNew(t, fixedOptions(strings.Fields(test.group)...)), newNode(g)), test.want)
		})
	}
}

// A GPU that gives no handle has nothing but its place, and a group without a reading has no series
// at all.
func TestGroupsWithoutReadings(t *testing.T) {
	silent := gpu.GPU{Facts: gpu.Facts{Index: 1}}

	for _, g := range Groups() {
		want := ""

		switch g.Name {
		case "up":
			want = "# TYPE nvidia_gpu_up gauge\nnvidia_gpu_up{gpu=\"1\"} 0\n"
		case "exporter":
			continue // it is not about GPUs
		}

		expectText(t, renderText(t, mustNew(t, fixedOptions(g.Name)), newNode(silent)), want)
	}
}

func TestExporterGroup(t *testing.T) {
	s := newNode()
	s.Driver = gpu.Some(gpu.Driver{Version: "580.95.05", NVML: "13.580.95.05"})
	s.Sources = []gpu.SourceState{
		{Name: gpu.SourceNVML, Up: true, LastSuccess: testEpoch()},
		{Name: gpu.SourceKubelet, Stale: true, LastSuccess: testEpoch()},
		{Name: gpu.SourceDCGM, Up: true, LastSuccess: testEpoch()}, {Name: gpu.SourceJobs},
		{Name: gpu.SourceKubernetes, Err: fmt.Errorf("%w: set a flag", gpu.ErrNotConfigured)}} // no series
	s.Unmatched, s.HungCalls, s.Witness = make([]gpu.Assignment, 2), 1, gpu.Some(false)
	s.Pace.Fast = gpu.TierPace{Configured: time.Second, Now: 4 * time.Second}
	opts := fixedOptions("exporter")
	opts.DriverUse = someCalls
	expectText(t, renderText(t, mustNew(t, opts), s), `# TYPE mig_exporter_driver_calls_total counter
		mig_exporter_driver_calls_total{class="exclusive",source="nvml"} 3
		mig_exporter_driver_calls_total{class="unknown",source="nvml"} 99
		# TYPE mig_exporter_driver_seconds_total counter
		mig_exporter_driver_seconds_total{class="exclusive"} 1.5
		mig_exporter_driver_seconds_total{class="unknown"} 0.25
		# TYPE mig_exporter_hung_driver_calls gauge
		mig_exporter_hung_driver_calls 1
		# TYPE mig_exporter_kubelet_witness gauge
		mig_exporter_kubelet_witness 0
		# TYPE mig_exporter_poll_configured_interval_seconds gauge
		mig_exporter_poll_configured_interval_seconds{tier="fast"} 1
		# TYPE mig_exporter_poll_interval_seconds gauge
		mig_exporter_poll_interval_seconds{tier="fast"} 4
		# TYPE mig_exporter_snapshot_generation gauge
		mig_exporter_snapshot_generation 7
		# TYPE mig_exporter_snapshot_timestamp_seconds gauge
		mig_exporter_snapshot_timestamp_seconds 1.75e+09
		# TYPE mig_exporter_source_last_success_timestamp_seconds gauge
		mig_exporter_source_last_success_timestamp_seconds{source="dcgm"} 1.75e+09
		mig_exporter_source_last_success_timestamp_seconds{source="kubelet"} 1.75e+09
		mig_exporter_source_last_success_timestamp_seconds{source="nvml"} 1.75e+09
		# TYPE mig_exporter_source_stale gauge
		mig_exporter_source_stale{source="dcgm"} 0
		mig_exporter_source_stale{source="hpc_jobs"} 0
		mig_exporter_source_stale{source="kubelet"} 1
		mig_exporter_source_stale{source="nvml"} 0
		# TYPE mig_exporter_source_up gauge
		mig_exporter_source_up{source="dcgm"} 1
		mig_exporter_source_up{source="hpc_jobs"} 0
		mig_exporter_source_up{source="kubelet"} 0
		mig_exporter_source_up{source="nvml"} 1
		# TYPE mig_exporter_unmatched_device_ids gauge
		mig_exporter_unmatched_device_ids 2
		# TYPE nvidia_driver_info gauge
		nvidia_driver_info{driver_version="580.95.05",nvml_version="13.580.95.05"} 1`)
}
