package advise

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Action is what is recommended for a device.
type Action string

// The actions. Those on a whole GPU: ActionSlice, ActionShare, ActionKeep and, if nothing holds it,
// ActionFree; on a GPU instance: ActionShrink, ActionGrow, ActionIdle, ActionKeep and ActionFree;
// on both ActionUnknown.
const (
	ActionSlice Action = "slice" // a GPU instance of the recommended profile does the work
	// its kernels are wide and rare: a slice stretches them too far, sharing the GPU would not
	ActionShare  Action = "share"
	ActionKeep   Action = "keep"   // the reason says why
	ActionFree   Action = "free"   // nothing holds the device
	ActionShrink Action = "shrink" // a smaller profile does the work
	ActionGrow   Action = "grow"   // the slice is too small
	ActionIdle   Action = "idle"   // its container has held memory for a day, and nothing has run
	// what decides was not measured; the reason says what, and the explanation how to measure it
	ActionUnknown Action = "unknown"
)

// Reason is why a device is kept as it is, or why a slice has to grow.
type Reason string

// The reasons, in the order in which they are checked.
const (
	ReasonNone           Reason = ""
	ReasonOptedOut       Reason = "opted-out"
	ReasonNoMIG          Reason = "mig-not-supported"
	ReasonShared         Reason = "shared-device"
	ReasonMultiGPU       Reason = "multi-gpu"
	ReasonModePending    Reason = "mig-mode-pending" // MIG mode waits for a reset, which would end what runs
	ReasonLittleEvidence Reason = "little-evidence"
	ReasonLowCoverage    Reason = "low-coverage"
	ReasonNVLink         Reason = "nvlink"
	ReasonNVLinkUnread   Reason = "nvlink-unread" // the traffic over NVLink could not be read
	ReasonGraphics       Reason = "graphics"
	ReasonGraphicsUnread Reason = "graphics-unread" // the processes are hidden, some of which may draw
	// only utilization is known: how much of the GPU kernels fill, and so their stretch in a slice,
	// is unknown
	ReasonNoActivity Reason = "no-activity"
	ReasonNoBusyTime Reason = "no-busy-time" // strictly: nothing ran, so that stretch is unknown
	// the framework takes all memory in advance: the need cannot be seen
	ReasonPreallocated   Reason = "preallocated"
	ReasonMemoryUnread   Reason = "memory-unread"   // its use could not be read for some of the time
	ReasonMemory         Reason = "memory"          // no smaller profile has enough
	ReasonMedia          Reason = "media-engines"   // no smaller profile has enough engines, or a slice too few
	ReasonStretch        Reason = "stretch"         // a request would take too long in a slice
	ReasonLatency        Reason = "latency"         // requests would wait too long in a slice, or do
	ReasonBusy           Reason = "busy"            // a slice could not keep up
	ReasonThroughput     Reason = "throughput"      // clients that wait would do less in a slice, or do
	ReasonSingleStrategy Reason = "single-strategy" // no one profile fits every pod of the node
	ReasonNoGain         Reason = "no-gain"         // a slice would do, and neither frees a GPU nor makes room
	ReasonHoldersUnknown Reason = "holders-unknown"
	ReasonSaturated      Reason = "saturated" // SMs: busy all the time on all SMs
	ReasonBandwidth      Reason = "bandwidth"
	ReasonMemoryFull     Reason = "memory-full"
	ReasonStartUnseen    Reason = "start-unseen" // a slice would do, but what a start needs is not known
	ReasonNotUp          Reason = "not-up"       // the container of a slice did not come up, or does not stay up
)

// Report is what is recommended for the devices of a node.
type Report struct {
	APIVersion string    `json:"apiVersion"`
	Time       time.Time `json:"time"`
	Node       string    `json:"node"`
	Strict     bool      `json:"strict,omitempty"`
	// SingleStrategy says that all GPUs of the node have one mode and one profile.
	SingleStrategy bool `json:"singleStrategy,omitempty"`
	// WithoutKubernetes says that the node has neither a kubelet nor pods.
	WithoutKubernetes bool `json:"withoutKubernetes,omitempty"`
	// Devices are the whole GPUs and GPU instances, by GPU index and placement.
	Devices []Recommendation `json:"devices"`
	// NotJudged are the GPUs that have no answer because they could not be read, or have not been read yet.
	NotJudged []NotJudged `json:"notJudged,omitempty"`
	// GPUsUnknown says why it is not known yet which GPUs the node has; empty once the driver has listed
	// them. Until then Devices and NotJudged are empty whatever the node has.
	GPUsUnknown string `json:"gpusUnknown,omitempty"`
	// Packing is how the recommendations fit on the fewest GPUs; absent if nothing is to be moved.
	Packing *Packing `json:"packing,omitempty"`
	// Notes say what could not be seen.
	Notes []string `json:"notes,omitempty"`

	tenants map[gpu.UUID]draw // of GPUs in MIG mode
}

