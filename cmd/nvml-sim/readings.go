package main

// #include "abi.h"
import "C"

import (
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// readingCalls answer about utilization, power, clocks and PCIe.
func readingCalls() map[string]call {
	limit := readValue(
		gpu.ReadingPower,
		func(s *sim.GPUState) uint32 { return milli(s.LimitWatts) },
	)
	clock := readGPU(gpu.ReadingClocks, clockNow, 2)
	maxClock := readGPU(gpu.ReadingClocks, clockMax, 2)
	reasons := readValue(
		gpu.ReadingClockEvents,
		func(s *sim.GPUState) uint64 { return uint64(s.ClockEvents) },
	)
	supportedReasons := readValue(gpu.ReadingClockEvents, func(*sim.GPUState) uint64 {
		return C.SIM_nvmlClocksEventReasonGpuIdle | C.SIM_nvmlClocksEventReasonSwPowerCap |
			C.SIM_nvmlClocksEventReasonSwThermalSlowdown
	})
	maxGeneration := readValue(
		gpu.ReadingPCIe,
		func(s *sim.GPUState) uint32 { return uint32(s.PCI.MaxGeneration) },
	)
	width := readValue(gpu.ReadingPCIe, func(s *sim.GPUState) uint32 { return uint32(s.PCI.Width) })
	pstate := readValue(
		gpu.ReadingClocks,
		func(s *sim.GPUState) uint32 { return uint32(s.PerformanceState) },
	)

	return map[string]call{
		"nvmlDeviceGetUtilizationRates": readGPU(gpu.ReadingUtilization, utilization, 1),

		"nvmlDeviceGetPowerUsage":                  readGPU(gpu.ReadingPower, powerUsage, 1),
		"nvmlDeviceGetEnforcedPowerLimit":          limit,
		"nvmlDeviceGetPowerManagementLimit":        limit,
		"nvmlDeviceGetPowerManagementDefaultLimit": limit,
		"nvmlDeviceGetPowerManagementLimitConstraints": readGPU(
			gpu.ReadingPower,
			limitConstraints,
			1,
			2,
		),
		"nvmlDeviceGetPowerManagementMode": readValue(gpu.ReadingPower,
			func(*sim.GPUState) uint32 { return flag(true) }),
		"nvmlDeviceGetTotalEnergyConsumption": readValue(gpu.ReadingEnergy, millijoules),

		"nvmlDeviceGetClockInfo":                      clock,
		"nvmlDeviceGetMaxClockInfo":                   maxClock,
		"nvmlDeviceGetMaxCustomerBoostClock":          maxClock,
		"nvmlDeviceGetClock":                          readGPU(gpu.ReadingClocks, clockByID, 3),
		"nvmlDeviceGetCurrentClocksEventReasons":      reasons,
		"nvmlDeviceGetCurrentClocksThrottleReasons":   reasons,
		"nvmlDeviceGetSupportedClocksEventReasons":    supportedReasons,
		"nvmlDeviceGetSupportedClocksThrottleReasons": supportedReasons,
		"nvmlDeviceGetPerformanceState":               pstate,
		"nvmlDeviceGetPowerState":                     pstate,

		"nvmlDeviceGetCurrPcieLinkGeneration": readValue(gpu.ReadingPCIe,
			func(s *sim.GPUState) uint32 { return uint32(s.PCI.Generation) }),
		"nvmlDeviceGetMaxPcieLinkGeneration":    maxGeneration,
		"nvmlDeviceGetGpuMaxPcieLinkGeneration": maxGeneration,
		"nvmlDeviceGetCurrPcieLinkWidth":        width,
		"nvmlDeviceGetMaxPcieLinkWidth":         width,
		"nvmlDeviceGetPcieReplayCounter": readValue(
			gpu.ReadingPCIe,
			func(*sim.GPUState) uint32 { return 0 },
		),
		"nvmlDeviceGetPcieThroughput": readGPU(gpu.ReadingPCIe, pcieThroughput, 2),
	}
}

func milli(v float64) uint32 { return uint32(sim.Milli(v)) }

func millijoules(s *sim.GPUState) uint64 { return sim.Milli(s.Joules) }

func utilization(s *sim.GPUState, a args) result {
	u, ok := s.Utilization.Get()
	if !ok {
		return notSupported
	}

	return put(a, 1, C.sim_nvmlUtilization_t{gpu: C.sim_u32(u.GPU), memory: C.sim_u32(u.Memory)})
}

// powerUsage is not supported while the driver reports no power.
func powerUsage(s *sim.GPUState, a args) result {
	watts, ok := s.ReportedWatts.Get()
	if !ok {
		return notSupported
	}

	return put(a, 1, milli(watts))
}

func limitConstraints(s *sim.GPUState, a args) result {
	return putTwo(a, 1, milli(s.LowestLimit()), milli(s.LimitWatts))
}

func clockNow(s *sim.GPUState, a args) result {
	now, _, err := s.Clock(a.uint(1))
	if err != nil {
		return resultOf(err)
	}

	return put(a, 2, now)
}

func clockMax(s *sim.GPUState, a args) result {
	_, highest, err := s.Clock(a.uint(1))
	if err != nil {
		return resultOf(err)
	}

	return put(a, 2, highest)
}

func clockByID(s *sim.GPUState, a args) result {
	now, highest, err := s.Clock(a.uint(1))
	if err != nil {
		return resultOf(err)
	}

	switch a.uint(2) {
	case C.SIM_NVML_CLOCK_ID_CURRENT:
		return put(a, 3, now)
	case C.SIM_NVML_CLOCK_ID_CUSTOMER_BOOST_MAX:
		return put(a, 3, highest)
	}

	return notSupported
}

// pcieThroughput answers in KB/s.
func pcieThroughput(s *sim.GPUState, a args) result {
	switch a.uint(1) {
	case C.SIM_NVML_PCIE_UTIL_TX_BYTES, C.SIM_NVML_PCIE_UTIL_RX_BYTES:
		return put(a, 2, uint32(s.PCIeRate/1000))
	}

	return invalidArgument
}
