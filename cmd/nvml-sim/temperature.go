package main

// #include "abi.h"
import "C"

import (
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim"
)

// temperatureCalls answer about temperatures and their thresholds.
func temperatureCalls() map[string]call {
	return map[string]call{
		"nvmlDeviceGetTemperature":          readGPU(gpu.ReadingTemperature, temperature, 2),
		"nvmlDeviceGetTemperatureV":         readGPU(gpu.ReadingTemperature, temperatureV, 1),
		"nvmlDeviceGetTemperatureThreshold": readGPU(gpu.ReadingTemperature, threshold, 2),
		"nvmlDeviceGetMarginTemperature": beforeBranch(marginBranch, missingFunction,
			readGPU(gpu.ReadingTemperature, margin, 1)),
	}
}

// marginBranch is the first driver branch with nvmlDeviceGetMarginTemperature.
const marginBranch = 565

func temperature(s *sim.GPUState, a args) result {
	if a.uint(1) != C.SIM_NVML_TEMPERATURE_GPU {
		return invalidArgument
	}

	return put(a, 2, uint32(s.Celsius))
}

func temperatureV(s *sim.GPUState, a args) result {
	t := at[C.sim_nvmlTemperature_v1_t](a, 1)
	switch {
	case t.version != C.SIM_nvmlTemperature_v1:
		return structMismatch
	case t.sensorType != C.SIM_NVML_TEMPERATURE_GPU:
		return invalidArgument
	}

	t.temperature = C.int(s.Celsius)

	return success
}

// thresholds returns the thresholds of a GPU in Celsius, by NVML's number of each.
func thresholds(s *sim.GPUState) map[uint32]int {
	t := s.Thresholds()
	all := map[uint32]int{
		C.SIM_NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: int(t.Shutdown),
		C.SIM_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: int(t.Slowdown),
		C.SIM_NVML_TEMPERATURE_THRESHOLD_GPU_MAX:  int(t.GPUMax),
	}

	if memory, ok := t.MemoryMax.Get(); ok {
		all[C.SIM_NVML_TEMPERATURE_THRESHOLD_MEM_MAX] = int(memory)
	}

	return all
}

// threshold answers on GPUs before Ada alone: see sim.GPUState.Margin.
func threshold(s *sim.GPUState, a args) result {
	celsius, ok := thresholds(s)[a.uint(1)]
	switch {
	case a.uint(1) >= C.SIM_NVML_TEMPERATURE_THRESHOLD_COUNT:
		return invalidArgument
	case !ok, s.Margin().Present():
		return notSupported
	}

	return put(a, 2, uint32(celsius))
}

// margin answers with what nvidia-smi calls the GPU's T.Limit.
func margin(s *sim.GPUState, a args) result {
	m := at[C.sim_nvmlMarginTemperature_v1_t](a, 1)
	if m.version != C.SIM_nvmlMarginTemperature_v1 {
		return structMismatch
	}

	celsius, ok := s.Margin().Get()
	if !ok {
		return notSupported
	}

	m.marginTemperature = C.int(celsius)

	return success
}

// limitMargin returns a threshold as a field: relative to the highest operating temperature, or
// that of memory to its own. GPUs before Ada report absolute degrees alone
// (nvmlDeviceGetTemperatureThreshold).
func limitMargin(which uint32) field {
	return field{gpu.ReadingTemperature, C.SIM_NVML_VALUE_TYPE_SIGNED_INT,
		func(s *sim.GPUState, _ uint32) (uint64, result) {
			all := thresholds(s)

			celsius, ok := all[which]
			switch {
			case !ok || s.Architecture == sim.Ampere:
				return 0, notSupported
			case which == C.SIM_NVML_TEMPERATURE_THRESHOLD_MEM_MAX:
				return 0, success
			}

			return uint64(
				uint32(int32(all[C.SIM_NVML_TEMPERATURE_THRESHOLD_GPU_MAX] - celsius)),
			), success
		}}
}