// draw is what MIG does not isolate: the p95 of dynamic power, as a share of the power limit, and
// the traffic of the busiest minute, as a share of the PCIe link.
type draw struct {
	power, pcie float64
	powered     bool // of tenants: power is known
	pcieUnread  bool // the traffic could not be read for some of the time, and counts as the whole link
}

// add adds what another workload draws.
func (d *draw) add(o draw) {
	d.power += o.power
	d.pcie += o.pcie
	d.pcieUnread = d.pcieUnread || o.pcieUnread
}

// Recommendation is the answer for one device.
type Recommendation struct {
	GPU       gpu.UUID                `json:"gpu"`
	Index     int                     `json:"index"`
	Instance  gpu.Opt[gpu.InstanceID] `json:"gpuInstance,omitzero"`
	Placement gpu.Opt[gpu.Placement]  `json:"placement,omitzero"`
	MIGDevice gpu.MIGUUID             `json:"migDevice,omitempty"`
	Model     string                  `json:"model"`
	Profile   string                  `json:"profile,omitempty"` // of the GPU instance
	// Pod is the pod that holds the device now; absent if none does or several do.
	Pod      *Pod   `json:"pod,omitempty"`
	Workload *Key   `json:"workload,omitempty"`
	Action   Action `json:"action"`
	Reason   Reason `json:"reason,omitempty"`
	// Explanation says in a sentence what the action follows from.
	Explanation string `json:"explanation,omitempty"`
	// Recommended is the profile, for ActionSlice, ActionShrink and ActionGrow; empty if no larger
	// one is offered.
	Recommended string `json:"recommendedProfile,omitempty"`
	// Provisional says that the evidence is not complete yet. We show such a recommendation,
	// but metrics and alerts do not name it as a candidate.
	Provisional bool `json:"provisional,omitempty"`
	// NotChecked says the same for another reason: the profile lacks media engines whose use cannot
	// be read.
	NotChecked bool `json:"mediaNotChecked,omitempty"`
	// Reclaimable is the share of the GPU's SMs that is set free, 0-1.
	Reclaimable float64 `json:"reclaimableRatio,omitempty"`
	// Gain is what the move to the slice brings, for a candidate that the packing has placed.
	Gain       *Gain      `json:"gain,omitempty"`
	Confidence float64    `json:"confidenceRatio,omitempty"`
	Evidence   *Evidence  `json:"evidence,omitempty"`
	Predicted  *Predicted `json:"predicted,omitempty"`
	// Considered are the profiles smaller than the device, with why each is not recommended.
	Considered []Considered `json:"considered,omitempty"`

	sentence string // Explanation without the gain
	unheld   string // of ReasonHoldersUnknown: a sentence on what is not known
	apart    draw   // the limits that keep it from sharing a GPU: above 0
	down     string // a sentence on a container that did not come up, or does not stay up
	job      string // a sentence on the job on several GPUs that the pod is a part of; empty if it is of none
}

// Candidate reports whether the metrics and alerts name the device as one that should be a slice.
func (r *Recommendation) Candidate() bool {
	return r.Action == ActionSlice && r.WhyNotFinal() == ReasonNone
}

// isSlice reports whether a slice is recommended, also if that is not final yet.
func (r *Recommendation) isSlice() bool { return r.Action == ActionSlice }

// isUnfinishedSlice reports whether a slice is recommended, and that is not final yet.
func (r *Recommendation) isUnfinishedSlice() bool { return r.isSlice() && !r.Candidate() }

// Pod names a container that holds a device, and the resource that it asked for.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Container string `json:"container"`
	Resource  string `json:"resource,omitempty"`
}

