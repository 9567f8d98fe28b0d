package simnvml

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

func (d *device) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	u, ret := optional(
		d,
		gpu.ReadingUtilization,
		func(s *sim.GPUState) gpu.Opt[sim.Utilization] { return s.Utilization },
	)

	return nvml.Utilization{Gpu: u.GPU, Memory: u.Memory}, ret
}

func (d *device) GetPowerUsage() (uint32, nvml.Return) {
	watts, ret := optional(
		d,
		gpu.ReadingPower,
		func(s *sim.GPUState) gpu.Opt[float64] { return s.ReportedWatts },
	)

	return milli(watts), ret
}

func (d *device) GetEnforcedPowerLimit() (uint32, nvml.Return) {
	return fact(d, gpu.ReadingPower, func(s *sim.GPUState) uint32 { return milli(s.LimitWatts) })
}

func milli(v float64) uint32 { return uint32(math.Round(v * 1000)) }

func (d *device) GetTotalEnergyConsumption() (uint64, nvml.Return) {
	return fact(
		d,
		gpu.ReadingEnergy,
		func(s *sim.GPUState) uint64 { return uint64(math.Round(s.Joules * 1000)) },
	)
}

func (d *device) GetTemperature() (int, nvml.Return) {
	return fact(d, gpu.ReadingTemperature, func(s *sim.GPUState) int { return s.Celsius })
}

// marginBranch is the first driver branch with nvmlDeviceGetMarginTemperature.
const marginBranch = 565

func (d *device) GetMarginTemperature() (int, nvml.Return) {
	if d.branch() < marginBranch {
		return 0, nvml.ERROR_FUNCTION_NOT_FOUND
	}

	return optional(d, gpu.ReadingTemperature, (*sim.GPUState).Margin)
}

// GetTemperatureThreshold answers on GPUs before Ada alone: see sim.GPUState.Margin.
func (d *device) GetTemperatureThreshold(kind nvml.TemperatureThresholds) (uint32, nvml.Return) {
	return read(d, gpu.ReadingTemperature, func(s *sim.GPUState) (uint32, nvml.Return) {
		t := s.Thresholds()

		celsius, ok := map[nvml.TemperatureThresholds]uint32{
			nvml.TEMPERATURE_THRESHOLD_SHUTDOWN: t.Shutdown, nvml.TEMPERATURE_THRESHOLD_SLOWDOWN: t.Slowdown,
			nvml.TEMPERATURE_THRESHOLD_GPU_MAX: t.GPUMax, nvml.TEMPERATURE_THRESHOLD_MEM_MAX: t.MemoryMax.Or(0),
		}[kind]
		switch {
		case kind >= nvml.TEMPERATURE_THRESHOLD_COUNT:
			return 0, nvml.ERROR_INVALID_ARGUMENT
		case !ok || celsius == 0 || s.Margin().Present():
			return 0, nvml.ERROR_NOT_SUPPORTED
		}

		return celsius, nvml.SUCCESS
	})
}

func (d *device) GetClockInfo(clock nvml.ClockType) (uint32, nvml.Return) {
	return read(d, gpu.ReadingClocks, func(s *sim.GPUState) (uint32, nvml.Return) {
		switch clock {
		case nvml.CLOCK_SM, nvml.CLOCK_GRAPHICS:
			return s.SMMHz, nvml.SUCCESS
		case nvml.CLOCK_MEM:
			return s.MemoryMHz, nvml.SUCCESS
		case nvml.CLOCK_VIDEO:
			return s.VideoMHz, nvml.SUCCESS
		}

		return 0, nvml.ERROR_INVALID_ARGUMENT
	})
}

func (d *device) GetCurrentClocksEventReasons() (uint64, nvml.Return) {
	return fact(
		d,
		gpu.ReadingClockEvents,
		func(s *sim.GPUState) uint64 { return uint64(s.ClockEvents) },
	)
}

func (d *device) GetPerformanceState() (nvml.Pstates, nvml.Return) {
	return fact(
		d,
		gpu.ReadingClocks,
		func(s *sim.GPUState) nvml.Pstates { return nvml.Pstates(s.PerformanceState) },
	)
}

func (d *device) GetNumFans() (int, nvml.Return) {
	return read(d, gpu.ReadingFans, func(s *sim.GPUState) (int, nvml.Return) {
		if len(s.Fans) == 0 {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}

		return len(s.Fans), nvml.SUCCESS
	})
}

func (d *device) GetFanSpeed(fan int) (uint32, nvml.Return) {
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

func (d *device) GetPcieReplayCounter() (int, nvml.Return) {
	return fact(d, gpu.ReadingPCIe, func(*sim.GPUState) int { return 0 })
}

func (d *device) GetCurrPcieLinkWidth() (int, nvml.Return) {
	return fact(d, gpu.ReadingPCIe, func(s *sim.GPUState) int { return s.PCI.Width })
}

func (d *device) GetCurrPcieLinkGeneration() (int, nvml.Return) {
	return fact(d, gpu.ReadingPCIe, func(s *sim.GPUState) int { return s.PCI.Generation })
}

// GetMemoryErrorCounter counts errors of device memory and SRAM; the simulation has errors in
// device memory alone.
func (d *device) GetMemoryErrorCounter(severity nvml.MemoryErrorType, lifetime nvml.EccCounterType,
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

func (d *device) GetTotalEccErrors(
	severity nvml.MemoryErrorType,
	lifetime nvml.EccCounterType,
) (uint64, nvml.Return) {
	return read(d, gpu.ReadingECC, func(s *sim.GPUState) (uint64, nvml.Return) {
		if lifetime == nvml.VOLATILE_ECC && !s.HasVolatileECC() {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}

		type kind struct {
			severity nvml.MemoryErrorType
			lifetime nvml.EccCounterType
		}

		count, ok := map[kind]uint64{
			{nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC}:    s.ECC.CorrectedVolatile,
			{nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC}:  s.ECC.UncorrectedVolatile,
			{nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.AGGREGATE_ECC}:   s.ECC.CorrectedAggregate,
			{nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.AGGREGATE_ECC}: s.ECC.UncorrectedAggregate,
		}[kind{severity, lifetime}]
		if !ok {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}

		return count, nvml.SUCCESS
	})
}

// GetMemoryErrorCounter has the uncorrectable errors of SRAM since the driver was loaded, of which
// the simulation has none: see sim.GPUState.HasVolatileECC.
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

func (d *device) GetGpuFabricInfoV() (nvml.GpuFabricInfo_v3, nvml.Return) {
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

func (d *device) GetRemappedRows() (correctable, uncorrectable int, pending, failure bool, ret nvml.Return) {
	rows, ret := optional(
		d,
		gpu.ReadingRowRemap,
		func(s *sim.GPUState) gpu.Opt[gpu.RemappedRows] { return s.Remapped },
	)

	return int(rows.Correctable), int(rows.Uncorrectable), rows.Pending, rows.Failure, ret
}
