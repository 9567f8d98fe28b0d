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

// PerformStep does one step, if the GPU has exactly the expected instances. It reads these
// immediately before the call that changes the GPU. If they differ, it changes nothing and returns
// mig.ErrLayoutChanged with the current instances; if they keep changing, Outcome.Read is false. If
// they cannot be read, the error is mig.ErrNotTried.
//
// After the call it reads the instances again, whether the call succeeded or not. They have the
// form that Layouts gives them, but no UUIDs of MIG devices, except that of a compute instance that
// the step created. If they cannot be read, Outcome.Read is false and the error says so, joined
// with that of the call.
//
// A step creates exactly what was asked for; if the driver reports success but has created
// something else, the error is mig.ErrNotAsAsked. If an instance is still there after its
// destruction, the error is gpu.ErrDriver. An instance that the step needs must be as the step
// describes it; otherwise nothing is changed and the error is gpu.ErrNotFound or gpu.ErrReplaced.
// Outcome.Done is what the driver says of a step that succeeded.
func (a *Actuator) PerformStep(
	ctx context.Context,
	s mig.Step,
	expected []mig.Instance,
) (mig.Outcome, error) {
	out, err := runQueued(ctx, a, queueKey{id: s.GPU, changes: true}, func() (mig.Outcome, error) {
		g, err := a.findGPU(s.GPU)
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

// perform does the step: see PerformStep.
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

	done, err := c.changeGPU(before)
	if c.ctx.Err() != nil {
		return mig.Outcome{}, errors.Join(err, abandonedError(c.ctx))
	}

	after := mig.AfterStep(c.expected, c.step, done)
	if err != nil {
		done = mig.Done{}
		after = c.expected
	}

	found, readErr := c.readExpected(c.gpu, after)
	if readErr != nil {
		readErr = fmt.Errorf("read the instances after the step: %w", readErr)
		return mig.Outcome{Done: done}, errors.Join(err, readErr)
	}

	out := mig.Outcome{Done: done, Instances: found.instances, Read: true}
	if err == nil && c.survived(done, out.Instances) {
		out.Done = mig.Done{}
		err = fmt.Errorf("%w: %w", gpu.ErrDriver, errStillThere)
	}

	if err == nil && c.step.Op == mig.CreateCompute {
		setUUID(out.Instances, done)
	}

	return out, err
}

// changeGPU makes the one call that changes the GPU, and the calls that it needs before and after.
func (c *stepCall) changeGPU(before view) (mig.Done, error) {
	if c.step.Op == mig.CreateInstance {
		return c.createInstance()
	}

	instance, err := c.findInstance(before.instances)
	if err != nil {
		return mig.Done{}, err
	}

	gi := before.handles[instance.ID].(MutableInstance) // all instances of a MutableDevice are

	switch c.step.Op {
	case mig.CreateCompute:
		return c.createCompute(before.tables, instance.ID, gi)
	case mig.DestroyInstance:
		return mig.Done{Instance: instance.ID}, c.callDriver("nvmlGpuInstanceDestroy", gi.Destroy)
	case mig.DestroyCompute:
		ci, err := c.findCompute(instance)
		if err != nil {
			return mig.Done{}, err
		}

		done := mig.Done{Instance: instance.ID, ComputeID: gpu.Some(ci.ID), UUID: c.step.UUID}

		return done, c.callDriver(
			"nvmlComputeInstanceDestroy",
			before.computeHandles[computeKey{instance.ID, ci.ID}].Destroy,
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

	return checkReturn(op, do())
}

// findInstance finds the step's GPU instance by its placement. The id and the profile must be the
// step's, too: after a change the driver reuses ids.
func (c *stepCall) findInstance(instances []mig.Instance) (*mig.Instance, error) {
	for i := range instances {
		gi := &instances[i]
		id := c.step.Instance.Or(gi.ID)

		switch {
		case gi.Placement == c.step.Placement && gi.ProfileID == c.step.ProfileID && gi.ID == id:
			return gi, nil
		case gi.Placement.Overlaps(c.step.Placement):
			return nil, fmt.Errorf(
				"GPU instance: %w: GPU instance %d of profile %s has its place",
				gpu.ErrReplaced,
				gi.ID,
				gi.Profile,
			)
		}
	}

	return nil, fmt.Errorf("GPU instance: %w", gpu.ErrNotFound)
}

// findCompute finds the step's compute instance in the same way. It compares the UUID, too, if both
// the step and the expected instances have one.
func (c *stepCall) findCompute(gi *mig.Instance) (mig.ComputeInstance, error) {
	wanted, ok := c.step.Compute.Get()
	if !ok {
		return mig.ComputeInstance{}, fmt.Errorf(
			"%w: the place of the compute instance is missing",
			gpu.ErrInvalidArgument,
		)
	}

	uuids := c.expectedUUIDs(gi.ID)
	for _, ci := range gi.ComputeInstances {
		placement := ci.Placement.Or(gpu.Placement{})
		uuid := uuids[ci.ID]

		switch {
		case !placement.Overlaps(wanted):
		case placement != wanted,
			ci.ID != c.step.ComputeID.Or(ci.ID),
			uuid != "" && c.step.UUID != "" && uuid != c.step.UUID:
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

// expectedUUIDs returns the UUIDs that a GPU instance's compute instances are expected to have, as
// far as they are known.
func (c *stepCall) expectedUUIDs(id gpu.InstanceID) map[gpu.ComputeID]gpu.MIGUUID {
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
func (c *stepCall) survived(done mig.Done, instances []mig.Instance) bool {
	at := slices.IndexFunc(instances, func(i mig.Instance) bool {
		return i.ID == done.Instance && i.Placement == c.step.Placement
	})
	if at < 0 {
		return false
	}

	if c.step.Op == mig.DestroyInstance {
		return true
	}

	return c.step.Op == mig.DestroyCompute &&
		slices.ContainsFunc(instances[at].ComputeInstances, func(ci mig.ComputeInstance) bool {
			return gpu.Some(ci.ID) == done.ComputeID && ci.Placement == c.step.Compute
		})
}

// setUUID gives the compute instance that was created its UUID.
func setUUID(instances []mig.Instance, done mig.Done) {
	for _, i := range instances {
		for k := range i.ComputeInstances {
			if i.ID == done.Instance && gpu.Some(i.ComputeInstances[k].ID) == done.ComputeID {
				i.ComputeInstances[k].UUID = done.UUID
			}
		}
	}
}
