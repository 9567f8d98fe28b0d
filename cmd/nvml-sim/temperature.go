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
		"nvmlDeviceGetMarginTemperature": beforeBranch(sim.MarginBranch, missingFunction,
			readGPU(gpu.ReadingTemperature, margin, 1)),
	}
}

func temperature(s *sim.GPUState, a args) result {
	if a.uint(1) != C.SIM_NVML_TEMPERATURE_GPU {
		return invalidArgument
	}

	return put(a, 2, uint32(s.Celsius))
}

func temperatureV(s *sim.GPUState, a args) result {
	t := pointer[C.sim_nvmlTemperature_v1_t](a, 1)
	switch {
	case t.version != C.SIM_nvmlTemperature_v1:
		return structMismatch
	case t.sensorType != C.SIM_NVML_TEMPERATURE_GPU:
		return invalidArgument
	}

	t.temperature = C.int(s.Celsius)

	return success
}

func threshold(s *sim.GPUState, a args) result {
	celsius, err := s.Threshold(a.uint(1))
	if err != nil {
		return resultOf(err)
	}

	return put(a, 2, celsius)
}

// margin answers with what nvidia-smi calls the GPU's T.Limit.
func margin(s *sim.GPUState, a args) result {
	m := pointer[C.sim_nvmlMarginTemperature_v1_t](a, 1)
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
