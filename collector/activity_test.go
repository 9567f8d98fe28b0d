package collector

import (
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func activityCases() []groupCase {
	return []groupCase{
		{"activity pipes", func(g *gpu.GPU) {
			g.Activity = gpu.Activity{GraphicsEngine: gpu.Some(0.845), Tensor: gpu.Some(0.0), DRAM: gpu.Some(0.5)}
			g.ActivitySource = gpu.ActivityGPM
			g.ActivityRollup = true
			g.Totals.ActivityAnomalies = gpu.Some(newCounter(2))
			gi := &g.Instances[0]
			gi.Activity = gpu.Activity{
				SM: gpu.Some(1.0211), SMOccupancy: gpu.Some(0.6), FP64: gpu.Some(0.1), FP32: gpu.Some(0.2), FP16: gpu.Some(0.3),
				DRAM: gpu.Some(0.7)}
			gi.ComputeInstances[0].Activity = gpu.Activity{SM: gpu.Some(0.25)}
		}, `# TYPE nvidia_gpu_activity_anomalies_total counter
			nvidia_gpu_activity_anomalies_total{gpu="2",uuid="GPU-2"} 2
			# TYPE nvidia_gpu_activity_source gauge
			nvidia_gpu_activity_source{gpu="2",rollup="true",source="gpm",uuid="GPU-2"} 1
			# TYPE nvidia_gpu_dram_activity_ratio gauge
			nvidia_gpu_dram_activity_ratio{gpu="2",uuid="GPU-2"} 0.5
			# TYPE nvidia_gpu_graphics_engine_activity_ratio gauge
			nvidia_gpu_graphics_engine_activity_ratio{gpu="2",uuid="GPU-2"} 0.845
			# TYPE nvidia_gpu_tensor_activity_ratio gauge
			nvidia_gpu_tensor_activity_ratio{gpu="2",uuid="GPU-2"} 0
			# TYPE nvidia_mig_compute_instance_sm_activity_ratio gauge
			nvidia_mig_compute_instance_sm_activity_ratio{compute_instance="0",gpu="2",gpu_instance="1",mig_profile="3g.20gb",mig_uuid="MIG-a",uuid="GPU-2"} 0.25
			# TYPE nvidia_mig_gpu_instance_dram_activity_ratio gauge
			nvidia_mig_gpu_instance_dram_activity_ratio{gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2"} 0.7
			# TYPE nvidia_mig_gpu_instance_fp16_activity_ratio gauge
			nvidia_mig_gpu_instance_fp16_activity_ratio{gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2"} 0.3
			# TYPE nvidia_mig_gpu_instance_fp32_activity_ratio gauge
			nvidia_mig_gpu_instance_fp32_activity_ratio{gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2"} 0.2
			# TYPE nvidia_mig_gpu_instance_fp64_activity_ratio gauge
			nvidia_mig_gpu_instance_fp64_activity_ratio{gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2"} 0.1
			# TYPE nvidia_mig_gpu_instance_sm_activity_ratio gauge
			nvidia_mig_gpu_instance_sm_activity_ratio{gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2"} 1.0211
			# TYPE nvidia_mig_gpu_instance_sm_occupancy_ratio gauge
			nvidia_mig_gpu_instance_sm_occupancy_ratio{gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2"} 0.6`},
		{"link_rates", func(g *gpu.GPU) {
			g.Rates = gpu.LinkRates{PCIeReceive: gpu.Some(1.0), PCIeTransmit: gpu.Some(2.0), NVLinkReceive: gpu.Some(0.0),
				NVLinkTransmit: gpu.Some(4.0)}
		}, `# TYPE nvidia_gpu_nvlink_receive_bytes_per_second gauge
			nvidia_gpu_nvlink_receive_bytes_per_second{gpu="2",uuid="GPU-2"} 0
			# TYPE nvidia_gpu_nvlink_transmit_bytes_per_second gauge
			nvidia_gpu_nvlink_transmit_bytes_per_second{gpu="2",uuid="GPU-2"} 4
			# TYPE nvidia_gpu_pcie_receive_bytes_per_second gauge
			nvidia_gpu_pcie_receive_bytes_per_second{gpu="2",uuid="GPU-2"} 1
			# TYPE nvidia_gpu_pcie_transmit_bytes_per_second gauge
			nvidia_gpu_pcie_transmit_bytes_per_second{gpu="2",uuid="GPU-2"} 2`},
	}
}

// A source can be known before its first window has passed, and while it is paused: nothing comes
// from it then.
func TestActivityBeforeItsFirstWindow(t *testing.T) {
	g := migGPU()
	g.ActivitySource = gpu.ActivityDCGM
	expectText(t, renderText(t, mustNew(t, fixedOptions("activity")), newNode(g)), "")
}

// A compute instance has no memory of its own: what a source says of it is the GPU instance's.
func TestNoDRAMActivityOfComputeInstances(t *testing.T) {
	for _, f := range Families() {
		if f.Level == LevelCompute && strings.Contains(f.Name, "dram") {
			t.Errorf("%s is declared", f.Name)
		}
	}

	g := migGPU()
	g.Instances[0].ComputeInstances[0].Activity.DRAM = gpu.Some(0.5)
	expectText(t, renderText(t, mustNew(t, fixedOptions("activity")), newNode(g)), "")
}
