package gpu

import "time"

// Memory is framebuffer memory in bytes: a whole GPU's, or a GPU instance's own.
type Memory struct {
	Total    Opt[uint64] `json:"totalBytes,omitzero"`
	Used     Opt[uint64] `json:"usedBytes,omitzero"`
	Free     Opt[uint64] `json:"freeBytes,omitzero"`
	Reserved Opt[uint64] `json:"reservedBytes,omitzero"`
}

// Readings are the driver's values for a whole GPU; counters run since the driver was loaded.
type Readings struct {
	SlowReadings

	Memory             Memory
	Utilization        Opt[float64] // 0-1, time with a kernel running; the driver gives none while MIG is on
	MemoryCopy         Opt[float64] // 0-1, time with device memory being read or written; none while MIG is on
	Media              Media        // none while MIG is on
	PowerWatts         Opt[float64]
	EnergyJoules       Opt[float64]
	EnergyAt           time.Time // when EnergyJoules was read; that may be long after the reading began
	TemperatureCelsius Opt[float64]
	MemoryCelsius      Opt[float64]
	ClockHertz         Clocks
	ClockEvents        Opt[ClockEvents]
	PerformanceState   Opt[int] // 0, the fastest, to 15
	PCIe               PCIe     // its Replays, LinkWidth and LinkGeneration are read with SlowReadings
	NVLink             NVLink   // its Errors are read with SlowReadings
	Processes          Opt[[]Process]
}

// SlowReadings change seldom, or take the driver long: we read them every 15 s or less often (see
// Pace), and keep them in between.
type SlowReadings struct {
	PowerLimitWatts Opt[float64]
	// TemperatureMarginCelsius is how far the GPU is below the temperature at which it slows down,
	// negative above it.
	TemperatureMarginCelsius Opt[float64]
	TemperatureThresholds    []TemperatureThreshold
	Fans                     []Fan
	Fabric                   Opt[Fabric] // only if Extras.Fabric asks for it
	ECC                      []ECCCount
	RemappedRows             Opt[RemappedRows]
	RecoveryAction           Opt[RecoveryAction]
	ExclusiveComputeMode     Opt[bool] // compute mode exclusive-process, as the MPS control daemon sets it
	PersistenceMode          Opt[bool] // the driver keeps the GPU initialized while no process has it open
}

// Clocks are the current clocks by domain in hertz.
type Clocks struct {
	SM, Memory, Graphics, Video Opt[float64]
}

// TemperatureThreshold is a temperature at which a GPU protects itself.
type TemperatureThreshold struct {
	Kind    string // shutdown, slowdown or mem_max, as in nvmlTemperatureThresholds_t
	Celsius float64
}

// Fan is one fan of a GPU.
type Fan struct {
	Index int `json:"fan"`
	// Speed is the target speed relative to the product's maximum noise level, which it may exceed:
	// it can be more than 1.
	Speed float64 `json:"speedRatio"`
}

// ClockEvents is a set of reasons why clocks are not at their highest, NVML's
// nvmlClocksEventReason* bits.
type ClockEvents uint64

// ClockEventReason is one bit of ClockEvents and its name in labels.
type ClockEventReason struct {
	Bit  ClockEvents
	Name string
}

// ClockEventReasons lists the known reasons in the order of their bits (nvml.h,
// nvmlClocksEventReason*).
func ClockEventReasons() []ClockEventReason {
	return []ClockEventReason{
		{0x1, "gpu_idle"},
		{0x2, "applications_clocks_setting"},
		{0x4, "sw_power_cap"},
		{0x8, "hw_slowdown"},
		{0x10, "sync_boost"},
		{0x20, "sw_thermal_slowdown"},
		{0x40, "hw_thermal_slowdown"},
		{0x80, "hw_power_brake_slowdown"},
		{0x100, "display_clock_setting"},
	}
}

// PCIe is the state of a GPU's PCIe link. The byte counters are the driver's and may wrap.
type PCIe struct {
	ReceiveBytes, TransmitBytes Opt[uint64]
	Replays                     Opt[uint64]
	LinkWidth, LinkGeneration   Opt[int]
}

// NVLink has the totals over all links. Up to NVLink 4 the bytes are data without protocol
// overhead; from NVLink 5 on nvml.h does not say whether they include the protocol.
type NVLink struct {
	ReceiveBytes, TransmitBytes Opt[uint64]
	Errors                      []NVLinkErrors
}

// NVLinkErrors counts one kind of link error: "crc_flit", "crc_data", "replay" or "recovery"; from
// NVLink 5 on "receive", "effective", "recovery" or "recovery_failed".
type NVLinkErrors struct {
	Kind  string `json:"kind"`
	Count uint64 `json:"count"`
}

