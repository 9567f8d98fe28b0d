// Package nodedoc is the document of /api/v1/node: its types, which servers encode and clients
// decode; New, which makes the document of a Snapshot; and Axis, by which we draw the placement of
// GPU instances.
package nodedoc

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Document is the document of /api/v1/node. The names of keys say the unit: bytes, watts, joules,
// hertz, degrees Celsius, ratios of 0 to 1. The key of an absent reading is absent. A list without
// omitempty is there even if it is empty.
type Document struct {
	APIVersion string    `json:"apiVersion"`
	Generation uint64    `json:"generation"`
	Time       time.Time `json:"time"`
	Node       Host      `json:"node"`
	GPUs       []GPU     `json:"gpus"`
}

// Host is the node, its driver and its sources.
type Host struct {
	Hostname      string        `json:"hostname"`
	DriverVersion string        `json:"driverVersion,omitempty"`
	NVMLVersion   string        `json:"nvmlVersion,omitempty"`
	CUDAVersion   string        `json:"cudaVersion,omitempty"`
	Sources       []SourceState `json:"sources"`
	// UnmatchedDevices are the device ids that were given to containers and name no device of this
	// node.
	UnmatchedDevices []Unmatched `json:"unmatchedDevices"`
	// HoldersIncomplete says why a device without holders may be held all the same; allocated is
	// absent for it. It is missing if all holders are known.
	HoldersIncomplete string `json:"holdersIncomplete,omitempty"`
	// GPUsUnread are the indexes of GPUs that the driver lists and whose first reading is under
	// way: gpus doesn't have them yet. It is missing if there are none.
	GPUsUnread []int `json:"gpusUnread,omitempty"`
	// GPUsUnknown says why it is not known yet which GPUs the node has; it is missing once the
	// driver has listed them.
	GPUsUnknown string `json:"gpusUnknown,omitempty"`
	// ProcessDetail is which details of single processes the document has (--web.processes): names
	// or users. It is missing if the document has no single processes.
	ProcessDetail gpu.ProcessDetail `json:"processDetail,omitempty"`
	// HungCalls counts driver calls that have not returned in time and may never return.
	HungCalls int `json:"hungCalls"`
	// ReadEvery is the time between two readings of a GPU; missing if unknown.
	ReadEvery *ReadEvery `json:"readEvery,omitempty"`
}

// ReadEvery is how often the exporter reads the GPUs: the fast tier with every poll, the slow tier
// with some polls. It reads them less often than configured while driver calls take more than their
// budget.
type ReadEvery struct {
	FastSeconds           float64 `json:"fastSeconds"`
	FastConfiguredSeconds float64 `json:"fastConfiguredSeconds"`
	SlowSeconds           float64 `json:"slowSeconds"`
	SlowConfiguredSeconds float64 `json:"slowConfiguredSeconds"`
}

// Unmatched is a device id that names no device of this node, and the container that the kubelet
// has given it to. ID and Resource are cut off after MaxText characters.
type Unmatched struct {
	ID        string `json:"id"`
	Resource  string `json:"resource,omitempty"`
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
}

// SourceState is the state of a source of the Snapshot.
type SourceState struct {
	Name  string `json:"name"`
	Up    bool   `json:"up"`
	Stale bool   `json:"stale,omitempty"`
	// NotConfigured is set if the node may have no such source and the configuration does not say
	// so. That is no failure.
	NotConfigured bool      `json:"notConfigured,omitempty"`
	LastSuccess   time.Time `json:"lastSuccess,omitzero"`
	Error         string    `json:"error,omitempty"`
}

// Release says that the exporter has let go of a GPU and does not read it, and why. The GPU is not
// up then.
type Release struct {
	Since   time.Time        `json:"since"`
	By      gpu.ReleaseCause `json:"by"`
	Unbound bool             `json:"unbound"` // the kernel driver does not list it any more
}

