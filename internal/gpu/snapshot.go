// Package gpu is the domain: what a node's GPUs, GPU instances and compute instances are, hold and
// do at one moment. It is pure and imports the standard library alone.
package gpu

import "time"

// Snapshot is the node at one moment. Once published it is immutable: neither it nor anything that
// it points to may be modified, and readers need no lock.
type Snapshot struct {
	// Generation grows by one with every published Snapshot of a process.
	Generation uint64
	Time       time.Time
	// BetweenPolls is set if no GPUs or only some were read since the last poll, or only their
	// layouts. All else of them is as that poll has found it. An instance that is new since then
	// may have no readings yet.
	BetweenPolls bool
	Hostname     string
	Driver       Opt[Driver] // absent while no driver answers
	Sources      []SourceState
	GPUs         []GPU // by index
	// Unread are the indexes of GPUs that the driver lists and GPUs does not have yet: their first
	// reading is under way.
	Unread []int
	// Unmatched are the assignments whose IDs name no device of this node, by container.
	Unmatched []Assignment
	// HoldersIncomplete is why a device without a holder may be held nevertheless; empty if all
	// holders are known.
	HoldersIncomplete string
	// Witness is Assignments.Witness; absent if the node has no kubelet, or none is asked.
	Witness Opt[bool]
	// Servers are the last answers of the inference servers of pods: their own word. A server that
	// does not answer any more is not among them.
	Servers []PodServer
	// UnlistedXIDs are the last lines of the kernel's log about each XID of a GPU that was never
	// read, such as one that had fallen off the bus before. No GPU has counted them.
	UnlistedXIDs []LoggedXID
	// HungCalls counts the driver calls that have not returned in time and may never return.
	HungCalls int
	Pace      Pace
	// Processes is how much of single processes may be served.
	Processes ProcessDetail
}

// Driver names the versions in use.
type Driver struct {
	Version, NVML string
	CUDA          string // "12.4"; empty where unknown
}

// The sources whose state a Snapshot carries.
const (
	SourceNVML       = "nvml"
	SourceDCGM       = "dcgm"
	SourceKubelet    = "kubelet"
	SourceCheckpoint = "kubelet_checkpoint"
	SourceKubernetes = "kubernetes" // the API server
	SourceJobs       = "hpc_jobs"
	SourceKernelLog  = "kernel_log"
	SourceNodeLabels = "node_labels" // those of the node, and what is written to it
)

// SourceState is whether a source answered when the Snapshot was made.
type SourceState struct {
	Name string
	Up   bool
	// Stale is set while the source does not answer and its last answer is still in use.
	Stale       bool
	LastSuccess time.Time // zero before the first
	Err         error     // why it is not up; wraps ErrNotConfigured if nothing is wrong with it
}

// Facts are a GPU's identity and properties that do not change while its driver is loaded. Empty
// strings are absent facts.
type Facts struct {
	// UUID is empty for a GPU that the driver counts but gives no handle for; only its errors are
	// known then.
	UUID         UUID
	Index        int
	Minor        Opt[int]
	Name         string
	Architecture string
	PCIBusID     string
	Serial       string
	VBIOS        string
	SMs          Opt[int]
	// Profiles are the kinds of GPU instances that it offers; nil if it has no MIG or the driver
	// withholds them.
	Profiles []Profile
	// NoXIDs is set if the driver has refused to report its XIDs from the start: a count of 0 would
	// be wrong.
	NoXIDs bool
	// ReportsUnavailable and ReportsRecovery are set if the driver reports EventUnavailable and
	// EventRecoveryAction.
	ReportsUnavailable, ReportsRecovery bool
}

// GPU is one physical GPU.
type GPU struct {
	Facts
	Device
	// Released is set while this process has let go of the GPU. It is not up then, which says
	// nothing about its health, and only Facts and Totals are known of it.
	Released Opt[Release]
	LastRead time.Time // of the last reading that succeeded; zero before the first
	// Readings are zero (all absent) while the GPU is stale.
	Readings Readings
	// ActivitySource can be known without any value yet, until its first window has passed.
	ActivitySource ActivitySource
	// ActivityRollup is set if Activity is rolled up from the GPU instances. Else it is the GPU's
	// own.
	ActivityRollup bool
	Rates          LinkRates
	// InvalidActivity counts the values of this reading that were no numbers and were dropped.
	InvalidActivity int
	// Jobs are the batch jobs that hold the whole GPU, if a scheduler reports them.
	Jobs     []string
	MIG      MIGState
	Capacity Opt[Capacity]
	Totals   Totals
	Power    PowerEstimate
	// Instances are the GPU instances by placement; empty when MIG is off.
	Instances []GPUInstance
	// Containers are what containers and batch jobs use of the GPU and of its devices, the GPU
	// first, then by instance.
	Containers []ContainerUse
}

// MIGState is a GPU's MIG mode, absent if the GPU has none, and its layout.
type MIGState struct {
	Enabled, Pending Opt[bool]
	// DevicesHidden is set if MIG devices of the GPU are denied: there may be others, and GPU
	// instances of which nothing else shows.
	DevicesHidden bool
	// LayoutGeneration grows by one with every observed change of the GPU and compute instances; 1
	// is the first layout.
	LayoutGeneration uint64
}

// Counter is a value that only grows, and when it began.
type Counter struct {
	Value float64
	Since time.Time
}

// XIDCount counts one XID.
type XIDCount struct {
	XID uint64
	Counter
	Last time.Time
}

// ErrorCount counts failed readings of one kind.
type ErrorCount struct {
	Reading Reading
	Reason  Reason
	Counter
}

// ReasonSeconds is the time for which a clock event reason was active.
type ReasonSeconds struct {
	Reason  string
	Active  bool
	Seconds Counter
}

// Totals are the running totals of one GPU, kept by the poll loop.
type Totals struct {
	XIDs                          Counter
	XIDErrors                     []XIDCount   // by XID
	GPUXIDs                       []XIDCount   // those that named no GPU instance
	Unavailable, RecoveryActions  Opt[Counter] // events; absent if the driver does not report them
	ReadErrors                    []ErrorCount
	ClockEvents                   []ReasonSeconds // empty if the driver reports none
	PCIeReceive, PCIeTransmit     Opt[Counter]    // unwrapped bytes
	NVLinkReceive, NVLinkTransmit Opt[Counter]
	LayoutChanges                 Counter // zero for a GPU that has no MIG
	// ActivityAnomalies counts impossible values of the profiling counters: those above 1, which
	// are passed on, and those that are no numbers, which are dropped. Absent if the GPU was never
	// profiled.
	ActivityAnomalies       Opt[Counter]
	EnergyUnallocatedJoules Opt[Counter]
}

// PowerMethod names the rule by which active power was shared among instances.
type PowerMethod string

// The methods. See PowerEstimate.
const (
	PowerByActivity  PowerMethod = "activity"    // by SMs and graphics engine activity
	PowerUnallocated PowerMethod = "unallocated" // nothing is active or activity is unknown
	// the driver reports neither power nor energy: there are no estimates
	PowerUnknown       PowerMethod = "unknown"
	PowerNotApplicable PowerMethod = "" // no MIG
)

// PowerEstimate is how the power of a MIG GPU was shared among its instances. IdleWatts and
// FromEnergy are set without MIG, too.
type PowerEstimate struct {
	// FromEnergy is set if the driver reports no power: it is the mean since the last reading, by
	// the energy counter.
	FromEnergy       bool
	Method           PowerMethod
	IdleWatts        Opt[float64]
	UnallocatedWatts Opt[float64]
}
