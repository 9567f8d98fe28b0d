package sim

import (
	"errors"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Faults that are about changes of the partition: a fault with On counts the calls that would make one, and strikes
// when After have gone well. Some begin with that call and last (a GPU that hangs in the middle of a layout change);
// the others are about single calls, Times of them. The counts are part of the state that nodes share.

// anyChange is On for every kind of change.
const anyChange ChangeOp = "change"

// target is what a change is made to.
type target struct {
	instance gpu.InstanceID
	compute  gpu.ComputeID
}

// beginsWithCall reports whether the fault lasts from a call on.
func (f *FaultSpec) beginsWithCall() bool { return f.During != "" || f.On != "" && !f.ofCall() }

// ofCall reports whether the fault is about single calls.
func (f *FaultSpec) ofCall() bool {
	switch f.Kind {
	case FaultChangeFails, FaultElsewhere, FaultProcessStarts:
		return true
	}

	return f.Kind == FaultDestroyLies && f.On != ""
}

// called counts a change that a client is about to make, and returns the faults that are about it.
func (n *Node) called(index int, what ChangeOp, of target) (hits []*FaultSpec, err error) {
	counted := func(f *FaultSpec) bool { return f.On == anyChange || f.On == what }
	if index < 0 || index >= len(n.gpus) ||
		!slices.ContainsFunc(n.scenario.Faults, func(f FaultSpec) bool { return counted(&f) }) {
		return nil, nil
	}

	now := n.lock()
	defer n.mu.Unlock()

	for i := range n.scenario.Faults {
		f := &n.scenario.Faults[i]
		if !counted(f) || !f.active(index, now.Sub(n.start)) {
			continue
		}

		op, err := n.begin(n.gpus[index])
		if err != nil {
			return nil, err
		}

		err = op.commit(Change{Op: opCall, Fault: i, GI: of.instance, CI: of.compute})
		if err == nil && n.tookCall(i, index, of) {
			hits = append(hits, f)
		}

		op.commitOrUndo()

		if err != nil {
			return nil, err
		}
	}

	return hits, nil
}

// tookCall counts a change for a fault, and reports whether it is one that the fault strikes.
func (n *Node) tookCall(number, index int, of target) bool {
	f := &n.scenario.Faults[number]
	nth := n.calls[f] - f.After

	n.calls[f]++
	switch {
	case f.beginsWithCall():
		if nth == 0 {
			n.triggerFault(f, index)
		}

		return false
	case nth < 0 || nth >= f.Times:
		return false
	}

	if g := n.gpus[index]; f.Kind == FaultProcessStarts {
		if i, c := g.compute(of.instance, of.compute); c != nil {
			n.startTask(
				&process{pid: n.newPID("fault", number, nth)},
				nil,
				[]place{{gpu: g, instance: i, compute: c}},
			)
		}
	}

	return true
}

// isFaulted reports whether a fault of a kind is about the call of this operation.
func (op *operation) isFaulted(kind FaultKind) bool {
	return slices.ContainsFunc(op.hits, func(f *FaultSpec) bool { return f.Kind == kind })
}

// refused is the error that a fault gives to this call.
func (op *operation) refused(what ChangeOp) error {
	for _, f := range op.hits {
		if f.Kind == FaultChangeFails && !(what == opMIGMode && keepsMode(f.Error)) {
			return f.Error
		}
	}

	return nil
}

// keepsMode reports whether an error is one of the activation of a MIG mode: the call itself succeeds.
func keepsMode(err error) bool {
	return errors.Is(err, gpu.ErrInUse) || errors.Is(err, gpu.ErrResetRequired)
}

// keepsMode reports whether a fault keeps a MIG mode pending for this reason.
func (op *operation) keepsMode(why error) bool {
	return slices.ContainsFunc(op.hits, func(f *FaultSpec) bool {
		return f.Kind == FaultChangeFails && errors.Is(f.Error, why)
	})
}

// placeOfInstance is where a GPU instance is made that is to be made at start: where a fault wants it and there is
// room, elsewhere.
func (op *operation) placeOfInstance(profileID uint32, start gpu.Opt[int]) gpu.Opt[int] {
	b := op.gpu

	at := slices.IndexFunc(b.mig.Profiles, func(f gpu.Profile) bool { return f.ID == profileID })
	if !op.isFaulted(FaultElsewhere) || at < 0 {
		return start
	}

	for _, p := range b.mig.Profiles[at].Placements {
		if gpu.Some(p.Start) != start && b.occupant(p) == nil {
			return gpu.Some(p.Start)
		}
	}

	return start
}

// placeOfCompute is placeOfInstance for a compute instance.
func (op *operation) placeOfCompute(i *Instance, size int, start gpu.Opt[int]) gpu.Opt[int] {
	if !op.isFaulted(FaultElsewhere) {
		return start
	}

	for _, p := range ComputePlacements(i.Profile.ComputeSlices, size) {
		taken := slices.ContainsFunc(i.ComputeInstances, func(c *Compute) bool {
			return c.Placement.Overlaps(p)
		})
		if gpu.Some(p.Start) != start && !taken {
			return gpu.Some(p.Start)
		}
	}

	return start
}

// changeErrors are the errors that a change can be made to fail with.
func changeErrors() map[string]error {
	return map[string]error{
		"in-use":                 gpu.ErrInUse,
		"insufficient-resources": gpu.ErrInsufficientResources,
		"no-permission":          gpu.ErrNoPermission,
		"not-found":              gpu.ErrNotFound,
		"not-supported":          gpu.ErrNotSupported,
		"invalid-argument":       gpu.ErrInvalidArgument,
		"reset-required":         gpu.ErrResetRequired,
		"timeout":                gpu.ErrTimeout,
		"unknown":                gpu.ErrDriver,
	}
}
