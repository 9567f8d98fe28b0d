package nvmlsrc

import (
	"context"
	"errors"
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// PerformStep does one step if the GPU has exactly the instances expected, read immediately before the call that changes it.
// Otherwise it changes nothing and returns mig.ErrLayoutChanged. After the call it reads the instances again, whether the call
// succeeded or not. They have the form that Layouts gives them, without the UUIDs of MIG devices, except that of a compute
// instance that the step created. If they cannot be read afterwards, the error says so and Outcome.Read is false.
//
// A creation gives exactly what was asked for, or gpu.ErrInsufficientResources and nothing: what the driver created elsewhere
// is destroyed again. A destruction after which the instance is still there is gpu.ErrDriver. What the step is about must be
// among the instances as the step describes it; otherwise nothing is changed and the error is gpu.ErrNotFound or
// gpu.ErrReplaced. Outcome.Done is of a step that succeeded.
func (a *Actuator) PerformStep(ctx context.Context, s mig.Step, expected []mig.NodeInstance) (mig.Outcome, error) {
	out, err := run(ctx, a, laneKey{id: s.GPU, changes: true}, func() (mig.Outcome, error) {
		c := &changing{Actuator: a, ctx: ctx, step: s}
		return c.perform(expected)
	})
	if err != nil {
		err = fmt.Errorf("%s %s at %s of GPU %s: %w", s.Op, s.Profile, s.Placement, s.GPU, err)
	}
	return out, err
}

func (c *changing) perform(expected []mig.NodeInstance) (mig.Outcome, error) {
	before, err := c.layout(c.step.GPU)
	if err != nil {
		return mig.Outcome{}, err
	}
	if standing := before.nodeGPU().Instances; !mig.SameInstances(standing, expected) {
		return mig.Outcome{Instances: standing, Read: true}, mig.ErrLayoutChanged
	}
	done, err := c.do()
	if c.ctx.Err() != nil {
		return mig.Outcome{}, givenUp(c.ctx)
	}
	after, readErr := c.layout(c.step.GPU)
	if readErr != nil {
		return mig.Outcome{Done: done}, errors.Join(err, fmt.Errorf("read the instances after the step: %w", readErr))
	}
	return mig.Outcome{Done: done, Instances: after.nodeGPU().Instances, Read: true}, err
}

// do does the step.
func (c *changing) do() (mig.Done, error) {
	switch c.step.Op {
	case mig.CreateInstance:
		return c.createInstance()
	case mig.CreateCompute:
		return c.createCompute()
	case mig.DestroyInstance:
		return c.destroyInstance()
	case mig.DestroyCompute:
		return c.destroyCompute()
	}
	return mig.Done{}, fmt.Errorf("%w: no such step", gpu.ErrInvalidArgument)
}
