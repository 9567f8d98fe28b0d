package nvmlsource

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// checkReturn counts a driver call and translates its return code, once, into `op: %w` with a sentinel of gpu.
func (s *Source) checkReturn(op string, ret nvml.Return) error {
	s.calls.Add(1)
	if ret == nvml.SUCCESS {
		return nil
	}
	return driverError(op, ret)
}

// driverError does not ask the driver for its own text: nvmlErrorString may be what is missing.
func driverError(op string, ret nvml.Return) error {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED:
		return fmt.Errorf("%s: %w", op, gpu.ErrNotSupported)
	case nvml.ERROR_NO_PERMISSION:
		return fmt.Errorf("%s: %w", op, gpu.ErrNoPermission)
	case nvml.ERROR_NOT_FOUND:
		return fmt.Errorf("%s: %w", op, gpu.ErrNotFound)
	case nvml.ERROR_INVALID_ARGUMENT:
		return fmt.Errorf("%s: %w", op, gpu.ErrInvalidArgument)
	case nvml.ERROR_GPU_IS_LOST:
		return fmt.Errorf("%s: %w", op, gpu.ErrLost)
	case nvml.ERROR_RESET_REQUIRED:
		return fmt.Errorf("%s: %w", op, gpu.ErrResetRequired)
	case nvml.ERROR_TIMEOUT:
		return fmt.Errorf("%s: %w", op, gpu.ErrTimeout)
	case nvml.ERROR_OPERATING_SYSTEM:
		return fmt.Errorf("%s: %w: the operating system blocks the device, as a cgroup that does not allow its device node does", op, gpu.ErrDriver)
	case nvml.ERROR_GPU_NOT_FOUND:
		return fmt.Errorf("%s: %w: NVML finds no GPU", op, gpu.ErrNotFound)
	case nvml.ERROR_IN_USE:
		return fmt.Errorf("%s: %w", op, gpu.ErrInUse)
	case nvml.ERROR_INSUFFICIENT_RESOURCES:
		return fmt.Errorf("%s: %w", op, gpu.ErrInsufficientResources)
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return fmt.Errorf("%s: %w", op, gpu.ErrVersionMismatch)
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return fmt.Errorf("%s: %w: the library cannot be loaded", op, gpu.ErrNoDriver)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return fmt.Errorf("%s: %w: the kernel driver is not loaded", op, gpu.ErrNoDriver)
	case nvml.ERROR_UNINITIALIZED:
		return fmt.Errorf("%s: %w: NVML is not initialised", op, gpu.ErrNoDriver)
	}
	return fmt.Errorf("%s: %w: NVML code %d", op, gpu.ErrDriver, int32(ret))
}

// losesDevice reports whether an error means that the GPU as a whole no longer answers. So does ErrInvalidArgument of calls whose
// only argument is the GPU's handle; readMode and readMemory handle that.
func losesDevice(err error) bool {
	return errors.Is(err, gpu.ErrLost) || errors.Is(err, gpu.ErrResetRequired) || errors.Is(err, gpu.ErrNoDriver) ||
		errors.Is(err, gpu.ErrVersionMismatch)
}

// losesEntity reports whether an error means that a MIG device or instance is not what it was: it was destroyed, or its
// handle is stale.
func losesEntity(err error) bool {
	return errors.Is(err, gpu.ErrNotFound) || errors.Is(err, gpu.ErrInvalidArgument)
}
