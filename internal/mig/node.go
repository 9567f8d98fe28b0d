package mig

import (
	"errors"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// GPULayout is a GPU as it is partitioned now: what a plan is made from.
type GPULayout struct {
	gpu.Facts
	// PCIDevice is the PCI device id with the vendor's below it, as the driver reports it:
	// 0x20B010DE. 0 is unknown.
	PCIDevice uint32
	// MIG is the current MIG mode, absent if the GPU has none; Pending is the mode after the next
	// reset or reboot.
	MIG, Pending gpu.Opt[bool]
	// Instances are its GPU instances by placement.
	Instances []Instance
}

// Instance is a GPU instance of a layout: of one that was read from the driver, or of one that a
// plan leads to.
type Instance struct {
	ID gpu.InstanceID // 0 if it does not exist yet
	Placed
	// Busy is set if neither it nor any of its compute instances may be destroyed. What could not
	// be checked is busy.
	Busy bool
	// ComputeInstances are ordered by id; those of a plan by placement.
	ComputeInstances []ComputeInstance
	// New is set in a plan if the plan creates the instance; Need is then the index of the need
	// that it is created for, in a demand.
	New  bool         `json:"-"`
	Need gpu.Opt[int] `json:"-"`
}

// ComputeInstance is a compute instance of an Instance.
type ComputeInstance struct {
	ID   gpu.ComputeID // 0 if it does not exist yet
	UUID gpu.MIGUUID
	// Slices is its size in compute slices, Placement its place in the GPU instance; absent if the
	// driver does not report it.
	Slices    int
	Placement gpu.Opt[gpu.Placement]
	// Busy is set if it may not be destroyed. Then neither may its GPU instance, but the other
	// compute instances of it may.
	Busy bool
	New  bool `json:"-"` // set in a plan if the plan creates it
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

// Step is one call that changes a GPU. Instances are named by their placements: ids change with
// every creation.
type Step struct {
	Op  StepOp   `json:"op"`
	GPU gpu.UUID `json:"gpu"`
	// Profile and Placement are those of the GPU instance, in every step.
	ProfileID uint32        `json:"profileId"`
	Profile   string        `json:"profile"`
	Placement gpu.Placement `json:"placement"`
	// Compute is the compute instance's place in its GPU instance, in compute slices; absent in
	// steps of GPU instances. The start of one that is to be destroyed is -1 if the driver does not
	// report its place.
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
	// Instances are the GPU's instances as read after the step, by placement; Read reports whether
	// they could be read.
	Instances []Instance
	Read      bool
}

// ErrLayoutChanged says that a GPU has other instances than those expected, and that nothing was
// changed for that reason: another client is at work on it.
var ErrLayoutChanged = errors.New("the GPU has another layout than expected")

// ErrNotTried says that the driver was not asked for a change, because the GPU could not be read
// before.
var ErrNotTried = errors.New("nothing was changed, because the GPU could not be read before")

// ErrNotAsAsked says that the driver reported the success of a creation, and that what was to be
// created does not have the placement that was asked for: the driver did something else, or another
// client has changed it since.
var ErrNotAsAsked = errors.New(
	"the driver reported success, and what it created is not as requested",
)

// LayoutWatcher receives what the driver reports of the GPUs' layouts. Its methods return at once,
// and call nothing of their caller.
type LayoutWatcher interface {
	// Watching says whether changes of a GPU's layout are reported from now on. When it turns
	// false, some that were made before may have been lost, too.
	Watching(id gpu.UUID, on bool)
	// LayoutChanged is called for each change reported of a GPU; of any GPU if id is empty.
	LayoutChanged(id gpu.UUID)
}

// SameInstances reports whether two lists have the same GPU instances and compute instances: ids,
// profile ids and placements. Both are by placement. MIG UUIDs are compared if both lists have
// them; Busy and the names of profiles are not compared.
func SameInstances(a, b []Instance) bool {
	return slices.EqualFunc(a, b, func(x, y Instance) bool {
		return x.ID == y.ID && x.ProfileID == y.ProfileID && x.Placement == y.Placement &&
			slices.EqualFunc(x.ComputeInstances, y.ComputeInstances, sameCompute)
	})
}

func sameCompute(a, b ComputeInstance) bool {
	return a.ID == b.ID && a.Slices == b.Slices && a.Placement == b.Placement &&
		(a.UUID == b.UUID || a.UUID == "" || b.UUID == "")
}

// ModeChange is what the driver made of a MIG mode asked for. Activation is nil, or why the mode is
// pending: gpu.ErrInUse, gpu.ErrResetRequired, or another error.
type ModeChange struct {
	Current, Pending bool
	Activation       error
}

// Spec is what is wanted of a node: rules, or a demand, not both.
type Spec struct {
	Rules  []Rule
	Demand []Need
}

// Rule gives GPUs a layout: what else exists on them goes. Of several rules for one GPU the last
// counts.
type Rule struct {
	// GPUs name them by index, UUID or PCI bus id; "all" is every GPU that the filter lets through.
	GPUs []string
	// PCIDevices lets only GPUs of these PCI device ids through, with the vendor's below:
	// 0x20B010DE; nil lets all.
	PCIDevices []uint32
	// Enabled is the MIG mode that the layout is for: with false it has no instances.
	Enabled bool
	Want    []Want
}

// Want is a number of GPU instances of one profile.
type Want struct {
	Profile string // by name or id
	Count   int
	// ComputeInstances are the sizes, in compute slices, of the compute instances of each of them;
	// nil is one of all its slices, a list that is empty none.
	ComputeInstances []int
}

// NodePlan leads from a node's instances to those that a spec asks for.
type NodePlan struct {
	// Steps are in the order in which they can be done: on each GPU what goes, then what comes.
	Steps []Step
	// GPUs are those that the spec names or that the plan touches, by index in the list planned
	// for.
	GPUs []PlannedGPU
}

// PlannedGPU is the planned layout of one GPU.
type PlannedGPU struct {
	GPU int // index in the list planned for
	// After are all its instances, by placement: those that stay with their ids, and those that are
	// New.
	After []Instance
	// Left is the largest profile that could still be created afterwards; empty if none could.
	Left string
}
