package sim

import (
	"errors"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A fault with On counts the calls that would change the partition, and acts once After of them
// have succeeded. Some faults begin with that call and last, like a GPU that hangs in the middle of
// a layout change; others affect single calls, Times of them. The counts are part of the state that
// nodes share.

// anyChange is On for every kind of change.
const anyChange ChangeOp = "change"

// target is the instance that a change destroys or in which it creates another.
type target struct {
	instance gpu.InstanceID
	compute  gpu.ComputeID
}

// beginsWithCall reports whether a call starts the fault, which then lasts.
func (f *FaultSpec) beginsWithCall() bool { return f.During != "" || f.On != "" && !f.ofCall() }

// ofCall reports whether the fault affects single calls.
func (f *FaultSpec) ofCall() bool {
	switch f.Kind {
	case FaultChangeFails, FaultElsewhere, FaultProcessStarts:
		return true
	}

	return f.Kind == FaultDestroyLies && f.On != ""
}

// countCall counts a change that a client is about to make, and returns the faults of single calls
// that affect it.
func (n *Node) countCall(index int, what ChangeOp, of target) (hits []*FaultSpec, err error) {
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
		if err == nil && n.countCallOf(i, index, of) {
			hits = append(hits, f)
		}

		op.commitOrUndo()

		if err != nil {
			return nil, err
		}
	}

	return hits, nil
}

// countCallOf counts a change for one fault, and reports whether that affects this single call. It
// triggers a fault that begins with this call, and starts the process of FaultProcessStarts.
func (n *Node) countCallOf(number, index int, of target) bool {
	f := &n.scenario.Faults[number]
	nth := n.calls[f] - f.After

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

// isFaulted reports whether a fault of a kind affects this operation's call.
func (op *operation) isFaulted(kind FaultKind) bool {
	return slices.ContainsFunc(op.hits, func(f *FaultSpec) bool { return f.Kind == kind })
}

// refused returns the error with which a fault makes the call fail.
func (op *operation) refused(what ChangeOp) error {
	for _, f := range op.hits {
		if f.Kind == FaultChangeFails && !(what == opMIGMode && isActivationError(f.Error)) {
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

// keepsMode reports whether a fault keeps the MIG mode pending with the error why.
func (op *operation) keepsMode(why error) bool {
	return slices.ContainsFunc(op.hits, func(f *FaultSpec) bool {
		return f.Kind == FaultChangeFails && errors.Is(f.Error, why)
	})
}

// placeOfInstance returns where the driver creates a GPU instance that the client wants at start.
// With FaultElsewhere that is another free placement if there is one.
func (op *operation) placeOfInstance(profileID uint32, start gpu.Opt[int]) gpu.Opt[int] {
	g := op.gpu

	at := slices.IndexFunc(g.mig.Profiles, func(f gpu.Profile) bool { return f.ID == profileID })
	if !op.isFaulted(FaultElsewhere) || at < 0 {
		return start
	}

	for _, p := range g.mig.Profiles[at].Placements {
		if gpu.Some(p.Start) != start && g.occupant(p) == nil {
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
