package nvmlsource

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// PerformStep does one step if the GPU has exactly the instances expected, read immediately before
// the call that changes it. Otherwise it changes nothing and returns mig.ErrLayoutChanged, with the
// current instances; Outcome.Read is false if that changes all the time. After the call it reads
// the instances again, whether the call succeeded or not. They have the form that Layouts gives
// them, without the UUIDs of MIG devices, except that of a compute instance that the step created.
// If they cannot be read afterwards, the error says so, joined with that of the call, and
// Outcome.Read is false; if they could not be read before, it is mig.ErrNotTried.
//
// A creation gives exactly what was asked for, or mig.ErrNotAsAsked if the driver reported success.
// A destruction after which the instance is still there is gpu.ErrDriver. What the step is about
// must be among the instances as the step describes it; otherwise nothing is changed and the error
// is gpu.ErrNotFound or gpu.ErrReplaced. Outcome.Done is what the driver says of a step that
// succeeded.
func (a *Actuator) PerformStep(
	ctx context.Context,
	s mig.Step,
	expected []mig.Instance,
) (mig.Outcome, error) {
	out, err := runQueued(ctx, a, queueKey{id: s.GPU, changes: true}, func() (mig.Outcome, error) {
		g, err := a.stateOf(s.GPU)
		if err != nil {
			return mig.Outcome{}, fmt.Errorf("%w: %w", mig.ErrNotTried, err)
		}

		d, ok := g.handle.(MutableDevice)
		if !ok {
			return mig.Outcome{}, fmt.Errorf("%w: %w", gpu.ErrNotSupported, errReadOnly)
		}

		return (&stepCall{Actuator: a, ctx: ctx, step: s, expected: expected, gpu: g, device: d}).perform()
	})
	if err != nil {
		err = fmt.Errorf("%s %s at %s of GPU %s: %w", s.Op, s.Profile, s.Placement, s.GPU, err)
	}

	return out, err
}

var errReadOnly = errors.New("this driver can only be read")

// stepCall is one step under way.
type stepCall struct {
	*Actuator
	ctx      context.Context
	step     mig.Step
	expected []mig.Instance
	gpu      *gpuState
	device   MutableDevice
}

func (c *stepCall) perform() (mig.Outcome, error) {
	before, err := c.readExpected(c.gpu, c.expected)
	if errors.Is(err, errUnsteady) {
		return mig.Outcome{}, fmt.Errorf("%w: %w", mig.ErrLayoutChanged, err)
	}

	if err != nil {
		return mig.Outcome{}, fmt.Errorf("%w: %w", mig.ErrNotTried, err)
	}

	if !mig.SameInstances(before.instances, c.expected) {
		return mig.Outcome{Instances: before.instances, Read: true}, mig.ErrLayoutChanged
	}

	done, err := c.performStep(before)
	if c.ctx.Err() != nil {
		return mig.Outcome{}, errors.Join(err, abandonedError(c.ctx))
	}

	after := mig.AfterStep(c.expected, c.step, done)
	if err != nil {
		done = mig.Done{}
		after = c.expected
	}

	now, readErr := c.readExpected(c.gpu, after)
	if readErr != nil {
		return mig.Outcome{
				Done: done,
			}, errors.Join(
				err,
				fmt.Errorf("read the instances after the step: %w", readErr),
			)
	}

	out := mig.Outcome{Done: done, Instances: now.instances, Read: true}
	if err == nil && c.survived(done, out.Instances) {
		out.Done = mig.Done{}
		err = fmt.Errorf("%w: %w", gpu.ErrDriver, errStillThere)
	}

	if err == nil && c.step.Op == mig.CreateCompute {
		setUUID(out.Instances, done)
	}

	return out, err
}

// performStep makes the one call that changes the GPU, with what it needs before and after.
func (c *stepCall) performStep(before view) (mig.Done, error) {
	if c.step.Op == mig.CreateInstance {
		return c.createInstance()
	}

	at, err := c.findInstance(before.instances)
	if err != nil {
		return mig.Done{}, err
	}

	gi := before.handles[at.ID].(MutableInstance) // of a MutableDevice

	switch c.step.Op {
	case mig.CreateCompute:
		return c.createCompute(before.tables, at.ID, gi)
	case mig.DestroyInstance:
		return mig.Done{Instance: at.ID}, c.callDriver("nvmlGpuInstanceDestroy", gi.Destroy)
	case mig.DestroyCompute:
		ci, err := c.findCompute(at)
		if err != nil {
			return mig.Done{}, err
		}

		done := mig.Done{Instance: at.ID, ComputeID: gpu.Some(ci.ID), UUID: c.step.UUID}

		return done, c.callDriver(
			"nvmlComputeInstanceDestroy",
			before.computes[computeKey{at.ID, ci.ID}].Destroy,
		)
	}

	return mig.Done{}, fmt.Errorf("%w: no such step", gpu.ErrInvalidArgument)
}