// GPU is a physical GPU with all that we know of it.
type GPU struct {
	Index            int                         `json:"index"`
	UUID             gpu.UUID                    `json:"uuid,omitempty"` // a GPU without a handle has none
	Name             string                      `json:"name,omitempty"`
	Up               bool                        `json:"up"`
	Released         *Release                    `json:"released,omitempty"`
	LastRead         time.Time                   `json:"lastRead,omitzero"`
	Architecture     string                      `json:"architecture,omitempty"`
	PCIBusID         string                      `json:"pciBusId,omitempty"`
	Minor            gpu.Opt[int]                `json:"minor,omitzero"`
	Serial           string                      `json:"serial,omitempty"`
	VBIOS            string                      `json:"vbios,omitempty"`
	SMs              gpu.Opt[int]                `json:"sms,omitzero"`
	MIGMode          Mode                        `json:"migMode,omitzero"`
	LayoutGeneration uint64                      `json:"layoutGeneration"`
	LayoutChanges    uint64                      `json:"layoutChanges"`
	Memory           gpu.Memory                  `json:"memory,omitzero"`
	Power            Power                       `json:"power,omitzero"`
	Activity         Activity                    `json:"activity,omitzero"`
	Temperature      Temperature                 `json:"temperature,omitzero"`
	Clocks           Clocks                      `json:"clocks,omitzero"`
	ClockEvents      []ClockEvent                `json:"clockEvents,omitempty"`
	PerformanceState gpu.Opt[int]                `json:"performanceState,omitzero"`
	Fans             []gpu.Fan                   `json:"fans,omitempty"`
	Media            gpu.Media                   `json:"media,omitzero"`
	PCIe             PCIe                        `json:"pcie,omitzero"`
	NVLink           NVLink                      `json:"nvlink,omitzero"`
	Fabric           gpu.Opt[gpu.Fabric]         `json:"fabric,omitzero"` // with --collectors=+fabric
	ECC              []gpu.ECCCount              `json:"ecc,omitempty"`
	RemappedRows     gpu.Opt[gpu.RemappedRows]   `json:"remappedRows,omitzero"`
	RecoveryAction   gpu.Opt[gpu.RecoveryAction] `json:"recoveryAction,omitzero"`
	ExclusiveCompute gpu.Opt[bool]               `json:"exclusiveCompute,omitzero"`
	PersistenceMode  gpu.Opt[bool]               `json:"persistenceMode,omitzero"`
	Use
	XIDs *XIDs `json:"xids,omitempty"`
	// UnavailableEvents counts the events by which the driver says that it cannot use the GPU any
	// more, RecoveryActionEvents those by which it says that RecoveryAction has changed. They begin
	// with the exporter, and are absent if the driver does not report these events.
	UnavailableEvents    gpu.Opt[uint64] `json:"unavailableEvents,omitzero"`
	RecoveryActionEvents gpu.Opt[uint64] `json:"recoveryActionEvents,omitzero"`

	Capacity   *Capacity     `json:"capacity,omitempty"`
	Profiles   []gpu.Profile `json:"profiles,omitempty"`
	Containers []Container   `json:"containers,omitempty"`
	// ProcessList has the processes of the driver's last list, those with the most memory first, at
	// most gpu.MaxProcesses. It is missing if we don't know them, and if Host.ProcessDetail is
	// missing.
	ProcessList  []Process    `json:"processList,omitempty"`
	Errors       []Error      `json:"errors"`
	ReadErrors   []ErrorCount `json:"readErrors,omitempty"`
	GPUInstances []Instance   `json:"gpuInstances"`
}

// Use is the use of a device: its holders, and what runs on it.
type Use struct {
	Processes gpu.Opt[int]  `json:"processes,omitzero"` // how many
	Allocated gpu.Opt[bool] `json:"allocated,omitzero"`
	// ConfirmedFree is set if the device counts as free only because an operator has confirmed it.
	ConfirmedFree bool     `json:"confirmedFree,omitempty"`
	Holders       []Holder `json:"holders"`
	Jobs          []string `json:"jobs,omitempty"` // batch jobs
	// JobsUnknown says that a scheduler reports batch jobs, and that those of the device could not be read.
	JobsUnknown bool `json:"jobsUnknown,omitempty"`
}

// Mode is "enabled" or "disabled"; pending is what it becomes with the next reset or reboot.
type Mode struct {
	Current string `json:"current,omitempty"`
	Pending string `json:"pending,omitempty"`
}

// Power is what the GPU draws. IdleWatts is learned from times without work; UnallocatedWatts is
// what the estimate gives to no instance.
type Power struct {
	Watts                   gpu.Opt[float64] `json:"watts,omitzero"`
	LimitWatts              gpu.Opt[float64] `json:"limitWatts,omitzero"`
	IdleWatts               gpu.Opt[float64] `json:"idleWatts,omitzero"`
	UnallocatedWatts        gpu.Opt[float64] `json:"unallocatedWatts,omitzero"`
	EnergyJoules            gpu.Opt[float64] `json:"energyJoules,omitzero"`
	EnergyUnallocatedJoules gpu.Opt[float64] `json:"energyUnallocatedJoules,omitzero"`
	EstimateMethod          gpu.PowerMethod  `json:"estimateMethod,omitempty"`
	// FromEnergy is set if the driver reports no power and Watts is the mean by the energy counter.
	FromEnergy bool `json:"fromEnergy,omitempty"`
}

// Activity has the ratios of the profiling counters, and the driver's own utilization.
type Activity struct {
	gpu.Activity
	Source gpu.ActivitySource `json:"source,omitempty"` // of the ratios
	// Rollup is whether the ratios are computed from the GPU instances; absent without a Source.
	Rollup           gpu.Opt[bool]    `json:"rollup,omitzero"`
	UtilizationRatio gpu.Opt[float64] `json:"utilizationRatio,omitzero"`
	MemoryCopyRatio  gpu.Opt[float64] `json:"memoryCopyUtilizationRatio,omitzero"`
}

