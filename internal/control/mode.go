package control

import (
	"context"
	"errors"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// modeWarning warns an operator before a MIG mode is set.
const modeWarning = "the driver itself may unbind or reset the device for this, and its minor " +
	"number may change; the GPU is never reset by this program"

// SetMode begins an operation that sets the MIG mode of an unused GPU without instances. It never
// resets the GPU. If the mode needs a reset to come into force, the operation's result says so.
func (e *Engine) SetMode(
	ctx context.Context,
	by Actor,
	id gpu.UUID,
	r api.ModeRequest,
) (*api.Operation, error) {
	if !by.Rights.Mode {
		return nil, problemf(api.Forbidden, "%s may not change MIG modes", by.Name)
	}

	if p := by.checkRights(false, r.TakeOver); p != nil {
		return nil, p
	}

	if !e.o.Apply {
		return nil, problemf(api.PlanOnly, "MIG modes are changed only with --control.mode=apply")
	}

	if p := e.reserve(ctx, nil, id); p != nil {
		return nil, p
	}

	defer e.releaseReservation()

	u, err := e.collectUsage(ctx, needsNoOther, id)
	if err != nil {
		return nil, driverProblem(err)
	}

	g, err := u.gpu(id)
	if err != nil {
		return nil, problemf(api.NotFound, "no GPU %s can be read on this node", id)
	}

	current, has := g.MIG.Get()
	if !has {
		return nil, problemf(api.ModeDiffers, "GPU %d (%s) has no MIG mode", g.Index, id)
	}

	accepted := e.newRecord(ctx, api.VerbMode, by.Name, nil)
	accepted.TakeOver = r.TakeOver
	accepted.Operation.Mode = &api.ModeResult{
		GPU:     id,
		Wanted:  r.Enabled,
		Current: current,
		Pending: g.Pending.Or(current),
		Holders: u.whole[id],
	}

	accepted.Operation.GPUs = []api.OperationGPU{{GPU: id, State: api.Pending}}

	// An operation without steps changes nothing and succeeds.
	if current == r.Enabled && g.Pending.Or(current) == r.Enabled {
		return e.acceptOperation(accepted, doSteps)
	}

	if p := u.checkModeChange(g); p != nil {
		return nil, p
	}

	if _, p := e.checkOwners(ctx, []gpu.UUID{id}, r.TakeOver); p != nil {
		return nil, p
	}

	accepted.Operation.Warnings = append(slices.Clone(u.warnings), modeWarning)

	return e.acceptOperation(accepted, doMode)
}

// checkModeChange returns a problem if the GPU has instances or users. Monitoring programs are no
// users: if the driver refuses because of them, the operation's result names them.
func (u *usage) checkModeChange(g mig.GPULayout) *api.Problem {
	if len(g.Instances) > 0 {
		p := problemf(
			api.Busy,
			"GPU %d (%s) has %d GPU instances: apply a layout without instances first",
			g.Index,
			g.UUID,
			len(g.Instances),
		)
		for _, i := range g.Instances {
			p.Blocking = append(p.Blocking, u.blocker(g, i))
		}

		return withHint(p)
	}

	var users []api.Hold

	for _, h := range u.whole[g.UUID] {
		if h.Kind != api.HoldHandle || !isMonitor(h.What) {
			users = append(users, h)
		}
	}

	if len(users) == 0 {
		return nil
	}

	p := problemf(api.Busy, "GPU %d (%s) is in use: %s", g.Index, g.UUID, holdsText(users))
	p.Blocking = []api.Blocker{{GPU: g.UUID, Instance: string(g.UUID), Holders: users}}

	return withHint(p)
}

// changeMode executes a mode change. If it is not the first try, the driver was asked before:
// changeMode then looks what came of that.
func (e *Engine) changeMode(ctx context.Context, op *operation) {
	o := op.copy()
	if o.Operation.State != api.Pending {
		e.endModeFromDriver(ctx, op, nil)
		return
	}

	id := o.Operation.Mode.GPU
	op.setState(api.Running, "running")
	op.setGPU(id, api.Running, nil, nil)

	err := e.saveOperation(op)
	if err == nil {
		err = e.markSlotsUsed()
	}

	if err == nil {
		err = e.cordonNode(ctx, op)
	}

	if err == nil {
		err = e.checkModeFree(ctx, id)
	}

	if err != nil {
		e.endOperation(ctx, op, api.Failed, failureProblem(err))
		return
	}

	e.views.begin(id)

	change, err := e.callSetMode(ctx, id, o.Operation.Mode.Wanted)
	switch {
	case isTimeout(err) && e.deferToRestart(ctx, op): // the call was cut short by shutdown
	case isTimeout(err):
		op.setGPU(id, api.Stuck, err, nil)
		e.markDegraded(op, err)
	case isBusy(err): // we did not call the driver
		e.endOperation(ctx, op, api.Failed, failureProblem(err))
	case err != nil: // the mode may have been set
		e.endModeFromDriver(ctx, op, err)
	default:
		e.endMode(ctx, op, change)
	}
}

// checkModeFree returns an error if the GPU is in use; we call it right before the change.
func (e *Engine) checkModeFree(ctx context.Context, id gpu.UUID) error {
	u, err := e.readUsage(ctx, id)
	if err != nil {
		return err
	}

	g, err := u.gpu(id)
	if err != nil {
		return err
	}

	e.pollAndAdd(ctx, u, g, pollCheck{unknown: true})

	if p := u.checkModeChange(g); p != nil {
		return p
	}

	return nil
}

// callSetMode stops profiling, which keeps the GPU open, sets the mode, and resumes profiling.
func (e *Engine) callSetMode(ctx context.Context, id gpu.UUID, on bool) (mig.ModeChange, error) {
	if e.o.Profiling != nil {
		callCtx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
		resume, err := e.o.Profiling.Release(callCtx)
		cancel()

		if resume != nil {
			defer resume()
		}

		if err != nil {
			return mig.ModeChange{}, problemf(
				api.Busy,
				"profiling has not released the GPU: %s",
				reasonText(err),
			)
		}
	}

	callCtx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()

	return e.o.Actuator.SetMIGMode(callCtx, id, on)
}

// endMode ends a mode change. A mode that is pending counts as a success.
func (e *Engine) endMode(ctx context.Context, op *operation, change mig.ModeChange) {
	asked := op.copy().Operation.Mode

	r := api.ModeResult{
		GPU:     asked.GPU,
		Wanted:  asked.Wanted,
		Current: change.Current,
		Pending: change.Pending,
	}
	if u, err := e.readUsage(ctx, r.GPU); err == nil {
		r.Holders = u.whole[r.GPU]
	}

	e.endChanges(op)

	if r.Current != r.Wanted {
		r.Waits = waitsFor(change.Activation)
	}

	op.change(func(o *entry) { o.Operation.Mode = &r })
	op.addNote("MIG mode is %s, pending is %s", mig.OnOff(r.Current), mig.OnOff(r.Pending))

	if r.Current == r.Wanted {
		// The hooks and the device plugin come next. We need not save this state yet: after a
		// crash, the next start reads the mode from the driver.
		op.setGPU(r.GPU, api.Settling, nil, nil)
		op.setState(api.Settling, "the mode is in force")

		return
	}

	e.pollLayout(ctx, op)

	if r.Current != r.Wanted && r.Pending != r.Wanted {
		p := problemf(api.DriverFailed, "the driver has not taken the mode")

		switch {
		case errors.Is(change.Activation, errInterrupted):
			p.Detail = errInterrupted.Error() + ", and the mode was not set"
		case change.Activation != nil:
			p.Detail += ": " + reasonText(change.Activation)
		}

		e.endOperation(ctx, op, api.Failed, p)

		return
	}

	if r.Waits != "" {
		op.addNote("the mode is pending: %s", r.Waits)
	}

	e.endOperation(ctx, op, api.Succeeded, nil)
}

// waitsFor returns what a pending mode waits for, as api.ModeResult.Waits has it.
func waitsFor(activation error) string {
	switch {
	case errors.Is(activation, gpu.ErrInUse):
		return "in use"
	case errors.Is(activation, gpu.ErrNotSupported):
		return "reboot" // the GPU cannot be reset here, such as in a virtual machine
	default:
		return "reset"
	}
}

// endModeFromDriver ends a mode change whose outcome is unknown: it asks the driver for the mode.
// failed is the error of the call, or nil.
func (e *Engine) endModeFromDriver(ctx context.Context, op *operation, failed error) {
	id := op.gpus[0]
	g, err := e.readGPU(ctx, id)

	switch {
	case err != nil && e.deferToRestart(ctx, op):
		return
	case err != nil:
		state := api.Degraded
		if isTimeout(err) {
			state = api.Stuck
		}

		op.setGPU(id, state, err, nil)
		e.markDegraded(op, err)

		return
	}

	current := g.MIG.Or(false)
	e.endMode(
		ctx,
		op,
		mig.ModeChange{Current: current, Pending: g.Pending.Or(current), Activation: failed},
	)
}