// Evidence is what was seen of a workload. Ratios are of the device that it held.
type Evidence struct {
	Since         time.Time `json:"since"`
	ObservedHours float64   `json:"observedHours"`
	KnownDays     float64   `json:"knownDays"`     // nothing rarer is known: eight, or the time since Since
	CoverageRatio float64   `json:"coverageRatio"` // of the time held in the last eight days
	MemoryBytes   float64   `json:"memoryMaxBytes"`
	// StartMemory is the largest use in the last starts, which counts however long ago they were.
	// Starts are those that were seen from their beginning; 0 while a pod runs of whose template none was.
	StartMemory   float64 `json:"startMemoryMaxBytes,omitempty"`
	Starts        int     `json:"startsSeen"`
	BusyMinutes   float64 `json:"busyMinutes"` // with kernels that were measured; older ones count less
	MemoryTrend   float64 `json:"memoryTrendBytesPerDay,omitempty"`
	BusyMean      float64 `json:"busyMeanRatio"`
	BusyP50       float64 `json:"busyP50Ratio"`
	BusyP99       float64 `json:"busyP99Ratio"`
	Busy10Minutes float64 `json:"busyMax10MinutesRatio"`
	// Median and P95 are of the time in which kernels ran; absent with ActivityUnread or NeverBusy.
	Median Kernels `json:"kernelsMedian,omitzero"`
	P95    Kernels `json:"kernelsP95,omitzero"`
	// MemoryUnread says that the use of memory could not be read for some of the time.
	MemoryUnread bool `json:"memoryUnread,omitempty"`
	// ActivityUnread says that SM or DRAM activity was not read for long enough to know how much of
	// the device kernels fill.
	ActivityUnread bool `json:"activityUnread,omitempty"`
	// ActivityHours are the hours of busy time of the last eight days in which SM and DRAM activity
	// were read, if that is a sample.
	ActivityHours float64 `json:"activityHours,omitempty"`
	// NeverBusy says that no kernel was seen: we do not know what a slice would do to one.
	NeverBusy bool `json:"neverBusy,omitempty"`
	// PowerP95 is a share of the power limit, and absent if the power or the limit is unknown for some of
	// the time.
	PowerP95 gpu.Opt[float64] `json:"dynamicPowerP95Ratio,omitzero"`
	// PCIeMax is a share of the link, and absent if the traffic is unknown for some of the time.
	PCIeMax      gpu.Opt[float64] `json:"pcieMaxRatio,omitzero"`
	MediaEngines []string         `json:"mediaEngines,omitempty"` // that were used
	// MediaUse says how much of them, in the order of MediaEngines.
	MediaUse       []MediaUse `json:"mediaUse,omitempty"`
	MediaUnread    bool       `json:"mediaEnginesUnread,omitempty"`
	ThrottledRatio float64    `json:"throttledRatio,omitempty"` // of the observed time
	// Server is what we know of the inference server, by its own word; absent if there is none.
	Server *ServerEvidence `json:"server,omitempty"`
	// BusyHistogram and WidthHistogram have the shares of ten equal ranges of 0-1. WidthHistogram
	// is absent where P95 is.
	BusyHistogram  [10]float64 `json:"busyHistogram"`
	WidthHistogram [10]float64 `json:"widthHistogram,omitzero"`

	// The rest is for decisions, and not part of a Report.

	now            time.Time // of the evidence
	requests       requests
	decisive       Kernels // what we compute the p95 of stretch from
	graphicsUnread bool
	nvlinkUnread   bool
	powerUnread    bool    // its power, or the limit, is unknown for some of the time
	leastPower     float64 // PowerP95 of what was read: the least that we count; 0 if nothing was
	pcieUnread     bool    // its traffic is unknown for some of the time
	unreadBusy     float64 // the share of busy time in which SM or DRAM activity was not read

	settledBytes float64 // largest use of memory outside of starts
	startNeed    float64 // what a start needs now, in bytes
	newVersion   bool    // of the template of a pod that runs no start was seen, but of others
	flat         bool    // memory has not changed since the end of the last start
	growthRate   float64 // per day, of memory that grows steadily by a share of itself

	queueOf    func(sms, memorySlices int) *queueUse // nil without an Advisor
	loadsKnown bool                                  // queueUse.Passed is known
	inSlices   float32                               // workload.InSlices
}