// Temperature is the temperature of a GPU.
type Temperature struct {
	GPUCelsius    gpu.Opt[float64] `json:"gpuCelsius,omitzero"`
	MemoryCelsius gpu.Opt[float64] `json:"memoryCelsius,omitzero"`
	// MarginCelsius is how far the die is below the temperature at which the GPU slows down.
	MarginCelsius gpu.Opt[float64] `json:"marginCelsius,omitzero"`
}

// Clocks are the present clock rates.
type Clocks struct {
	SMHertz       gpu.Opt[float64] `json:"smHertz,omitzero"`
	MemoryHertz   gpu.Opt[float64] `json:"memoryHertz,omitzero"`
	GraphicsHertz gpu.Opt[float64] `json:"graphicsHertz,omitzero"`
	VideoHertz    gpu.Opt[float64] `json:"videoHertz,omitzero"`
}

// ClockEvent is a reason why clocks are not at their highest, and for how long it has held since
// the exporter started.
type ClockEvent struct {
	Reason  string           `json:"reason"`
	Active  bool             `json:"active"`
	Seconds gpu.Opt[float64] `json:"seconds,omitzero"`
}

// PCIe is the GPU's link and its traffic.
type PCIe struct {
	ReceiveBytes   gpu.Opt[float64] `json:"receiveBytes,omitzero"`
	TransmitBytes  gpu.Opt[float64] `json:"transmitBytes,omitzero"`
	ReceiveRate    gpu.Opt[float64] `json:"receiveBytesPerSecond,omitzero"`
	TransmitRate   gpu.Opt[float64] `json:"transmitBytesPerSecond,omitzero"`
	Replays        gpu.Opt[uint64]  `json:"replays,omitzero"`
	LinkWidth      gpu.Opt[int]     `json:"linkWidth,omitzero"`
	LinkGeneration gpu.Opt[int]     `json:"linkGeneration,omitzero"`
}

// NVLink is the traffic and the errors over all NVLinks of a GPU.
type NVLink struct {
	ReceiveBytes  gpu.Opt[float64]   `json:"receiveBytes,omitzero"`
	TransmitBytes gpu.Opt[float64]   `json:"transmitBytes,omitzero"`
	ReceiveRate   gpu.Opt[float64]   `json:"receiveBytesPerSecond,omitzero"`
	TransmitRate  gpu.Opt[float64]   `json:"transmitBytesPerSecond,omitzero"`
	Errors        []gpu.NVLinkErrors `json:"errors,omitempty"`
}

// IsZero makes omitzero leave an NVLink without readings out of JSON.
func (l NVLink) IsZero() bool {
	return !l.ReceiveBytes.Present() && !l.TransmitBytes.Present() && !l.ReceiveRate.Present() &&
		!l.TransmitRate.Present() &&
		len(l.Errors) == 0
}

// XIDs counts the XIDs of a GPU. It is absent if we do not receive them: we never read the GPU, or
// the driver does not report them.
type XIDs struct {
	Total uint64 `json:"total"`
	ByXID []XID  `json:"byXid,omitempty"`
}

// XID counts the errors with one XID.
type XID struct {
	XID   uint64    `json:"xid"`
	Count uint64    `json:"count"`
	Last  time.Time `json:"last,omitzero"`
}

// Capacity is which instances could still be created on a GPU. It has no slices while MIG is off.
type Capacity struct {
	ComputeSlices gpu.SliceCount        `json:"computeSlices,omitzero"`
	MemorySlices  gpu.SliceCount        `json:"memorySlices,omitzero"`
	Profiles      []gpu.ProfileCapacity `json:"profiles"`
}

