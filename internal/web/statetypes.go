package web

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The types of /api/v1/node. Units are in the names: bytes, watts, joules, hertz, degrees Celsius, ratios of 0 to 1.
// A key that is absent is a reading that is absent; lists that an entity always has are there even when empty.

type stateNode struct {
	APIVersion string     `json:"apiVersion"`
	Generation uint64     `json:"generation"`
	Time       time.Time  `json:"time"`
	Node       stateHost  `json:"node"`
	GPUs       []stateGPU `json:"gpus"`
}

type stateHost struct {
	Hostname      string        `json:"hostname"`
	DriverVersion string        `json:"driverVersion,omitempty"`
	NVMLVersion   string        `json:"nvmlVersion,omitempty"`
	CUDAVersion   string        `json:"cudaVersion,omitempty"`
	Sources       []stateSource `json:"sources"`
	// UnmatchedDevices are the device ids that were given to containers and name no device of this node.
	UnmatchedDevices []stateUnmatched `json:"unmatchedDevices"`
	// HoldersIncomplete says why a device without holders may be held all the same; allocated is absent for it. It is
	// missing if all holders are known.
	HoldersIncomplete string `json:"holdersIncomplete,omitempty"`
	// HungCalls counts driver calls that have not returned in time and may never return.
	HungCalls int `json:"hungCalls"`
}

// stateUnmatched is a device id that names no device of this node, and the container it was given to. The id and the resource
// are cut off after maxText characters.
type stateUnmatched struct {
	ID        string `json:"id"`
	Resource  string `json:"resource,omitempty"`
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
}

type stateSource struct {
	Name        string    `json:"name"`
	Up          bool      `json:"up"`
	Stale       bool      `json:"stale,omitempty"`
	LastSuccess time.Time `json:"lastSuccess,omitzero"`
	Error       string    `json:"error,omitempty"`
}

type stateGPU struct {
	Index            int                         `json:"index"`
	UUID             gpu.UUID                    `json:"uuid,omitempty"` // a GPU without a handle has none
	Name             string                      `json:"name,omitempty"`
	Up               bool                        `json:"up"`
	LastRead         time.Time                   `json:"lastRead,omitzero"`
	Architecture     string                      `json:"architecture,omitempty"`
	PCIBusID         string                      `json:"pciBusId,omitempty"`
	Minor            gpu.Opt[int]                `json:"minor,omitzero"`
	Serial           string                      `json:"serial,omitempty"`
	VBIOS            string                      `json:"vbios,omitempty"`
	SMs              gpu.Opt[int]                `json:"sms,omitzero"`
	MIGMode          stateMode                   `json:"migMode,omitzero"`
	LayoutGeneration uint64                      `json:"layoutGeneration"`
	LayoutChanges    uint64                      `json:"layoutChanges"`
	Memory           gpu.Memory                  `json:"memory,omitzero"`
	Power            statePower                  `json:"power,omitzero"`
	Activity         stateActivity               `json:"activity,omitzero"`
	Temperature      stateTemperature            `json:"temperature,omitzero"`
	Clocks           stateClocks                 `json:"clocks,omitzero"`
	ClockEvents      []stateClockEvent           `json:"clockEvents,omitempty"`
	PerformanceState gpu.Opt[int]                `json:"performanceState,omitzero"`
	Fans             []gpu.Fan                   `json:"fans,omitempty"`
	Media            gpu.Media                   `json:"media,omitzero"`
	PCIe             statePCIe                   `json:"pcie,omitzero"`
	NVLink           stateNVLink                 `json:"nvlink,omitzero"`
	ECC              []gpu.ECCCount              `json:"ecc,omitempty"`
	RemappedRows     gpu.Opt[gpu.RemappedRows]   `json:"remappedRows,omitzero"`
	RecoveryAction   gpu.Opt[gpu.RecoveryAction] `json:"recoveryAction,omitzero"`
	ExclusiveCompute gpu.Opt[bool]               `json:"exclusiveCompute,omitzero"`
	Processes        gpu.Opt[int]                `json:"processes,omitzero"`
	XIDs             *stateXIDs                  `json:"xids,omitempty"`
	Capacity         *stateCapacity              `json:"capacity,omitempty"`
	Profiles         []gpu.Profile               `json:"profiles,omitempty"`
	Allocated        gpu.Opt[bool]               `json:"allocated,omitzero"`
	ConfirmedFree    bool                        `json:"confirmedFree,omitempty"` // free by an operator\'s confirmation alone
	Holders          []stateHolder               `json:"holders"`
	Jobs             []string                    `json:"jobs,omitempty"` // batch jobs
	Containers       []stateContainer            `json:"containers,omitempty"`
	Errors           []stateError                `json:"errors"`
	ReadErrors       []stateErrorCount           `json:"readErrors,omitempty"`
	GPUInstances     []stateInstance             `json:"gpuInstances"`
}

