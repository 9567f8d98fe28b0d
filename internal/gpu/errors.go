package gpu

import "errors"

// The errors of drivers and other dependencies. The code that calls a dependency translates its
// errors to these, and wraps them with the operation: "list pod resources: timed out".
var (
	// ErrNotSupported: the hardware or the driver does not offer it; not a failure.
	ErrNotSupported = errors.New("not supported")
	// ErrNoPermission: the process lacks a right (root, or a MIG capability).
	ErrNoPermission = errors.New("no permission")
	// ErrPIDNamespace: this process may not be in the host's PID namespace, the only one in which
	// it would see all processes.
	ErrPIDNamespace = errors.New(
		"processes are hidden outside of the host's PID namespace (hostPID)",
	)
	// ErrNotFound: the entity does not exist, or no longer.
	ErrNotFound = errors.New("not found")
	// ErrReplaced: the placement or the id that the caller means belongs to another entity now.
	ErrReplaced = errors.New("replaced by another")
	// ErrLost: the GPU has fallen off the bus or is otherwise inaccessible.
	ErrLost = errors.New("GPU is lost")
	// ErrResetRequired: the GPU must be reset before it can be used again.
	ErrResetRequired = errors.New("GPU requires reset")
	// ErrTimeout: no answer in time.
	ErrTimeout = errors.New("timed out")
	// ErrInUse: a child or a client holds the entity.
	ErrInUse = errors.New("in use")
	// ErrInsufficientResources: the placement is occupied or nothing is left.
	ErrInsufficientResources = errors.New("insufficient resources")
	// ErrInvalidArgument: the driver does not know the value that it was given.
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrNoDriver: no NVIDIA driver or library answers on this node.
	ErrNoDriver = errors.New("no NVIDIA driver")
	// ErrVersionMismatch: the loaded library and the kernel driver differ; only a restart of this
	// process helps.
	ErrVersionMismatch = errors.New("driver and library version mismatch")
	// ErrLibraryClosed: the driver's library is closed in this process for a while, to let go of a
	// GPU. The GPUs may be well.
	ErrLibraryClosed = errors.New("NVML is closed in this process")
	// ErrReleased: this process has let go of the GPU, and reads nothing of it.
	ErrReleased = errors.New("GPU is released")
	// ErrUnavailable: a dependency (kubelet, host engine) does not answer.
	ErrUnavailable = errors.New("unavailable")
	// ErrNoKubelet: the node has no kubelet: none is expected, and there is no trace of one.
	ErrNoKubelet = errors.New("no kubelet on this node")
	// ErrNotConfigured: we cannot see whether the source exists, and the configuration does not
	// say. This is no failure, but we don't know what the source would report.
	ErrNotConfigured = errors.New("not-configured")
	// ErrDriver: any other error of the driver; the text around it says which.
	ErrDriver = errors.New("driver error")
)

// Reason is the value of the label `reason` of a read error: a fixed set.
type Reason string

// The reasons. ReasonOther stands for all errors without a reason of their own.
const (
	ReasonNoPermission  Reason = "no_permission"
	ReasonNotSupported  Reason = "not_supported" // only of power in MIG mode: see ReadError
	ReasonPIDNamespace  Reason = "pid_namespace"
	ReasonNotFound      Reason = "not_found"
	ReasonLost          Reason = "lost"
	ReasonResetRequired Reason = "reset_required"
	ReasonTimeout       Reason = "timeout"
	ReasonOther         Reason = "other"
)

// IsFailure reports whether a reading with this reason has failed. The processes that another PID
// namespace hides are not read by configuration: a pod without hostPID.
func (r Reason) IsFailure() bool { return r != ReasonPIDNamespace }

// ReasonOf returns the reason of a failed reading.
func ReasonOf(err error) Reason {
	for _, known := range []struct {
		err    error
		reason Reason
	}{
		{ErrNoPermission, ReasonNoPermission},
		{ErrNotSupported, ReasonNotSupported},
		{ErrPIDNamespace, ReasonPIDNamespace},
		{ErrNotFound, ReasonNotFound},
		{ErrLost, ReasonLost},
		{ErrResetRequired, ReasonResetRequired},
		{ErrTimeout, ReasonTimeout},
	} {
		if errors.Is(err, known.err) {
			return known.reason
		}
	}

	return ReasonOther
}

// Reading names what was read when an error occurred, the value of the label `reading`: a fixed
// set.
type Reading string

// The readings. ReadingDevice is the GPU as a whole: its handle, its lookup, a worker that does not
// answer.
const (
	ReadingDevice      Reading = "device"
	ReadingInventory   Reading = "inventory"
	ReadingMIG         Reading = "mig"
	ReadingMemory      Reading = "memory"
	ReadingUtilization Reading = "utilization"
	ReadingPower       Reading = "power"
	ReadingEnergy      Reading = "energy"
	ReadingTemperature Reading = "temperature"
	ReadingClocks      Reading = "clocks"
	ReadingClockEvents Reading = "clock_events"
	ReadingPCIe        Reading = "pcie"
	ReadingNVLink      Reading = "nvlink"
	ReadingECC         Reading = "ecc"
	ReadingRowRemap    Reading = "row_remap"
	ReadingRecovery    Reading = "recovery_action"
	ReadingProcesses   Reading = "processes"
	ReadingEvents      Reading = "events"
	ReadingActivity    Reading = "activity"
	ReadingFans        Reading = "fans"
	ReadingMedia       Reading = "media"
	ReadingFabric      Reading = "fabric"
)

// ReadError is one reading that failed on one device. A reading that the device does not support is
// absent, not an error. The one exception is power in MIG mode: without it a GPU has no estimates,
// and users should not have to guess why.
type ReadError struct {
	Reading Reading
	Err     error
	// Remembered marks a failure that an earlier reading has reported already and that still holds,
	// whether the driver was called again or not.
	Remembered bool
}

// Reason returns why the reading failed.
func (e ReadError) Reason() Reason { return ReasonOf(e.Err) }