// stretchUnknown reports whether the evidence says nothing of what a slice would do to kernels.
func (e *Evidence) stretchUnknown() bool { return e.ActivityUnread || e.NeverBusy }

// Predicted is what we expect of the workload in the recommended profile. Stretch and throughput are
// absent if they are unknown, see Evidence.NeverBusy.
type Predicted struct {
	StretchMedian Stretch `json:"stretchMedian,omitzero"`
	StretchP95    Stretch `json:"stretchP95,omitzero"`
	Latency       Latency `json:"latency,omitzero"`
	// BusyP99 may be a bound, see BoundOfBusy: we may only know that hardly any minute is busier than
	// Options.TargetBusy.
	BusyP99       float64 `json:"busyP99Ratio"`
	Busy10Minutes float64 `json:"busyMax10MinutesRatio"`
	SMActivity    float64 `json:"smActivityRatio"`
	// ThroughputRatio is what is left of today's throughput. Of a job, and of what keeps the device busy all
	// the time, it is what is left if each step waits for the one before.
	ThroughputRatio float64 `json:"throughputRatio,omitzero"`
	MemoryFree      float64 `json:"memoryFreeBytes"` // at the largest use that was seen
	Decided         Decided `json:"decidedBy"`
	// MediaEngines are those that it uses.
	MediaEngines []PredictedEngines `json:"mediaEngines,omitempty"`
	Server       *PredictedServer   `json:"server,omitempty"`
}

// Latency is how many times as long a request takes in a slice as on the current device, waiting
// included, at p95 of the busiest hour. Without the service time of requests we only know that it is
// between Low and High. Expected decides: it holds for requests that come at random, with the kernels
// of p95 and, without a service time, service times that spread exponentially. 1000 stands for a queue
// that grows without bound. The zero value means that the workload answers no requests, or that its
// latency is unknown.
type Latency struct {
	Low      float64 `json:"low"`
	Expected float64 `json:"expected"`
	High     float64 `json:"high"`
	// Figure is our best estimate, between Low and High; 0 if the service time is unknown.
	Figure float64 `json:"figure,omitzero"`
	// Load is the load of the slice in the busiest spells of that hour, those of the upper tenth of
	// the work. From 1 on the slice falls behind.
	Load float64 `json:"loadRatio"`
	// worst is Figure if kernels are stretched as far as the evidence allows; 0 without a Figure.
	worst float64
}

// IsUnbounded reports whether nothing is known that would keep latency below a limit.
func (l Latency) IsUnbounded() bool { return l.High >= mostLatency }

// Considered is a profile and why it is not recommended; Reason is empty for the recommended one.
// StretchP95 is absent if it is unknown.
type Considered struct {
	Profile    string  `json:"profile"`
	Reason     Reason  `json:"reason,omitempty"`
	StretchP95 Stretch `json:"stretchP95,omitzero"`
}

// Packing is how all recommended slices of a node fit on the fewest of its GPUs.
type Packing struct {
	// GPUs are those that get new slices, by index.
	GPUs []PackedGPU `json:"gpus"`
	// InUse counts the whole GPUs that the moved workloads hold now.
	InUse int `json:"gpusInUse"`
	// Needed counts the whole GPUs that their slices are created on. Free GPUs count, GPUs that are in
	// MIG mode already do not.
	Needed int `json:"gpusNeeded"`
	// FreedGPUs are the indices of the GPUs of InUse that nothing holds afterwards. There are none under
	// the single strategy, which leaves no GPU whole: FreeSlices counts the slices of the one profile
	// on the GPUs that no workload moves to.
	FreedGPUs  []int `json:"freedGpus"`
	FreeSlices int   `json:"freeSlices,omitempty"`
	// Proven is false if the search for fewer GPUs was stopped at its limit.
	Proven bool `json:"provenOptimal"`
}

// PackedGPU is a GPU and the new slices on it.
type PackedGPU struct {
	GPU    gpu.UUID      `json:"gpu"`
	Index  int           `json:"index"`
	Slices []PackedSlice `json:"slices"`
}

// PackedSlice is a slice and the whole GPU whose workload it is for. Partition control chooses the
// placement of a new one when it makes its plan.
type PackedSlice struct {
	Profile string `json:"profile"`
	From    int    `json:"fromGpuIndex"`
	Exists  bool   `json:"exists,omitempty"` // it has been created already, and is free
}