// stateMode is "enabled" or "disabled"; pending is what it becomes with the next reset or reboot.
type stateMode struct {
	Current string `json:"current,omitempty"`
	Pending string `json:"pending,omitempty"`
}

// statePower: idle is learnt; the unallocated part is what no instance is given by the estimate.
type statePower struct {
	Watts                   gpu.Opt[float64] `json:"watts,omitzero"`
	LimitWatts              gpu.Opt[float64] `json:"limitWatts,omitzero"`
	IdleWatts               gpu.Opt[float64] `json:"idleWatts,omitzero"`
	UnallocatedWatts        gpu.Opt[float64] `json:"unallocatedWatts,omitzero"`
	EnergyJoules            gpu.Opt[float64] `json:"energyJoules,omitzero"`
	EnergyUnallocatedJoules gpu.Opt[float64] `json:"energyUnallocatedJoules,omitzero"`
	EstimateMethod          gpu.PowerMethod  `json:"estimateMethod,omitempty"`
}

// stateActivity has the driver's own utilization beside the ratios of the profiling counters. Source says where those come
// from; Rollup, present with it, whether they are rolled up from the GPU instances.
type stateActivity struct {
	gpu.Activity
	Source           gpu.ActivitySource `json:"source,omitempty"`
	Rollup           gpu.Opt[bool]      `json:"rollup,omitzero"`
	UtilizationRatio gpu.Opt[float64]   `json:"utilizationRatio,omitzero"`
	MemoryCopyRatio  gpu.Opt[float64]   `json:"memoryCopyUtilizationRatio,omitzero"`
}

type stateTemperature struct {
	GPUCelsius    gpu.Opt[float64] `json:"gpuCelsius,omitzero"`
	MemoryCelsius gpu.Opt[float64] `json:"memoryCelsius,omitzero"`
}

type stateClocks struct {
	SMHertz       gpu.Opt[float64] `json:"smHertz,omitzero"`
	MemoryHertz   gpu.Opt[float64] `json:"memoryHertz,omitzero"`
	GraphicsHertz gpu.Opt[float64] `json:"graphicsHertz,omitzero"`
	VideoHertz    gpu.Opt[float64] `json:"videoHertz,omitzero"`
}

type stateClockEvent struct {
	Reason  string           `json:"reason"`
	Active  bool             `json:"active"`
	Seconds gpu.Opt[float64] `json:"seconds,omitzero"`
}

type statePCIe struct {
	ReceiveBytes   gpu.Opt[float64] `json:"receiveBytes,omitzero"`
	TransmitBytes  gpu.Opt[float64] `json:"transmitBytes,omitzero"`
	ReceiveRate    gpu.Opt[float64] `json:"receiveBytesPerSecond,omitzero"`
	TransmitRate   gpu.Opt[float64] `json:"transmitBytesPerSecond,omitzero"`
	Replays        gpu.Opt[uint64]  `json:"replays,omitzero"`
	LinkWidth      gpu.Opt[int]     `json:"linkWidth,omitzero"`
	LinkGeneration gpu.Opt[int]     `json:"linkGeneration,omitzero"`
}

// stateNVLink is never compared to its zero: it has a list. IsZero tells whether the GPU said anything.
type stateNVLink struct {
	ReceiveBytes  gpu.Opt[float64]   `json:"receiveBytes,omitzero"`
	TransmitBytes gpu.Opt[float64]   `json:"transmitBytes,omitzero"`
	ReceiveRate   gpu.Opt[float64]   `json:"receiveBytesPerSecond,omitzero"`
	TransmitRate  gpu.Opt[float64]   `json:"transmitBytesPerSecond,omitzero"`
	Errors        []gpu.NVLinkErrors `json:"errors,omitempty"`
}

// IsZero implements omitzero.
func (l stateNVLink) IsZero() bool {
	return !l.ReceiveBytes.Present() && !l.TransmitBytes.Present() && !l.ReceiveRate.Present() && !l.TransmitRate.Present() &&
		len(l.Errors) == 0
}

// stateXIDs is missing where nobody listens for the GPU's XIDs: it was never read, or its driver does not report them.
type stateXIDs struct {
	Total uint64     `json:"total"`
	ByXID []stateXID `json:"byXid,omitempty"`
}

