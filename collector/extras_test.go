package collector

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func extraCases() []groupCase {
	sram := func(count uint64) []gpu.ECCCount {
		return []gpu.ECCCount{{Severity: "uncorrected", Lifetime: "volatile", Location: "sram", Count: count}}
	}

	return []groupCase{
		{GroupInstancePCIe, func(g *gpu.GPU) {
			g.Instances[0].Rates = gpu.LinkRates{PCIeReceive: gpu.Some(1024.0), PCIeTransmit: gpu.Some(0.0)}
		}, `# TYPE nvidia_mig_gpu_instance_pcie_receive_bytes_per_second gauge
			nvidia_mig_gpu_instance_pcie_receive_bytes_per_second{gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2"} 1024
			# TYPE nvidia_mig_gpu_instance_pcie_transmit_bytes_per_second gauge
			nvidia_mig_gpu_instance_pcie_transmit_bytes_per_second{gpu="2",gpu_instance="1",mig_profile="3g.20gb",uuid="GPU-2"} 0`},
		{GroupInstanceECC, func(g *gpu.GPU) {
			g.Instances[0].ComputeSlices = gpu.Some(3)
			g.Instances[0].ComputeInstances = []gpu.ComputeInstance{{ComputeSlices: gpu.Some(3), ECC: sram(2)}}
		}, `# TYPE nvidia_mig_gpu_instance_ecc_errors_total counter
			nvidia_mig_gpu_instance_ecc_errors_total{gpu="2",gpu_instance="1",lifetime="volatile",location="sram",mig_profile="3g.20gb",severity="uncorrected",uuid="GPU-2"} 2`},
		{GroupInstanceECC, func(g *gpu.GPU) {
			g.Instances[0].ComputeSlices = gpu.Some(3)
			g.Instances[0].ComputeInstances = []gpu.ComputeInstance{
				{UUID: "MIG-a", ComputeSlices: gpu.Some(1), ECC: sram(2)}, {ID: 1, UUID: "MIG-b", ComputeSlices: gpu.Some(2)}}
		}, `# TYPE nvidia_mig_compute_instance_ecc_errors_total counter
			nvidia_mig_compute_instance_ecc_errors_total{compute_instance="0",gpu="2",gpu_instance="1",lifetime="volatile",location="sram",mig_profile="3g.20gb",mig_uuid="MIG-a",severity="uncorrected",uuid="GPU-2"} 2`},
		{GroupFabric, func(g *gpu.GPU) {
			g.Readings.Fabric = gpu.Some(gpu.Fabric{State: gpu.FabricCompleted, Status: gpu.Some(uint32(0)),
				Clique: gpu.Some(uint32(3)), ClusterUUID: "abc", Health: gpu.FabricUnhealthy})
		}, `# TYPE nvidia_gpu_fabric_health gauge
			nvidia_gpu_fabric_health{gpu="2",health="unhealthy",uuid="GPU-2"} 1
			# TYPE nvidia_gpu_fabric_info gauge
			nvidia_gpu_fabric_info{clique="3",cluster_uuid="abc",gpu="2",uuid="GPU-2"} 1
			# TYPE nvidia_gpu_fabric_state gauge
			nvidia_gpu_fabric_state{gpu="2",state="completed",uuid="GPU-2"} 1
			# TYPE nvidia_gpu_fabric_status gauge
			nvidia_gpu_fabric_status{gpu="2",uuid="GPU-2"} 0`},
		{GroupFabric, func(g *gpu.GPU) {
			g.Readings.Fabric = gpu.Some(gpu.Fabric{State: gpu.FabricInProgress})
		}, `# TYPE nvidia_gpu_fabric_state gauge
			nvidia_gpu_fabric_state{gpu="2",state="in_progress",uuid="GPU-2"} 1`},
		{GroupFabric, func(g *gpu.GPU) {
			g.Readings.Fabric = gpu.Some(gpu.Fabric{State: gpu.FabricCompleted, Status: gpu.Some(uint32(999))})
		}, `# TYPE nvidia_gpu_fabric_state gauge
			nvidia_gpu_fabric_state{gpu="2",state="completed",uuid="GPU-2"} 1
			# TYPE nvidia_gpu_fabric_status gauge
			nvidia_gpu_fabric_status{gpu="2",uuid="GPU-2"} 999`},
	}
}

// Collectors whose readings cost driver calls serve, and ask for, nothing unless they are switched
// on.
func TestServes(t *testing.T) {
	for _, name := range []string{GroupInstanceECC, GroupInstancePCIe, GroupFabric} {
		cmptest.Equal(t, name+" by default", mustNew(t, Options{}).Serves(name), false)
		cmptest.Equal(t, name+" switched on",
			mustNew(t, Options{Disabled: map[string]bool{name: false}}).Serves(name), true)
	}
}
