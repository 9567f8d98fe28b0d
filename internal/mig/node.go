package mig

import (
	"errors"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// NodeGPU is one GPU of a node to plan for.
type NodeGPU struct {
	UUID     gpu.UUID
	Index    int
	PCIBusID string
	// Minor is the number of its device file, /dev/nvidia<minor>; absent where the driver tells not.
	Minor gpu.Opt[int]
	// PCIDevice is the PCI device id with the vendor's below it, as the driver gives it: 0x20B010DE. 0 is unknown.
	PCIDevice uint32
	Name      string
	// MIG is its current mode; absent where the GPU has none.
	MIG gpu.Opt[bool]
	// Pending is the mode that comes with the next reset or reboot.
	Pending  gpu.Opt[bool]
	Profiles []gpu.Profile
	// Instances are its GPU instances by placement.
	Instances []NodeInstance
}

// NodeInstance is a GPU instance that stands.
type NodeInstance struct {
	ID gpu.InstanceID
	Placed
	// Busy says that it may not be destroyed, nor any of its compute instances: what could not be checked is busy.
	Busy             bool
	ComputeInstances []NodeCompute // by id
}

// NodeCompute is a compute instance that stands.
type NodeCompute struct {
	ID   gpu.ComputeID
	UUID gpu.MIGUUID
	// Slices is its size in compute slices, Placement where they are in its GPU instance; absent where the driver tells not.
	Slices    int
	Placement gpu.Opt[gpu.Placement]
	// Busy says that it may not be destroyed; then neither may its GPU instance, but the other compute instances of it may.
	Busy bool
}

// StepOp is what one step does.
type StepOp string

// The steps. Each is one call to the driver.
const (
	DestroyCompute  StepOp = "destroy-ci"
	DestroyInstance StepOp = "destroy-gi"
	CreateInstance  StepOp = "create-gi"
	CreateCompute   StepOp = "create-ci"
)

// Step is one call that changes a GPU. Instances are named by where they stand: ids change with every creation.
type Step struct {
	Op  StepOp   `json:"op"`
	GPU gpu.UUID `json:"gpu"`
	// Profile and Placement are those of the GPU instance, in every step.
	ProfileID uint32        `json:"profileId"`
	Profile   string        `json:"profile"`
	Placement gpu.Placement `json:"placement"`
	// Compute is the compute instance's place in its GPU instance, in compute slices; absent in steps of GPU instances. Where
	// the driver does not tell the place of one that is to be destroyed, its start is -1.
	Compute gpu.Opt[gpu.Placement] `json:"compute,omitzero"`
	// UUID is the MIG device's, of a compute instance that is to be destroyed.
	UUID gpu.MIGUUID `json:"uuid,omitempty"`
	// Instance and ComputeID are the driver's ids of what is to be destroyed.
	Instance  gpu.Opt[gpu.InstanceID] `json:"instance,omitzero"`
	ComputeID gpu.Opt[gpu.ComputeID]  `json:"computeId,omitzero"`
}

// Done is what came of a step, read back from the driver.
type Done struct {
	Instance  gpu.InstanceID         `json:"instance"`
	ComputeID gpu.Opt[gpu.ComputeID] `json:"computeId,omitzero"`
	UUID      gpu.MIGUUID            `json:"uuid,omitempty"` // of a compute instance
}

// Outcome is what came of a step that was asked for.
type Outcome struct {
	Done Done
	// Instances are the GPU's instances as read after the step, by placement; Read reports whether they could be read.
	Instances []NodeInstance
	Read      bool
}

// ErrLayoutChanged says that a GPU has other instances than those expected, and that nothing was changed for that reason:
// another client is at work on it.
var ErrLayoutChanged = errors.New("the GPU has another layout than expected")

// ErrNotTried says that the driver was not asked for a change, because the GPU could not be read before.
var ErrNotTried = errors.New("nothing was changed, because the GPU could not be read before")

// ErrNotAsAsked says that the driver reported the success of a creation, and that what was to be created does not stand as it was
// asked for: the driver did something else, or another client has changed it since.
var ErrNotAsAsked = errors.New("the driver reported success, and what it created does not stand as asked for")

// SameInstances reports whether two lists have the same GPU instances and compute instances: ids, profile ids and placements.
// Both are by placement. MIG UUIDs are compared if both lists have them; Busy and the names of profiles are not compared.
func SameInstances(a, b []NodeInstance) bool {
	return slices.EqualFunc(a, b, func(x, y NodeInstance) bool {
		return x.ID == y.ID && x.ProfileID == y.ProfileID && x.Placement == y.Placement && slices.EqualFunc(x.ComputeInstances, y.ComputeInstances, sameCompute)
	})
}

func sameCompute(a, b NodeCompute) bool {
	return a.ID == b.ID && a.Slices == b.Slices && a.Placement == b.Placement && (a.UUID == b.UUID || a.UUID == "" || b.UUID == "")
}

// ModeChange is what the driver made of a MIG mode asked for. Activation is nil, or why the mode is pending: gpu.ErrInUse,
// gpu.ErrResetRequired, or another error.
type ModeChange struct {
	Current, Pending bool
	Activation       error
}

// Spec is what is wanted of a node: rules, or a demand, not both.
type Spec struct {
	Rules  []Rule
	Demand []Need
}

// Rule gives GPUs a layout: what else stands on them goes. Of several rules for one GPU the last counts.
type Rule struct {
	// GPUs name them by index, UUID or PCI bus id; "all" is every GPU that the filter lets through.
	GPUs []string
	// PCIDevices lets only GPUs of these PCI device ids through, with the vendor's below: 0x20B010DE; nil lets all.
	PCIDevices []uint32
	// Enabled is the MIG mode that the layout is for: with false it has no instances.
	Enabled bool
	Want    []Want
}

// Want is a number of GPU instances of one profile.
type Want struct {
	Profile string // by name or id
	Count   int
	// ComputeInstances are the sizes, in compute slices, of the compute instances of each of them; nil is one of all its slices, a
	// list that is empty none.
	ComputeInstances []int
}

// NodePlan leads from a node's instances to those that a spec asks for.
type NodePlan struct {
	// Steps are in the order in which they can be done: on each GPU what goes, then what comes.
	Steps []Step
	// GPUs are those that the spec names or that the plan touches, by index in the list planned for.
	GPUs []PlannedGPU
}

// PlannedGPU is what becomes of one GPU.
type PlannedGPU struct {
	GPU  int // index in the list planned for
	Keep []int
	// Destroy are the GPU instances that go as a whole; of one that is kept single compute instances may go or come.
	Destroy []int
	// After is the whole layout, by placement. Instances that are created have no ids.
	After []PlannedInstance
	// Left is the largest profile that could still be created afterwards; empty where nothing could.
	Left string
}

// PlannedInstance is a GPU instance of a layout to come.
type PlannedInstance struct {
	Placed
	Standing         gpu.Opt[int] // index of the one that it is already
	ComputeInstances []PlannedCompute
	// Need is the index of the need that it is created for, in a demand.
	Need gpu.Opt[int]
}

// PlannedCompute is a compute instance of a layout to come. The start of its placement is -1 where the driver does not tell
// where one that is kept stands.
type PlannedCompute struct {
	Placement gpu.Placement
	Standing  gpu.Opt[int] // index of the one that it is already
}
