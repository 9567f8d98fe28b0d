package mig

import (
	"errors"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// GPULayout is a GPU and how it is partitioned now. Plans are made from it.
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

// Instance is a GPU instance in a layout: in the current one, as the driver reports it, or in a
// planned one.
type Instance struct {
	ID gpu.InstanceID // 0 if it does not exist yet
	Placed
	// Busy forbids plans to destroy the instance and its compute instances. It is also set if use
	// of the instance could not be checked.
	Busy bool
	// ComputeInstances are ordered by id in the current layout, by placement in a planned one.
	ComputeInstances []ComputeInstance
	// New is set if the plan creates the instance.
	New bool `json:"-"`
	// Need is the index, in Spec.Demand, of the need for which the plan creates the instance;
	// absent if the plan keeps it, or follows rules.
	Need gpu.Opt[int] `json:"-"`
}

// ComputeInstance is a compute instance of an Instance.
type ComputeInstance struct {
	ID   gpu.ComputeID // 0 if it does not exist yet
	UUID gpu.MIGUUID
	// Slices is its size in compute slices.
	Slices int
	// Placement is its place in the GPU instance, in compute slices; absent if the driver does not
	// report it.
	Placement gpu.Opt[gpu.Placement]
	// Busy forbids plans to destroy it, and so to destroy its GPU instance. They may still destroy
	// other compute instances of that GPU instance.
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
	// ProfileID, Profile and Placement name the GPU instance, in steps of compute instances, too.
	ProfileID uint32        `json:"profileId"`
	Profile   string        `json:"profile"`
	Placement gpu.Placement `json:"placement"`
	// Compute is the compute instance's place in its GPU instance, in compute slices; absent in
	// steps of GPU instances. If the driver does not report the place of a compute instance that we
	// destroy, its Start is -1.
	Compute gpu.Opt[gpu.Placement] `json:"compute,omitzero"`
	// UUID is the MIG UUID of the compute instance to destroy; empty in other steps.
	UUID gpu.MIGUUID `json:"uuid,omitempty"`
	// Instance and ComputeID are the driver's ids of the instance to destroy; absent in steps that
	// create one.
	Instance  gpu.Opt[gpu.InstanceID] `json:"instance,omitzero"`
	ComputeID gpu.Opt[gpu.ComputeID]  `json:"computeId,omitzero"`
}

// Done names the instance that a step created or destroyed, by the driver's ids. In a step of a
// compute instance, Instance is its GPU instance.
type Done struct {
	Instance  gpu.InstanceID         `json:"instance"`
	ComputeID gpu.Opt[gpu.ComputeID] `json:"computeId,omitzero"`
	UUID      gpu.MIGUUID            `json:"uuid,omitempty"` // of a compute instance
}

// Outcome is what the driver did when it was asked for a step.
type Outcome struct {
	Done Done
	// Instances are the GPU's instances as read after the step, by placement; Read reports whether
	// they could be read.
	Instances []Instance
	Read      bool
}

// ErrLayoutChanged says that we changed nothing, since the GPU has other instances than expected:
// another client has changed them.
var ErrLayoutChanged = errors.New("the GPU has another layout than expected")

// ErrNotTried says that the driver was not asked for a change, because the GPU could not be read
// before.
var ErrNotTried = errors.New("nothing was changed, because the GPU could not be read before")

// ErrNotAsAsked says that the driver reported that it created an instance, but that the GPU has no
// such instance at the requested placement: the driver did something else, or another client has
// changed the GPU since.
var ErrNotAsAsked = errors.New(
	"the driver reported success, and what it created is not as requested",
)

// LayoutWatcher receives what the driver reports of the GPUs' layouts. Its methods must return at
// once, and must not call back into the source of the reports.
type LayoutWatcher interface {
	// Watching is called with true when reports about a GPU's layout begin, and with false when
	// they end; then changes made shortly before may have gone unreported, too.
	Watching(id gpu.UUID, on bool)
	// LayoutChanged is called for each reported change of a GPU's layout. With an empty id, any GPU
	// may have changed.
	LayoutChanged(id gpu.UUID)
}

// SameInstances reports whether two lists have the same GPU instances and compute instances: ids,
// profile ids and placements. Both must be ordered by placement. MIG UUIDs are compared if both
// lists have them; Busy and the names of profiles are not compared.
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

// ModeChange is the driver's answer to a request to turn MIG on or off.
type ModeChange struct {
	Current, Pending bool // the modes now, and after the next reset
	// Activation says why the requested mode is only pending: gpu.ErrInUse, gpu.ErrResetRequired,
	// or another error. nil if it is current.
	Activation error
}

// Spec says which instances a node shall have: by rules or by a demand, not both.
type Spec struct {
	Rules  []Rule
	Demand []Need
}

// Rule gives GPUs exactly the wanted instances: a plan destroys all others on them. If several
// rules select a GPU, the last counts.
type Rule struct {
	// GPUs are indexes, UUIDs or PCI bus ids, or "all".
	GPUs []string
	// PCIDevices restricts the rule to GPUs with these ids, written as GPULayout.PCIDevice is. If
	// it is empty, the rule is for all models.
	PCIDevices []uint32
	// Enabled is the MIG mode that the GPUs must be in. With false, Want must be empty.
	Enabled bool
	Want    []Want
}

// Want is a number of GPU instances of one profile.
type Want struct {
	Profile string // by name or id
	Count   int
	// ComputeInstances are the sizes, in compute slices, of the compute instances in each of them.
	// nil asks for one with all slices, an empty list for none.
	ComputeInstances []int
}

// NodePlan leads from a node's instances to those that a spec asks for.
type NodePlan struct {
	// Steps go GPU by GPU; on each we first destroy, then create.
	Steps []Step
	// GPUs are the GPUs that a rule selects, or that a demand changes, in the order of PlanNode's
	// list.
	GPUs []PlannedGPU
}

// PlannedGPU is the planned layout of one GPU.
type PlannedGPU struct {
	GPU int // index in PlanNode's list
	// After are all its instances, by placement: those that the plan keeps, with their ids, and
	// those that it creates, which are New.
	After []Instance
	// Left is the largest profile that could still be created afterwards; empty if none could.
	Left string
}
