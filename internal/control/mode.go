package control

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// modeWarning is what an operator must know before a MIG mode is asked for.
const modeWarning = "the driver itself may unbind or reset the device for this, and its minor number may change; the GPU is never reset by this program"

// SetMode asks for a MIG mode of a GPU without instances that nobody uses. It never resets the GPU: where the mode waits for
// that, the operation's result says so.
func (e *Engine) SetMode(ctx context.Context, by Actor, id gpu.UUID, r api.ModeRequest) (*api.Operation, error) {
	switch {
	case !by.Rights.Mode:
		return nil, problemf(api.Forbidden, "%s may not change MIG modes", by.Name)
	case r.TakeOver && !by.Rights.TakeOver:
		return nil, problemf(api.Forbidden, "%s may not take over GPUs from another owner (right take-over)", by.Name)
	case !e.o.Apply:
		return nil, problemf(api.PlanOnly, "MIG modes are changed only with --control.mode=apply")
	}
	if p := e.reserve(nil); p != nil {
		return nil, p
	}
	defer e.release()
	c, err := e.survey(ctx)
	if err != nil {
		return nil, driverProblem(err)
	}
	g, err := c.gpu(id)
	if err != nil {
		return nil, problemf(api.NotFound, "no GPU %s can be read on this node", id)
	}
	current, has := g.MIG.Get()
	if !has {
		return nil, problemf(api.ModeDiffers, "GPU %d (%s) has no MIG mode", g.Index, id)
	}
	b := begun{Operation: e.header(api.VerbMode, by.Name), Boot: e.o.BootID, Enabled: r.Enabled, TakeOver: r.TakeOver}
	b.Operation.Mode = &api.ModeResult{GPU: id, Current: current, Pending: g.Pending.Or(current), Holders: c.whole[id]}
	if current == r.Enabled && g.Pending.Or(current) == r.Enabled {
		return e.accept(b, doSteps)
	}
	if p := c.modeBlocked(g); p != nil {
		return nil, p
	}
	if _, p := e.owners(ctx, []gpu.UUID{id}, r.TakeOver); p != nil {
		return nil, p
	}
	b.Operation.Warnings = append(slices.Clone(c.warnings), modeWarning)
	return e.accept(b, doMode)
}

// modeBlocked says what stands in the way of another mode: instances, or whoever uses the GPU. Programs that watch over GPUs
// are no users; if the driver cannot do it with them, it says so, and they are named in the result.
func (c *census) modeBlocked(g mig.NodeGPU) *api.Problem {
	if len(g.Instances) > 0 {
		p := problemf(api.Busy, "GPU %d (%s) has %d GPU instances: apply a layout without instances first", g.Index, g.UUID, len(g.Instances))
		for _, i := range g.Instances {
			p.Blocking = append(p.Blocking, api.Blocker{GPU: g.UUID, Instance: instanceName(g, i), Profile: i.Profile, Placement: i.Placement,
				Holders: c.holders(g, i)})
		}
		return p
	}
	var users []api.Hold
	for _, h := range c.whole[g.UUID] {
		if h.Kind != api.HoldHandle || !watches(h.What) {
			users = append(users, h)
		}
	}
	if len(users) == 0 {
		return nil
	}
	p := problemf(api.Busy, "GPU %d (%s) is in use: %s", g.Index, g.UUID, holdsText(users))
	p.Blocking = []api.Blocker{{GPU: g.UUID, Instance: string(g.UUID), Holders: users}}
	return p
}

// mode executes a mode change, or finds out what became of one that was interrupted.
func (e *Engine) mode(ctx context.Context, op *operation) {
	if op.phase != api.Pending {
		e.modeRead(ctx, op)
		return
	}
	e.update(op, "state", "running", func(d *api.Operation) { d.State = api.Running })
	if err := e.append(op, entry{Kind: entryPhase, Phase: api.Running}); err != nil {
		e.end(op, api.Failed, failure(err))
		return
	}
	op.phase = api.Running
	id := op.begun.Operation.Mode.GPU
	err := e.modeFree(ctx, id)
	if err != nil {
		e.end(op, api.Failed, failure(err))
		return
	}
	change, err := e.modeCall(ctx, id, op.begun.Enabled)
	switch {
	case hung(err) && e.leave(ctx, op):
		return
	case hung(err):
		e.park(op, err)
		return
	case err != nil:
		e.end(op, api.Failed, failure(err))
		return
	}
	e.modeResult(ctx, op, change)
}

// modeFree checks again, right before the change, that nobody uses the GPU.
func (e *Engine) modeFree(ctx context.Context, id gpu.UUID) error {
	c, err := e.look(ctx, id)
	if err != nil {
		return err
	}
	g, err := c.gpu(id)
	if err != nil {
		return err
	}
	e.askLastPoll(ctx, c, g, false)
	if p := c.modeBlocked(g); p != nil {
		return p
	}
	return nil
}

// modeCall lets go of the GPU, asks for the mode and takes it up again.
func (e *Engine) modeCall(ctx context.Context, id gpu.UUID, on bool) (ModeChange, error) {
	if e.o.Profiling != nil {
		call, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
		resume, err := e.o.Profiling.Release(call)
		cancel()
		if resume != nil {
			defer resume()
		}
		if err != nil {
			return ModeChange{}, problemf(api.Busy, "profiling does not let go of the GPU: %s", reasonText(err))
		}
	}
	call, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()
	return e.o.Actuator.SetMIGMode(call, id, on)
}

// modeResult ends a mode change: what is pending has succeeded as far as it can.
func (e *Engine) modeResult(ctx context.Context, op *operation, change ModeChange) {
	wanted := op.begun.Enabled
	r := api.ModeResult{GPU: op.begun.Operation.Mode.GPU, Current: change.Current, Pending: change.Pending}
	if c, err := e.look(ctx, r.GPU); err == nil {
		r.Holders = c.whole[r.GPU]
	}
	if r.Current != wanted {
		r.Waits = waitsFor(change.Activation)
	}
	e.update(op, "note", fmt.Sprintf("MIG mode is %s, pending is %s", onOff(r.Current), onOff(r.Pending)), func(d *api.Operation) { d.Mode = &r })
	e.poll(ctx, op)
	if r.Current == wanted {
		e.hooks(ctx, op, api.Succeeded)
		if e.leave(ctx, op) {
			return
		}
	}
	if r.Current != wanted && r.Pending != wanted {
		p := problemf(api.DriverFailed, "the driver has not taken the mode")
		if change.Activation != nil {
			p.Detail += ": " + reasonText(change.Activation)
		}
		e.end(op, api.Failed, p)
		return
	}
	if r.Waits != "" {
		e.update(op, "note", "the mode is pending: "+r.Waits, nil)
	}
	e.end(op, api.Succeeded, nil)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

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

// modeRead ends a mode change of which it is not known what became.
func (e *Engine) modeRead(ctx context.Context, op *operation) {
	gpus, unreadable, err := e.read(ctx, op.begun.Operation.Mode.GPU)
	var g mig.NodeGPU
	if err == nil {
		g, err = findGPU(gpus, unreadable, op.begun.Operation.Mode.GPU)
	}
	switch {
	case err != nil && e.leave(ctx, op):
		return
	case err != nil:
		e.park(op, err)
		return
	}
	current := g.MIG.Or(false)
	e.modeResult(ctx, op, ModeChange{Current: current, Pending: g.Pending.Or(current)})
}
