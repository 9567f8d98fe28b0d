package nvmlsource

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// queryFabric queries the GPU's registration in the NVLink fabric, if that is asked for. Only GPUs
// with NVSwitch have one.
func (r *gpuRead) queryFabric(q *querier) gpu.Opt[gpu.Fabric] {
	if !r.cues.Extras.Fabric {
		return gpu.None[gpu.Fabric]()
	}

	info, err := query(q, "nvmlDeviceGetGpuFabricInfoV", gpu.ReadingFabric, r.dev.GetGpuFabricInfoV)
	if err != nil {
		return gpu.None[gpu.Fabric]()
	}

	return fabricOf(&info)
}

// fabricOf converts an answer. The result is absent if the driver reports an unknown state, or that
// there is no fabric.
func fabricOf(info *nvml.GpuFabricInfo_v3) gpu.Opt[gpu.Fabric] {
	state, known := map[uint8]gpu.FabricState{
		nvml.GPU_FABRIC_STATE_NOT_STARTED: gpu.FabricNotStarted,
		nvml.GPU_FABRIC_STATE_IN_PROGRESS: gpu.FabricInProgress,
		nvml.GPU_FABRIC_STATE_COMPLETED:   gpu.FabricCompleted,
	}[info.State]
	if !known {
		return gpu.None[gpu.Fabric]()
	}

	health := map[uint8]gpu.FabricHealth{
		nvml.GPU_FABRIC_HEALTH_SUMMARY_HEALTHY:          gpu.FabricHealthy,
		nvml.GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY:        gpu.FabricUnhealthy,
		nvml.GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY: gpu.FabricLimitedCapacity,
	}[info.HealthSummary]

	fabric := gpu.Fabric{State: state, Health: health}

	// nvml.h says of status: "Must be checked only if Probe state returns complete". Only a
	// registration that succeeded has a cluster and a clique.
	if state == gpu.FabricCompleted {
		fabric.Status = gpu.Some(info.Status)
	}

	if fabric.Status == gpu.Some(uint32(nvml.SUCCESS)) {
		u := &info.ClusterUuid
		fabric.ClusterUUID = fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
		fabric.Clique = gpu.Some(info.CliqueId)
	}

	return gpu.Some(fabric)
}

// readInstanceECC adds the memory errors of each MIG device to its compute instance, if that is
// asked for: the uncorrectable ones of SRAM. It reads them with the slow tier, and adds the last
// answer in other readings.
func (r *gpuRead) readInstanceECC(gi *gpu.GPUInstance, state *entityState) (vanished bool) {
	if !r.cues.Extras.InstanceECC {
		return false
	}

	r.state.meter.countFor(r.slow)
	defer r.state.meter.countFor(false)

	for i := range gi.ComputeInstances {
		ci := &gi.ComputeInstances[i]
		kept := &state.computeStates[i]

		if r.slow {
			q := r.newQuerier(kept.answers)
			kept.ecc = r.queryDeviceECC(&q, r.state.tree.handleOf(kept))
			kept.eccErrs = q.errs
			vanished = vanished || q.stale
		}

		ci.ECC = kept.ecc
		gi.Errors = append(gi.Errors, kept.eccErrs.report()...)
	}

	return vanished
}

func (r *gpuRead) queryDeviceECC(q *querier, device MIGDevice) []gpu.ECCCount {
	const call = "nvmlDeviceGetMemoryErrorCounter(uncorrected, volatile, sram)"

	count, err := query(q, call, gpu.ReadingECC, func() (uint64, nvml.Return) {
		return device.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC,
			nvml.MEMORY_LOCATION_SRAM)
	})
	if err != nil {
		return nil
	}

	return []gpu.ECCCount{
		{Severity: "uncorrected", Lifetime: "volatile", Location: "sram", Count: count},
	}
}

// computePCIe computes the PCIe traffic of a GPU instance over the last window, if that is asked
// for. It returns how many values were invalid. It makes a call of its own, since a driver that
// lacks these metrics for instances may refuse all metrics of a call.
func (r *gpuRead) computePCIe(state *entityState) (invalid int) {
	const call = "nvmlGpmMetricsGet(PCIe)"
	w := &state.window
	w.rates = gpu.LinkRates{}

	q := r.newQuerier(state.answers)
	if !r.cues.Extras.InstancePCIe || w.count < 2 || len(w.errs) > 0 ||
		q.checkRefused(call, gpu.ReadingPCIe) != nil {
		return 0
	}

	metrics := []GPMMetric{
		{ID: uint32(nvml.GPM_METRIC_PCIE_RX_PER_SEC), Return: nvml.ERROR_UNKNOWN},
		{ID: uint32(nvml.GPM_METRIC_PCIE_TX_PER_SEC), Return: nvml.ERROR_UNKNOWN},
	}

	ret := r.source.lib.GpmMetricsGet(w.samples[0], w.samples[1], metrics)
	if ret == nvml.ERROR_INVALID_ARGUMENT {
		ret = nvml.ERROR_NOT_SUPPORTED // see computeKinds
	}

	if q.recordReturn(call, gpu.ReadingPCIe, ret) != nil {
		w.errs = append(w.errs, q.errs...)
		return 0
	}

	for i, rate := range []*gpu.Opt[float64]{&w.rates.PCIeReceive, &w.rates.PCIeTransmit} {
		var valid bool
		if *rate, valid = metrics[i].valueIn(mebibyte); !valid {
			invalid++
		}
	}

	return invalid
}
