package sim

import (
	"errors"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A fault with FaultSpec.On counts the calls of clients that change the partition, and acts when
// After of them have gone through. Some faults begin with the next such call and last, like a GPU
// that hangs in the middle of a layout change. Others affect single calls, Times of them. The counts
// are part of the state that nodes share.

// anyChange as FaultSpec.On stands for every kind of change.
const anyChange ChangeOp = "change"

// changedInstance names the instance that a change destroys, or the GPU instance in which it creates
// a compute instance.
type changedInstance struct {
	instance gpu.InstanceID
	compute  gpu.ComputeID
}

// beginsWithCall reports whether a call starts the fault, which then lasts.
func (f *FaultSpec) beginsWithCall() bool {
	return f.During != "" || f.On != "" && !f.affectsSingleCalls()
}

// affectsSingleCalls reports whether the fault affects single calls instead of a period.
func (f *FaultSpec) affectsSingleCalls() bool {
	switch f.Kind {
	case FaultChangeFails, FaultElsewhere, FaultProcessStarts:
		return true
	}

	return f.Kind == FaultDestroyLies && f.On != ""
}

// countChange counts a change that a client is about to make, for each fault that counts such
// changes. It returns the faults of single calls that affect this one.
func (n *Node) countChange(index int, kind ChangeOp, on changedInstance) (hits []*FaultSpec, err error) {
	counts := func(f *FaultSpec) bool { return f.On == anyChange || f.On == kind }
	if index < 0 || index >= len(n.gpus) ||
		!slices.ContainsFunc(n.scenario.Faults, func(f FaultSpec) bool { return counts(&f) }) {
		return nil, nil
	}

	now := n.lockAndCatchUp()
	defer n.mu.Unlock()

	for i := range n.scenario.Faults {
		f := &n.scenario.Faults[i]
		if !counts(f) || !f.active(index, now.Sub(n.start)) {
			continue
		}

		// The count itself is a change of the shared state.

		op, err := n.begin(n.gpus[index])
		if err != nil {
			return nil, err
		}

		err = op.commit(Change{Op: opCall, Fault: i, GI: on.instance, CI: on.compute})
		if err == nil && n.countChangeFor(i, index, on) {
			hits = append(hits, f)
		}

		op.commitOrUndo()

		if err != nil {
			return nil, err
		}
	}

	return hits, nil
}

// countChangeFor counts a change of the GPU at index for one fault, by its place in the scenario,
// and reports whether the fault affects this single call. It triggers a fault that begins with this
// call, and starts the process of FaultProcessStarts.
func (n *Node) countChangeFor(fault, index int, on changedInstance) bool {
	f := &n.scenario.Faults[fault]
	nth := n.calls[f] - f.After // 0 for the first change that the fault can affect

	n.calls[f]++

	if f.beginsWithCall() {
		if nth == 0 {
			n.triggerFault(f, index)
		}

		return false
	}

	if nth < 0 || nth >= f.Times {
		return false
	}

	if g := n.gpus[index]; f.Kind == FaultProcessStarts {
		if i, c := g.compute(on.instance, on.compute); c != nil {
			n.startTask(
				&process{pid: n.newPID("fault", fault, nth)},
				nil,
				[]simDevice{{gpu: g, instance: i, compute: c}},
			)
		}
	}

	return true
}

// isFaulted reports whether a fault of a kind affects the call that makes this operation.
func (op *operation) isFaulted(kind FaultKind) bool {
	return slices.ContainsFunc(op.hits, func(f *FaultSpec) bool { return f.Kind == kind })
}

// refusal returns the error with which a fault makes the call fail; nil if none does.
func (op *operation) refusal(kind ChangeOp) error {
	for _, f := range op.hits {
		if f.Kind == FaultChangeFails && !(kind == opMIGMode && isActivationError(f.Error)) {
			return f.Error
		}
	}

	return nil
}

// isActivationError reports whether err keeps a new MIG mode pending: the call that sets the mode
// itself succeeds.
func isActivationError(err error) bool {
	return errors.Is(err, gpu.ErrInUse) || errors.Is(err, gpu.ErrResetRequired)
}

// keepsModePending reports whether a fault keeps the MIG mode pending for the reason why:
// gpu.ErrInUse or gpu.ErrResetRequired.
func (op *operation) keepsModePending(why error) bool {
	return slices.ContainsFunc(op.hits, func(f *FaultSpec) bool {
		return f.Kind == FaultChangeFails && errors.Is(f.Error, why)
	})
}

// instanceStart returns where the driver creates a GPU instance that the client wants at start.
// With FaultElsewhere that is another free placement, if there is one.
func (op *operation) instanceStart(profileID uint32, start gpu.Opt[int]) gpu.Opt[int] {
	g := op.gpu

	k := slices.IndexFunc(g.mig.Profiles, func(f gpu.Profile) bool { return f.ID == profileID })
	if !op.isFaulted(FaultElsewhere) || k < 0 {
		return start
	}

	for _, p := range g.mig.Profiles[k].Placements {
		if gpu.Some(p.Start) != start && g.occupant(p) == nil {
			return gpu.Some(p.Start)
		}
	}

	return start
}

// computeStart is instanceStart for a compute instance of size slices in a GPU instance.
func (op *operation) computeStart(i *Instance, size int, start gpu.Opt[int]) gpu.Opt[int] {
	if !op.isFaulted(FaultElsewhere) {
		return start
	}

	for _, p := range ComputePlacements(i.Profile.ComputeSlices, size) {
		occupied := slices.ContainsFunc(i.ComputeInstances, func(c *Compute) bool {
			return c.Placement.Overlaps(p)
		})
		if gpu.Some(p.Start) != start && !occupied {
			return gpu.Some(p.Start)
		}
	}

	return start
}

// changeErrors returns the errors that a scenario can name for FaultChangeFails.
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