// Holder is a container that holds a device.
type Holder struct {
	Namespace string      `json:"namespace"`
	Pod       string      `json:"pod"`
	PodUID    string      `json:"podUID,omitempty"`
	Container string      `json:"container"`
	Workload  string      `json:"workload,omitempty"`
	Resource  string      `json:"resource,omitempty"`
	Sharing   gpu.Sharing `json:"sharing"`
	Replica   string      `json:"replica,omitempty"`
	// Confirmed is false if we do not know whether the container holds the device, which
	// UnconfirmedReason explains. Both are missing if it does.
	Confirmed         gpu.Opt[bool]     `json:"confirmed,omitzero"`
	UnconfirmedReason string            `json:"unconfirmedReason,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
}

// Container is what a container or a batch job uses of a device.
type Container struct {
	Namespace            string                  `json:"namespace"`
	Pod                  string                  `json:"pod"`
	Container            string                  `json:"container"`
	Job                  string                  `json:"job,omitempty"`
	GPUInstance          gpu.Opt[gpu.InstanceID] `json:"gpuInstance,omitzero"`
	ComputeInstance      gpu.Opt[gpu.ComputeID]  `json:"computeInstance,omitzero"`
	Sharing              gpu.Sharing             `json:"sharing"`
	MemoryUsedBytes      gpu.Opt[uint64]         `json:"memoryUsedBytes,omitzero"`
	PowerEstimateWatts   gpu.Opt[float64]        `json:"powerEstimateWatts,omitzero"`
	EnergyEstimateJoules gpu.Opt[float64]        `json:"energyEstimateJoules,omitzero"`
}

// Process is a process on one device. A process that uses several devices is in the list once for
// each. Job is the batch job of the device, if the device has just one.
type Process struct {
	PID             uint32                  `json:"pid"` // of the host
	Type            string                  `json:"type"`
	Name            string                  `json:"name,omitempty"` // of the program, without arguments
	User            string                  `json:"user,omitempty"` // the user's name or id
	GPUInstance     gpu.Opt[gpu.InstanceID] `json:"gpuInstance,omitzero"`
	ComputeInstance gpu.Opt[gpu.ComputeID]  `json:"computeInstance,omitzero"`
	MemoryUsedBytes gpu.Opt[uint64]         `json:"memoryUsedBytes,omitzero"`
	Namespace       string                  `json:"namespace,omitempty"`
	Pod             string                  `json:"pod,omitempty"`
	Container       string                  `json:"container,omitempty"`
	Job             string                  `json:"job,omitempty"`
}

// Error is a reading that has failed.
type Error struct {
	Reading gpu.Reading `json:"reading"`
	Reason  gpu.Reason  `json:"reason"`
	Message string      `json:"message"`
}

// ErrorCount counts the failures of a reading.
type ErrorCount struct {
	Reading gpu.Reading `json:"reading"`
	Reason  gpu.Reason  `json:"reason"`
	Count   uint64      `json:"count"`
}

// Instance is a GPU instance.
type Instance struct {
	ID            gpu.InstanceID         `json:"id"`
	Generation    uint64                 `json:"generation"`
	Profile       string                 `json:"profile,omitempty"`
	ProfileID     gpu.Opt[uint32]        `json:"profileId,omitzero"`
	Placement     gpu.Opt[gpu.Placement] `json:"placement,omitzero"`
	ComputeSlices gpu.Opt[int]           `json:"computeSlices,omitzero"`
	MemorySlices  gpu.Opt[int]           `json:"memorySlices,omitzero"`
	SMs           gpu.Opt[int]           `json:"sms,omitzero"`
	Up            bool                   `json:"up"`
	LastRead      time.Time              `json:"lastRead,omitzero"`
	Memory        gpu.Memory             `json:"memory,omitzero"`
	Activity      gpu.Activity           `json:"activity,omitzero"`
	Media         gpu.Media              `json:"media,omitzero"`
	// The PCIe rates are absent without --collectors=+instance_pcie.
	PCIeReceiveRate      gpu.Opt[float64] `json:"pcieReceiveBytesPerSecond,omitzero"`
	PCIeTransmitRate     gpu.Opt[float64] `json:"pcieTransmitBytesPerSecond,omitzero"`
	PowerEstimateWatts   gpu.Opt[float64] `json:"powerEstimateWatts,omitzero"`
	EnergyEstimateJoules gpu.Opt[float64] `json:"energyEstimateJoules,omitzero"`
	Use
	XIDErrors        []XID             `json:"xidErrors,omitempty"`
	Errors           []Error           `json:"errors"`
	ComputeInstances []ComputeInstance `json:"computeInstances"`
	// ComputeInstancesHidden is true if ComputeInstances may lack some, because the driver denies the
	// exporter a MIG device of the GPU.
	ComputeInstancesHidden bool `json:"computesHidden,omitempty"`
}

// ComputeInstance is a compute instance.
type ComputeInstance struct {
	ID            gpu.ComputeID          `json:"id"`
	Generation    uint64                 `json:"generation"`
	UUID          gpu.MIGUUID            `json:"uuid,omitempty"`
	Profile       string                 `json:"profile,omitempty"`
	Placement     gpu.Opt[gpu.Placement] `json:"placement,omitzero"` // in compute slices within the GPU instance
	ComputeSlices gpu.Opt[int]           `json:"computeSlices,omitzero"`
	SMs           gpu.Opt[int]           `json:"sms,omitzero"`
	Up            bool                   `json:"up"`
	Activity      gpu.Activity           `json:"activity,omitzero"` // without DRAM
	ECC           []gpu.ECCCount         `json:"ecc,omitempty"`     // with --collectors=+instance_ecc
	Use
	Errors []Error `json:"errors"`
}