// Fabric is the GPU's registration in the NVLink fabric, which a fabric manager keeps.
type Fabric struct {
	State FabricState `json:"state"`
	// Status is the result of a completed registration, an nvmlReturn_t: 0 if it has succeeded.
	// Before, it is absent.
	Status Opt[uint32]  `json:"status,omitzero"`
	Health FabricHealth `json:"health,omitempty"` // empty if the driver does not report it
	// ClusterUUID and Clique are known once the registration has succeeded: GPUs of one cluster and
	// clique reach each other.
	ClusterUUID string      `json:"clusterUuid,omitempty"`
	Clique      Opt[uint32] `json:"clique,omitzero"`
}

// FabricState is how far the registration has come.
type FabricState string

// FabricHealth is the health of the fabric as this GPU sees it.
type FabricHealth string

// The states and the health (nvml.h, NVML_GPU_FABRIC_STATE_* and NVML_GPU_FABRIC_HEALTH_SUMMARY_*).
const (
	FabricNotStarted FabricState = "not_started"
	FabricInProgress FabricState = "in_progress"
	FabricCompleted  FabricState = "completed"

	FabricHealthy         FabricHealth = "healthy"
	FabricUnhealthy       FabricHealth = "unhealthy"
	FabricLimitedCapacity FabricHealth = "limited_capacity"
)

// ECCCount counts memory errors of one kind since the driver was loaded (volatile) or for the GPU's
// life (aggregate).
type ECCCount struct {
	Severity string `json:"severity"` // "corrected" or "uncorrected"
	Lifetime string `json:"lifetime"` // "volatile" or "aggregate"
	// Location is "device_memory", "l1_cache", "l2_cache", "register_file", "sram", "total", ...
	Location string `json:"location"`
	Count    uint64 `json:"count"`
}

// RemappedRows counts the rows of device memory that the GPU has replaced by spare ones after
// correctable and uncorrectable errors. Pending is set if a replacement waits for a reset of the
// GPU, Failure if one has failed.
type RemappedRows struct {
	Correctable   uint64 `json:"correctable"`
	Uncorrectable uint64 `json:"uncorrectable"`
	Pending       bool   `json:"pending"`
	Failure       bool   `json:"failure"`
}

// RecoveryAction is the action that the driver requests of an operator.
type RecoveryAction string

// The recovery actions (nvml.h, nvmlDeviceGpuRecoveryAction_t).
const (
	RecoveryNone          RecoveryAction = "none"
	RecoveryReset         RecoveryAction = "reset"
	RecoveryReboot        RecoveryAction = "reboot"
	RecoveryDrain         RecoveryAction = "drain"
	RecoveryDrainAndReset RecoveryAction = "drain_and_reset"
	RecoveryIMEXDomain    RecoveryAction = "recover_imex_domain"
)

// Process is one process with a context on the GPU. Instance and Compute are present under MIG.
type Process struct {
	PID         uint32
	Graphics    bool // it has a graphics context; otherwise a compute context, as MPS clients have
	MPS         bool // it is a client of MPS
	MemoryBytes Opt[uint64]
	SM          Opt[float64] // 0-1, of the SMs' time over the last seconds; never under MIG
	Instance    Opt[InstanceID]
	Compute     Opt[ComputeID]
	Container   Container // zero if unknown or not read
	// The fields below are empty if they are unknown or Snapshot.Processes doesn't allow them.
	Job  string // the batch job of the device, if it has just one
	Name string // of the program, without arguments
	User string // the user's name, or the id if it has no name
}

// EventKind is what an Event reports.
type EventKind int

// The kinds of events. EventsLost: the queue failed and was created again, so that events may have
// been missed.
const (
	EventXID EventKind = iota + 1
	EventMIGChange
	EventsLost
	EventUnavailable    // the driver cannot use the GPU any more, as after XID 79 or 119
	EventRecoveryAction // what the driver asks an operator to do about the GPU has changed
)

// Event is a report that the driver sent on its own.
type Event struct {
	Kind     EventKind
	GPU      UUID
	Instance Opt[InstanceID]
	Compute  Opt[ComputeID]
	XID      uint64
	Logged   bool // we have it from the kernel's log, not from the driver
	Time     time.Time
}

// LoggedXID is an XID in the kernel's log, which names GPUs by their PCI addresses.
type LoggedXID struct {
	PCI      PCIAddress
	Instance Opt[InstanceID]
	Compute  Opt[ComputeID]
	XID      uint64
	// Time is when we received the line or, with BeforeStart, when the kernel printed it.
	Time        time.Time
	BeforeStart bool // the kernel printed it before we began to read the log
}