// callDriver makes a call that changes the GPU, unless its context has ended.
func (c *stepCall) callDriver(op string, do func() nvml.Return) error {
	if c.ctx.Err() != nil {
		return abandonedError(c.ctx)
	}

	defer c.markChanged(c.step.GPU)

	return c.source.checkReturn(op, do())
}

// findInstance finds the GPU instance that the step is about by its placement. It must be what the
// step says in every other respect, too: ids are given out again.
func (c *stepCall) findInstance(now []mig.Instance) (*mig.Instance, error) {
	for i := range now {
		at := &now[i]
		id := c.step.Instance.Or(at.ID)

		switch {
		case at.Placement == c.step.Placement && at.ProfileID == c.step.ProfileID && at.ID == id:
			return at, nil
		case at.Placement.Overlaps(c.step.Placement):
			return nil, fmt.Errorf(
				"GPU instance: %w: GPU instance %d of profile %s has its place",
				gpu.ErrReplaced,
				at.ID,
				at.Profile,
			)
		}
	}

	return nil, fmt.Errorf("GPU instance: %w", gpu.ErrNotFound)
}

// findCompute finds the compute instance that the step is about in the same way. Its UUID is that
// of the expected instances.
func (c *stepCall) findCompute(at *mig.Instance) (mig.ComputeInstance, error) {
	place, ok := c.step.Compute.Get()
	if !ok {
		return mig.ComputeInstance{}, fmt.Errorf(
			"%w: the place of the compute instance is missing",
			gpu.ErrInvalidArgument,
		)
	}

	uuid := c.expectedUUID(at.ID)
	for _, ci := range at.ComputeInstances {
		where := ci.Placement.Or(gpu.Placement{})
		known := uuid[ci.ID]

		switch {
		case !where.Overlaps(place):
		case where != place,
			ci.ID != c.step.ComputeID.Or(ci.ID),
			known != "" && c.step.UUID != "" && known != c.step.UUID:
			return mig.ComputeInstance{}, fmt.Errorf(
				"compute instance: %w: compute instance %d has its place",
				gpu.ErrReplaced,
				ci.ID,
			)
		default:
			return ci, nil
		}
	}

	return mig.ComputeInstance{}, fmt.Errorf("compute instance: %w", gpu.ErrNotFound)
}

// expectedUUID returns the UUIDs that a GPU instance's compute instances are expected to have, as
// far as they are known.
func (c *stepCall) expectedUUID(id gpu.InstanceID) map[gpu.ComputeID]gpu.MIGUUID {
	uuids := map[gpu.ComputeID]gpu.MIGUUID{}

	for _, i := range c.expected {
		for _, ci := range i.ComputeInstances {
			if i.ID == id {
				uuids[ci.ID] = ci.UUID
			}
		}
	}

	return uuids
}

var errStillThere = errors.New("the driver said that it was destroyed, but it is still there")

// survived reports whether what the step destroyed is among the instances.
func (c *stepCall) survived(done mig.Done, now []mig.Instance) bool {
	at := slices.IndexFunc(now, func(i mig.Instance) bool {
		return i.ID == done.Instance && i.Placement == c.step.Placement
	})
	if at < 0 || c.step.Op == mig.DestroyInstance {
		return at >= 0 && c.step.Op == mig.DestroyInstance
	}

	return c.step.Op == mig.DestroyCompute &&
		slices.ContainsFunc(now[at].ComputeInstances, func(ci mig.ComputeInstance) bool {
			return gpu.Some(ci.ID) == done.ComputeID && ci.Placement == c.step.Compute
		})
}

// setUUID gives the compute instance that was created its UUID.
func setUUID(now []mig.Instance, done mig.Done) {
	for _, i := range now {
		for k := range i.ComputeInstances {
			if i.ID == done.Instance && gpu.Some(i.ComputeInstances[k].ID) == done.ComputeID {
				i.ComputeInstances[k].UUID = done.UUID
			}
		}
	}
}
