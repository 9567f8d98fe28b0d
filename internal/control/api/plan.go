package api

import (
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// PlanRequest asks what would have to be done. Spec is in one of its three forms, see the package
// spec.
type PlanRequest struct {
	Spec Spec `json:"spec"`
	// Force names, one by one, busy instances that may be destroyed: MIG UUIDs, or "GPU-<uuid>/<GPU
	// instance>" for one without compute instances.
	Force []string `json:"force,omitempty"`
	// TakeOver says that GPUs which another owner manages may be changed.
	TakeOver bool `json:"takeOver,omitempty"`
}

// Plan is what would be done, and changes nothing.
type Plan struct {
	APIVersion string    `json:"apiVersion"`
	ID         string    `json:"id"`
	Hash       string    `json:"hash"` // over what the plan was made from; it is void once that has changed
	Created    time.Time `json:"created"`
	Node       string    `json:"node"`
	// GPUs are those that the spec names or the plan touches, by index.
	GPUs  []PlanGPU  `json:"gpus"`
	Steps []mig.Step `json:"steps"` // none: the node has this layout already
	// Forced are the instances of the request's force that the plan destroys.
	Forced []string `json:"forced,omitempty"`
	// Owners are other controllers that manage GPUs of the plan; takeOver overrides them.
	Owners   []string `json:"owners,omitempty"`
	TakeOver bool     `json:"takeOver,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// PlanGPU is one GPU before and after.
type PlanGPU struct {
	UUID      gpu.UUID   `json:"uuid"`
	Index     int        `json:"index"`
	Name      string     `json:"name"`
	AxisUnits int        `json:"axisUnits"` // length of the placement axis in memory slices
	Before    []Instance `json:"before"`
	After     []Instance `json:"after"`
	// Left is the largest profile that could still be created afterwards.
	Left string `json:"left,omitempty"`
}

// Instance is a GPU instance of a layout.
type Instance struct {
	ID        gpu.Opt[gpu.InstanceID] `json:"id,omitzero"` // absent before it is created
	Profile   string                  `json:"profile"`
	ProfileID uint32                  `json:"profileId"`
	Placement gpu.Placement           `json:"placement"`
	Compute   []ComputeInstance       `json:"computeInstances"`
	// Fate is "keep" or "destroy" in a layout before, "keep" or "create" in one after.
	Fate Fate `json:"fate"`
	// Holders is why it is busy; empty for one that is idle.
	Holders []Hold `json:"holders,omitempty"`
	// Need is the index of the need that it is created for, in a demand.
	Need gpu.Opt[int] `json:"need,omitzero"`
}

// ComputeInstance is a compute instance of a layout.
type ComputeInstance struct {
	ID        gpu.Opt[gpu.ComputeID] `json:"id,omitzero"`
	UUID      gpu.MIGUUID            `json:"uuid,omitempty"`
	Placement gpu.Placement          `json:"placement"` // in compute slices of its GPU instance
	Fate      Fate                   `json:"fate"`
	Holders   []Hold                 `json:"holders,omitempty"`
}

// Fate is what a plan does with an instance.
type Fate string

// The fates.
const (
	Keep    Fate = "keep"
	Destroy Fate = "destroy"
	Create  Fate = "create"
)

// HoldKind is the kind of what makes an instance busy.
type HoldKind string

// The kinds. HoldUnknown is a check that failed: what could not be checked is busy.
const (
	HoldProcess  HoldKind = "process"  // it runs on it
	HoldHandle   HoldKind = "handle"   // a process has its device or capability file open
	HoldActivity HoldKind = "activity" // it has been active lately
	HoldPod      HoldKind = "pod"      // the kubelet gave it to a container
	HoldJob      HoldKind = "job"      // the scheduler gave it to a batch job
	HoldUnknown  HoldKind = "unknown"
	// HoldUnconfirmed is a container that may hold it: one that the kubelet has listed before and
	// does not list now, or any while its list is incomplete. A claim that may be for
	// administrative access makes its pod one as well. It ends when that is settled, or when an
	// operator confirms that the device is free.
	HoldUnconfirmed HoldKind = "unconfirmed"
)

// Hold is one reason why an instance is busy. PID is 0 if it is not about one process.
type Hold struct {
	Kind HoldKind `json:"kind"`
	PID  uint32   `json:"pid,omitempty"`
	// What names the holder: "ml/train-0 (main)", "job 4711", "python3", or the error of a check.
	// Of an unconfirmed one it has the reason, too.
	What string `json:"what"`
}

// Unconfirmed reports whether the hold may be over already: we do not know.
func (h Hold) Unconfirmed() bool { return h.Kind == HoldUnconfirmed }

// ByClaim reports whether the kubelet lists an unconfirmed holder, but its claim may be for
// administrative access.
func (h Hold) ByClaim() bool { return h.Unconfirmed() && strings.Contains(h.What, claimAccess) }

// claimAccess begins the reason of such a holder.
const claimAccess = "its claim may be for administrative access"

// Confirmed reports whether an operator cannot confirm that the instance is free because of this
// holder: a container that the kubelet lists, or a process that is seen.
func (h Hold) Confirmed() bool {
	return h.Kind == HoldPod || h.Kind == HoldProcess || h.Kind == HoldHandle
}