type stateXID struct {
	XID   uint64    `json:"xid"`
	Count uint64    `json:"count"`
	Last  time.Time `json:"last,omitzero"`
}

// stateCapacity has no slices while MIG is off.
type stateCapacity struct {
	ComputeSlices gpu.SliceCount        `json:"computeSlices,omitzero"`
	MemorySlices  gpu.SliceCount        `json:"memorySlices,omitzero"`
	Profiles      []gpu.ProfileCapacity `json:"profiles"`
}

// stateHolder has confirmed, which is false then, and unconfirmedReason while it is not known whether the container holds the
// device.
type stateHolder struct {
	Namespace         string            `json:"namespace"`
	Pod               string            `json:"pod"`
	PodUID            string            `json:"podUID,omitempty"`
	Container         string            `json:"container"`
	Workload          string            `json:"workload,omitempty"`
	Resource          string            `json:"resource,omitempty"`
	Sharing           gpu.Sharing       `json:"sharing"`
	Replica           string            `json:"replica,omitempty"`
	Confirmed         gpu.Opt[bool]     `json:"confirmed,omitzero"`
	UnconfirmedReason string            `json:"unconfirmedReason,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
}

// stateContainer is the memory of one container's processes on a device that it shares.
// stateContainer is what a container or a batch job uses of a device.
type stateContainer struct {
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

type stateError struct {
	Reading gpu.Reading `json:"reading"`
	Reason  gpu.Reason  `json:"reason"`
	Message string      `json:"message"`
}

type stateErrorCount struct {
	Reading gpu.Reading `json:"reading"`
	Reason  gpu.Reason  `json:"reason"`
	Count   uint64      `json:"count"`
}

type stateInstance struct {
	ID                   gpu.InstanceID         `json:"id"`
	Generation           uint64                 `json:"generation"`
	Profile              string                 `json:"profile,omitempty"`
	ProfileID            gpu.Opt[uint32]        `json:"profileId,omitzero"`
	Placement            gpu.Opt[gpu.Placement] `json:"placement,omitzero"`
	ComputeSlices        gpu.Opt[int]           `json:"computeSlices,omitzero"`
	MemorySlices         gpu.Opt[int]           `json:"memorySlices,omitzero"`
	SMs                  gpu.Opt[int]           `json:"sms,omitzero"`
	Up                   bool                   `json:"up"`
	LastRead             time.Time              `json:"lastRead,omitzero"`
	Memory               gpu.Memory             `json:"memory,omitzero"`
	Activity             gpu.Activity           `json:"activity,omitzero"`
	Media                gpu.Media              `json:"media,omitzero"`
	PowerEstimateWatts   gpu.Opt[float64]       `json:"powerEstimateWatts,omitzero"`
	EnergyEstimateJoules gpu.Opt[float64]       `json:"energyEstimateJoules,omitzero"`
	Processes            gpu.Opt[int]           `json:"processes,omitzero"`
	XIDErrors            []stateXID             `json:"xidErrors,omitempty"`
	Allocated            gpu.Opt[bool]          `json:"allocated,omitzero"`
	ConfirmedFree        bool                   `json:"confirmedFree,omitempty"` // free by an operator\'s confirmation alone
	Holders              []stateHolder          `json:"holders"`
	Jobs                 []string               `json:"jobs,omitempty"`
	Errors               []stateError           `json:"errors"`
	ComputeInstances     []stateCompute         `json:"computeInstances"`
}

type stateCompute struct {
	ID            gpu.ComputeID          `json:"id"`
	Generation    uint64                 `json:"generation"`
	UUID          gpu.MIGUUID            `json:"uuid,omitempty"`
	Profile       string                 `json:"profile,omitempty"`
	Placement     gpu.Opt[gpu.Placement] `json:"placement,omitzero"` // in compute slices within the GPU instance
	ComputeSlices gpu.Opt[int]           `json:"computeSlices,omitzero"`
	SMs           gpu.Opt[int]           `json:"sms,omitzero"`
	Up            bool                   `json:"up"`
	Activity      gpu.Activity           `json:"activity,omitzero"` // never DRAM's
	Processes     gpu.Opt[int]           `json:"processes,omitzero"`
	Allocated     gpu.Opt[bool]          `json:"allocated,omitzero"`
	ConfirmedFree bool                   `json:"confirmedFree,omitempty"` // free by an operator\'s confirmation alone
	Holders       []stateHolder          `json:"holders"`
	Errors        []stateError           `json:"errors"`
}
