package api

import (
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// PlanRequest asks which steps would give the node the instances of a spec.
type PlanRequest struct {
	Spec Spec `json:"spec"`
	// Force names, one by one, busy instances that may be destroyed: MIG UUIDs, or "GPU-<uuid>/<GPU
	// instance>" for one without compute instances.
	Force []string `json:"force,omitempty"`
	// TakeOver says that GPUs which another owner manages may be changed.
	TakeOver bool `json:"takeOver,omitempty"`
}

// Plan says what an operation would do.
type Plan struct {
	APIVersion string `json:"apiVersion"`
	ID         string `json:"id"`
	// Hash is over all that the plan was made from. Once that has changed, the plan is stale.
	Hash    string    `json:"hash"`
	Created time.Time `json:"created"`
	Node    string    `json:"node"`
	// GPUs are the GPUs that the spec names or the plan changes, by index.
	GPUs  []PlanGPU  `json:"gpus"`
	Steps []mig.Step `json:"steps"` // none: the node has this layout already
	// Forced are the names in the request's force whose instances the plan destroys.
	Forced []string `json:"forced,omitempty"`
	// Owners are other controllers that manage GPUs of the plan. There are none unless TakeOver is
	// set.
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
	// Left is the largest profile that could still be created afterwards; empty if none could.
	Left string `json:"left,omitempty"`
}

// Instance is a GPU instance in a layout.
type Instance struct {
	ID        gpu.Opt[gpu.InstanceID] `json:"id,omitzero"` // absent before it is created
	Profile   string                  `json:"profile"`
	ProfileID uint32                  `json:"profileId"`
	Placement gpu.Placement           `json:"placement"`
	Compute   []ComputeInstance       `json:"computeInstances"`
	// Fate is "keep" or "destroy" in PlanGPU.Before, "keep" or "create" in PlanGPU.After.
	Fate Fate `json:"fate"`
	// Holders say why it is busy; empty if it is idle.
	Holders []Hold `json:"holders,omitempty"`
	// Need is the index, in Spec.Demand, of the need that it is created for; else absent.
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

// HoldKind is a kind of reason why an instance is busy.
type HoldKind string

// The kinds.
const (
	HoldProcess  HoldKind = "process"  // a process runs on it
	HoldHandle   HoldKind = "handle"   // a process has its device or capability file open
	HoldActivity HoldKind = "activity" // it has been active lately
	HoldPod      HoldKind = "pod"      // the kubelet gave it to a container
	HoldJob      HoldKind = "job"      // the scheduler gave it to a batch job
	HoldUnknown  HoldKind = "unknown"  // a check failed, so we take it for busy
	// HoldUnconfirmed: a container may hold it. The kubelet has listed that container before and
	// does not list it now, or its list is incomplete, or the container's claim may be for
	// administrative access only. The hold ends when we know, or when an operator confirms that the
	// device is free.
	HoldUnconfirmed HoldKind = "unconfirmed"
)

// Hold is one reason why an instance is busy.
type Hold struct {
	Kind HoldKind `json:"kind"`
	PID  uint32   `json:"pid,omitempty"` // 0 if the hold is not about one process
	// What names the holder: "ml/train-0 (main)", "job 4711", "python3", or the error of a check.
	// After an unconfirmed holder comes the reason: "ml/train-0 (main): ...".
	What string `json:"what"`
}

// Unconfirmed reports whether the hold may be over already: we do not know.
func (h Hold) Unconfirmed() bool { return h.Kind == HoldUnconfirmed }

// ByClaim reports whether the hold is unconfirmed since the holder's claim may be for administrative
// access only, although the kubelet lists the holder.
func (h Hold) ByClaim() bool { return h.Unconfirmed() && strings.Contains(h.What, claimAccess) }

// claimAccess begins the reason of such a hold.
const claimAccess = "its claim may be for administrative access"

// Confirmed reports whether the holder certainly uses the instance, so that an operator cannot
// confirm that the instance is free: a container that the kubelet lists, or a process that we see.
func (h Hold) Confirmed() bool {
	return h.Kind == HoldPod || h.Kind == HoldProcess || h.Kind == HoldHandle
}
