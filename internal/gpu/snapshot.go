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
	// BetweenPolls is set if we have not read all GPUs for this Snapshot, but none, only some, or
	// only their layouts. The rest is what the last poll found. An instance that is new since then
	// may have no readings yet.
	BetweenPolls bool
	Hostname     string
	Driver       Opt[Driver] // absent while no driver answers
	Sources      []SourceState
	GPUs         []GPU // by index
	// Unread are the indexes of GPUs whose first reading is still under way. The driver lists them;
	// the field GPUs does not have them yet.
	Unread []int
	// Unmatched are the assignments whose IDs name no device of this node, ordered by container.
	Unmatched []Assignment
	// HoldersIncomplete is why a device without a holder may be held nevertheless; empty if all
	// holders are known.
	HoldersIncomplete string
	// Witness is Assignments.Witness; absent if the node has no kubelet, or we do not ask it.
	Witness Opt[bool]
	// Servers are the last answers of the inference servers of pods. A server that does not answer
	// any more is not among them.
	Servers []PodServer
	// UnlistedXIDs are XIDs in the kernel's log of GPUs that we never read, for example because
	// they had fallen off the bus before we started: the last line about each XID of each GPU. The
	// Totals of GPUs don't include them.
	UnlistedXIDs []LoggedXID
	// HungCalls counts the driver calls that have not returned in time and may never return.
	HungCalls int
	Pace      Pace
	// Processes is how much of single processes may be served.
	Processes ProcessDetail
}

// WhyUnknown returns why the driver has not listed its GPUs yet; empty if it has. Until then GPUs is empty
// whatever the node has.
func (s *Snapshot) WhyUnknown() string {
	for i := range s.Sources {
		if src := &s.Sources[i]; src.Name == SourceNVML && src.LastSuccess.IsZero() && src.Err != nil {
			return src.Err.Error()
		}
	}

	return ""
}

// DescribeUnknownGPUs returns the sentence on a node whose GPUs are not known yet, for WhyUnknown.
func DescribeUnknownGPUs(why string) string {
	return "it is not known yet which GPUs this node has: " + why
}

// Driver has the versions in use.
type Driver struct {
	Version, NVML string
	CUDA          string // "12.4"; empty if unknown
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
	SourceNodeLabels = "node_labels" // the labels that this node has, and those that we write
)

// SourceState is whether a source answered.
type SourceState struct {
	Name string
	Up   bool // its last call succeeded
	// Stale is set while the source does not answer and its last answer is still in use.
	Stale       bool
	LastSuccess time.Time // zero before the first
	Err         error     // why it is not up; wraps ErrNotConfigured if nothing is wrong with it
}

// Facts are a GPU's identity and properties that do not change while its driver is loaded. A string
// is empty if the driver does not report the fact.
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
	// NoXIDs is set if the driver has never agreed to report the GPU's XIDs: a count of 0 would be
	// wrong.
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
	// ActivitySource is known before Activity has values: these come once the first window has
	// passed.
	ActivitySource ActivitySource
	// ActivityRollup is set if we computed Activity from that of the GPU instances; otherwise the
	// source reported it for the GPU.
	ActivityRollup bool
	Rates          LinkRates
	// InvalidActivity is how many values of this reading's activity were dropped because they were
	// no numbers.
	InvalidActivity int
	// Jobs are the batch jobs that hold the whole GPU, if a scheduler reports them. JobsUnknown says that
	// it should, and that they could not be read: it may be held.
	Jobs        []string
	JobsUnknown bool
	MIG         MIGState
	Capacity    Opt[Capacity]
	Totals      Totals
	Power       PowerEstimate
	// Instances are the GPU instances by placement; empty when MIG is off.
	Instances []GPUInstance
	// Containers are what containers and batch jobs use of the GPU and of its devices, the GPU
	// first, then by instance.
	Containers []ContainerUse
}

// MIGState is a GPU's MIG mode, absent if the GPU has none, and its layout.
type MIGState struct {
	Enabled, Pending Opt[bool]
	// DevicesHidden is set if the driver denies us a MIG device of the GPU: the GPU may have
	// compute instances, and even GPU instances, that Instances lacks.
	DevicesHidden bool
	// LayoutGeneration grows by one with every observed change of the GPU and compute instances; 1
	// is the first layout.
	LayoutGeneration uint64
}

// Counter is a value that only grows. Since is when it began at 0.
type Counter struct {
	Value float64
	Since time.Time
}

// XIDCount counts one XID.
type XIDCount struct {
	XID uint64
	Counter
	Last time.Time // when the XID last occurred
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
	XIDs                          Counter      // all XIDs; zero if we do not receive the GPU's XIDs
	XIDErrors                     []XIDCount   // the same, ordered by XID
	GPUXIDs                       []XIDCount   // only the XIDs that named no GPU instance
	Unavailable, RecoveryActions  Opt[Counter] // events; absent if the driver does not report them
	ReadErrors                    []ErrorCount
	ClockEvents                   []ReasonSeconds // empty if the driver reports none
	PCIeReceive, PCIeTransmit     Opt[Counter]    // unwrapped bytes
	NVLinkReceive, NVLinkTransmit Opt[Counter]
	LayoutChanges                 Counter // zero for a GPU that has no MIG
	// ActivityAnomalies counts impossible values of the profiling counters: ratios above 1, which
	// we pass on, and values that are no numbers, which we drop. It is absent if the GPU was never
	// profiled.
	ActivityAnomalies       Opt[Counter]
	EnergyUnallocatedJoules Opt[Counter]
}

// PowerMethod names the rule by which we shared a GPU's active power among its instances. Active
// power is the power above IdleWatts.
type PowerMethod string

// The methods.
const (
	// PowerByActivity shares it by SMs and graphics engine activity.
	PowerByActivity PowerMethod = "activity"
	// PowerUnallocated shares nothing: nothing is active, or the activity is unknown.
	PowerUnallocated PowerMethod = "unallocated"
	// PowerUnknown: the driver reports neither power nor energy, so that there are no estimates.
	PowerUnknown PowerMethod = "unknown"
	// PowerNotApplicable: the GPU is not in MIG mode.
	PowerNotApplicable PowerMethod = ""
)

// PowerEstimate is how we shared the power of a MIG GPU among its instances. IdleWatts and
// FromEnergy are also set without MIG.
type PowerEstimate struct {
	// FromEnergy is set if the driver reports no power and Readings.PowerWatts is the mean power by
	// the energy counter instead.
	FromEnergy       bool
	Method           PowerMethod
	IdleWatts        Opt[float64] // what the GPU would draw without work
	UnallocatedWatts Opt[float64] // the power that no instance got
}
