package nvmlsource

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// checkReturn translates the return code of the driver call op into an error that wraps one of
// gpu's.
func checkReturn(op string, ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}

	return driverError(op, ret)
}

// driverError returns the error for a return code other than SUCCESS. It does not use
// nvmlErrorString, which the library may lack.
func driverError(op string, ret nvml.Return) error {
	for _, e := range [...]struct {
		ret   nvml.Return
		err   error
		notes string
	}{
		{nvml.ERROR_NOT_SUPPORTED, gpu.ErrNotSupported, ""},
		{nvml.ERROR_FUNCTION_NOT_FOUND, gpu.ErrNotSupported, ""},
		{nvml.ERROR_ARGUMENT_VERSION_MISMATCH, gpu.ErrNotSupported, ""},
		{nvml.ERROR_DEPRECATED, gpu.ErrNotSupported, ""},
		{nvml.ERROR_NO_PERMISSION, gpu.ErrNoPermission, ""},
		{nvml.ERROR_NOT_FOUND, gpu.ErrNotFound, ""},
		{nvml.ERROR_INVALID_ARGUMENT, gpu.ErrInvalidArgument, ""},
		{nvml.ERROR_GPU_IS_LOST, gpu.ErrLost, ""},
		{nvml.ERROR_RESET_REQUIRED, gpu.ErrResetRequired, ""},
		{nvml.ERROR_TIMEOUT, gpu.ErrTimeout, ""},
		{nvml.ERROR_IN_USE, gpu.ErrInUse, ""},
		{nvml.ERROR_INSUFFICIENT_RESOURCES, gpu.ErrInsufficientResources, ""},
		{nvml.ERROR_LIB_RM_VERSION_MISMATCH, gpu.ErrVersionMismatch, ""},
		{nvml.ERROR_OPERATING_SYSTEM, gpu.ErrDriver,
			": the operating system blocks the device, as a cgroup that does not allow its device node does"},
		{nvml.ERROR_GPU_NOT_FOUND, gpu.ErrNotFound, ": NVML finds no GPU"},
		{nvml.ERROR_LIBRARY_NOT_FOUND, gpu.ErrNoDriver, ": the library cannot be loaded"},
		{nvml.ERROR_DRIVER_NOT_LOADED, gpu.ErrNoDriver, ": the kernel driver is not loaded"},
		{nvml.ERROR_UNINITIALIZED, gpu.ErrNoDriver, ": NVML is not initialised"},
	} {
		if e.ret == ret {
			return fmt.Errorf("%s: %w%s", op, e.err, e.notes)
		}
	}

	return fmt.Errorf("%s: %w: NVML code %d", op, gpu.ErrDriver, int32(ret))
}

// losesDevice reports whether an error means that the GPU as a whole no longer answers.
// ErrInvalidArgument means the same for a call whose only argument is the GPU's handle; readMode
// and queryMemory handle that.
func losesDevice(err error) bool {
	return errors.Is(err, gpu.ErrLost) || errors.Is(err, gpu.ErrResetRequired) ||
		errors.Is(err, gpu.ErrNoDriver) ||
		errors.Is(err, gpu.ErrVersionMismatch)
}

// losesEntity reports whether an error means that a MIG device or instance is not what it was: it
// was destroyed, or its handle is stale.
func losesEntity(err error) bool {
	return errors.Is(err, gpu.ErrNotFound) || errors.Is(err, gpu.ErrInvalidArgument)
}
