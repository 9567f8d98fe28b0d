package capture

import (
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// returns names NVML's return codes as nvml.h does, without NVML_ERROR_.
func returns() argument {
	return argument{
		{uint64(nvml.ERROR_UNINITIALIZED), "UNINITIALIZED"},
		{uint64(nvml.ERROR_INVALID_ARGUMENT), "INVALID_ARGUMENT"},
		{uint64(nvml.ERROR_NOT_SUPPORTED), "NOT_SUPPORTED"},
		{uint64(nvml.ERROR_NO_PERMISSION), "NO_PERMISSION"},
		{uint64(nvml.ERROR_ALREADY_INITIALIZED), "ALREADY_INITIALIZED"},
		{uint64(nvml.ERROR_NOT_FOUND), "NOT_FOUND"},
		{uint64(nvml.ERROR_INSUFFICIENT_SIZE), "INSUFFICIENT_SIZE"},
		{uint64(nvml.ERROR_INSUFFICIENT_POWER), "INSUFFICIENT_POWER"},
		{uint64(nvml.ERROR_DRIVER_NOT_LOADED), "DRIVER_NOT_LOADED"},
		{uint64(nvml.ERROR_TIMEOUT), "TIMEOUT"},
		{uint64(nvml.ERROR_IRQ_ISSUE), "IRQ_ISSUE"},
		{uint64(nvml.ERROR_LIBRARY_NOT_FOUND), "LIBRARY_NOT_FOUND"},
		{uint64(nvml.ERROR_FUNCTION_NOT_FOUND), "FUNCTION_NOT_FOUND"},
		{uint64(nvml.ERROR_CORRUPTED_INFOROM), "CORRUPTED_INFOROM"},
		{uint64(nvml.ERROR_GPU_IS_LOST), "GPU_IS_LOST"},
		{uint64(nvml.ERROR_RESET_REQUIRED), "RESET_REQUIRED"},
		{uint64(nvml.ERROR_OPERATING_SYSTEM), "OPERATING_SYSTEM"},
		{uint64(nvml.ERROR_LIB_RM_VERSION_MISMATCH), "LIB_RM_VERSION_MISMATCH"},
		{uint64(nvml.ERROR_IN_USE), "IN_USE"},
		{uint64(nvml.ERROR_MEMORY), "MEMORY"},
		{uint64(nvml.ERROR_NO_DATA), "NO_DATA"},
		{uint64(nvml.ERROR_VGPU_ECC_NOT_SUPPORTED), "VGPU_ECC_NOT_SUPPORTED"},
		{uint64(nvml.ERROR_INSUFFICIENT_RESOURCES), "INSUFFICIENT_RESOURCES"},
		{uint64(nvml.ERROR_FREQ_NOT_SUPPORTED), "FREQ_NOT_SUPPORTED"},
		{uint64(nvml.ERROR_ARGUMENT_VERSION_MISMATCH), "ARGUMENT_VERSION_MISMATCH"},
		{uint64(nvml.ERROR_DEPRECATED), "DEPRECATED"},
		{uint64(nvml.ERROR_NOT_READY), "NOT_READY"},
		{uint64(nvml.ERROR_GPU_NOT_FOUND), "GPU_NOT_FOUND"},
		{uint64(nvml.ERROR_INVALID_STATE), "INVALID_STATE"},
		{uint64(nvml.ERROR_RESET_TYPE_NOT_SUPPORTED), "RESET_TYPE_NOT_SUPPORTED"},
		{uint64(nvml.ERROR_UNKNOWN), "UNKNOWN"},
	}
}

// returnName is the name of a code other than SUCCESS, or its number: drivers know codes that headers do not.
func returnName(ret nvml.Return) string {
	if ret > 0 {
		return returns().name(uint64(ret))
	}
	return strconv.Itoa(int(ret))
}

// returnOf reads what returnName wrote.
func returnOf(text string) (nvml.Return, bool) {
	if v, ok := returns().value(text); ok {
		return nvml.Return(v), v > 0 && v < 1<<31
	}
	v, err := strconv.ParseInt(text, 10, 32)
	return nvml.Return(v), err == nil && v < 0
}
