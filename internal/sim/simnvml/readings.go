package simnvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

func (d *gpuHandle) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	u, ret := readOptional(
		d,
		gpu.ReadingUtilization,
		func(s *sim.GPUState) gpu.Opt[sim.Utilization] { return s.Utilization },
	)

	return nvml.Utilization{Gpu: u.GPU, Memory: u.Memory}, ret
}

func (d *gpuHandle) GetPowerUsage() (uint32, nvml.Return) {
	watts, ret := readOptional(
		d,
		gpu.ReadingPower,
		func(s *sim.GPUState) gpu.Opt[float64] { return s.ReportedWatts },
	)

	return uint32(sim.Milli(watts)), ret
}

func (d *gpuHandle) GetEnforcedPowerLimit() (uint32, nvml.Return) {
	return readFact(d, gpu.ReadingPower, func(s *sim.GPUState) uint32 { return uint32(sim.Milli(s.LimitWatts)) })
}

func (d *gpuHandle) GetTotalEnergyConsumption() (uint64, nvml.Return) {
	return readFact(
		d,
		gpu.ReadingEnergy,
		func(s *sim.GPUState) uint64 { return sim.Milli(s.Joules) },
	)
}

func (d *gpuHandle) GetTemperature() (int, nvml.Return) {
	return readFact(d, gpu.ReadingTemperature, func(s *sim.GPUState) int { return s.Celsius })
}

func (d *gpuHandle) GetMarginTemperature() (int, nvml.Return) {
	if d.branch() < sim.MarginBranch {
		return 0, nvml.ERROR_FUNCTION_NOT_FOUND
	}

	return readOptional(d, gpu.ReadingTemperature, (*sim.GPUState).Margin)
}

func (d *gpuHandle) GetTemperatureThreshold(kind nvml.TemperatureThresholds) (uint32, nvml.Return) {
	return readChecked(d, gpu.ReadingTemperature, func(s *sim.GPUState) (uint32, error) {
		return s.Threshold(uint32(kind))
	})
}

func (d *gpuHandle) GetClockInfo(clock nvml.ClockType) (uint32, nvml.Return) {
	return readChecked(d, gpu.ReadingClocks, func(s *sim.GPUState) (uint32, error) {
		now, _, err := s.Clock(uint32(clock))
		return now, err
	})
}

func (d *gpuHandle) GetCurrentClocksEventReasons() (uint64, nvml.Return) {
	return readFact(
		d,
		gpu.ReadingClockEvents,
		func(s *sim.GPUState) uint64 { return uint64(s.ClockEvents) },
	)
}

func (d *gpuHandle) GetPerformanceState() (nvml.Pstates, nvml.Return) {
	return readFact(
		d,
		gpu.ReadingClocks,
		func(s *sim.GPUState) nvml.Pstates { return nvml.Pstates(s.PerformanceState) },
	)
}

func (d *gpuHandle) GetNumFans() (int, nvml.Return) {
	return read(d, gpu.ReadingFans, func(s *sim.GPUState) (int, nvml.Return) {
		if len(s.Fans) == 0 {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}

		return len(s.Fans), nvml.SUCCESS
	})
}

func (d *gpuHandle) GetFanSpeed(fan int) (uint32, nvml.Return) {
	return read(d, gpu.ReadingFans, func(s *sim.GPUState) (uint32, nvml.Return) {
		switch {
		case len(s.Fans) == 0:
			return 0, nvml.ERROR_NOT_SUPPORTED
		case fan < 0 || fan >= len(s.Fans):
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}

		return s.Fans[fan], nvml.SUCCESS
	})
}

func (d *gpuHandle) GetPcieReplayCounter() (int, nvml.Return) {
	return readFact(d, gpu.ReadingPCIe, func(*sim.GPUState) int { return 0 })
}

func (d *gpuHandle) GetCurrPcieLinkWidth() (int, nvml.Return) {
	return readFact(d, gpu.ReadingPCIe, func(s *sim.GPUState) int { return s.PCI.Width })
}

func (d *gpuHandle) GetCurrPcieLinkGeneration() (int, nvml.Return) {
	return readFact(d, gpu.ReadingPCIe, func(s *sim.GPUState) int { return s.PCI.Generation })
}

// GetMemoryErrorCounter counts errors of device memory and SRAM. The simulation only has errors in
// device memory.
func (d *gpuHandle) GetMemoryErrorCounter(severity nvml.MemoryErrorType, lifetime nvml.EccCounterType,
	location nvml.MemoryLocation) (uint64, nvml.Return) {
	total, ret := d.GetTotalEccErrors(severity, lifetime)
	if ret != nvml.SUCCESS {
		return 0, ret
	}

	switch location {
	case nvml.MEMORY_LOCATION_DEVICE_MEMORY:
		return total, nvml.SUCCESS
	case nvml.MEMORY_LOCATION_SRAM:
		return 0, nvml.SUCCESS
	}

	return 0, nvml.ERROR_NOT_SUPPORTED
}

func (d *gpuHandle) GetTotalEccErrors(
	severity nvml.MemoryErrorType,
	lifetime nvml.EccCounterType,
) (uint64, nvml.Return) {
	return readChecked(d, gpu.ReadingECC, func(s *sim.GPUState) (uint64, error) {
		return s.ECCErrors(uint32(severity), uint32(lifetime))
	})
}

// GetMemoryErrorCounter returns the uncorrectable errors of SRAM since the driver was loaded, if the
// driver counts them (sim.GPUState.HasVolatileECC). The simulation has none.
func (m *migDevice) GetMemoryErrorCounter(
	severity nvml.MemoryErrorType,
	lifetime nvml.EccCounterType,
	location nvml.MemoryLocation,
) (uint64, nvml.Return) {
	has, ret := readDevice(
		m,
		gpu.ReadingECC,
		func(s *sim.GPUState, _ *sim.MIGDevice) bool { return s.HasVolatileECC() },
	)
	if ret != nvml.SUCCESS {
		return 0, ret
	}

	if !has || severity != nvml.MEMORY_ERROR_TYPE_UNCORRECTED || lifetime != nvml.VOLATILE_ECC ||
		location != nvml.MEMORY_LOCATION_SRAM {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}

	return 0, nvml.SUCCESS
}

func (d *gpuHandle) GetGpuFabricInfoV() (nvml.GpuFabricInfo_v3, nvml.Return) {
	return read(d, gpu.ReadingFabric, func(s *sim.GPUState) (nvml.GpuFabricInfo_v3, nvml.Return) {
		fabric, ok := s.Fabric().Get()
		if !ok {
			return nvml.GpuFabricInfo_v3{}, nvml.ERROR_NOT_SUPPORTED
		}

		return nvml.GpuFabricInfo_v3{
			Version:       nvml.STRUCT_VERSION(nvml.GpuFabricInfo_v3{}, 3),
			Status:        fabric.Status.Or(0),
			CliqueId:      fabric.Clique.Or(0),
			State:         nvml.GPU_FABRIC_STATE_COMPLETED,
			HealthSummary: nvml.GPU_FABRIC_HEALTH_SUMMARY_HEALTHY,
		}, nvml.SUCCESS
	})
}

func (d *gpuHandle) GetRemappedRows() (
	correctable, uncorrectable int, pending, failure bool, ret nvml.Return,
) {
	rows, ret := readOptional(
		d,
		gpu.ReadingRowRemap,
		func(s *sim.GPUState) gpu.Opt[gpu.RemappedRows] { return s.Remapped },
	)

	return int(rows.Correctable), int(rows.Uncorrectable), rows.Pending, rows.Failure, ret
}
