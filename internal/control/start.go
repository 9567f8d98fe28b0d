package control

import (
	"context"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Start accepts a plan for execution, if its hash is the one given and still holds. When it
// returns, the operation is on disk.
func (e *Engine) Start(
	ctx context.Context,
	by Actor,
	r api.OperationRequest,
) (*api.Operation, error) {
	if p := e.mayApply(by); p != nil {
		return nil, p
	}

	n, p := e.plans.get(r.Plan)
	if p != nil {
		return nil, p
	}

	if r.Hash != n.plan.Hash {
		return nil, problemf(api.StalePlan, "the hash is not that of plan %s: plan again", r.Plan)
	}

	if p := by.may(len(n.plan.Forced) > 0, n.plan.TakeOver); p != nil {
		return nil, p
	}

	if p := e.reserve(ctx, nil, gpusOfSteps(n.plan.Steps)...); p != nil {
		return nil, p
	}

	defer e.releaseReservation()

	c, p := e.checkStillHolds(ctx, n)
	if p != nil {
		return nil, p
	}

	started := e.newRecord(ctx, api.VerbApply, by.Name, n.plan.Steps)
	started.Force = c.widenForce(n.plan.Forced)
	started.TakeOver = n.plan.TakeOver
	started.Operation.Plan = n.plan.ID
	started.Operation.StatedReason = by.Reason
	started.Operation.Warnings = slices.Clone(n.plan.Warnings)

	for _, l := range n.after {
		g, err := c.gpu(l.GPU)
		if err != nil {
			return nil, driverProblem(err)
		}

		started.addGPU(g, l.Instances)
	}

	started.setViews(c.marks)

	return e.acceptOperation(started, doSteps)
}

// newRecord returns the record of an operation of these steps.
func (e *Engine) newRecord(ctx context.Context, verb api.Verb, by string, steps []mig.Step) record {
	r := record{Operation: e.newHeader(verb, by), Boot: e.o.BootID, Driver: e.driverVersion(ctx)}
	r.Operation.Steps = pendingSteps(steps)

	return r
}

// addGPU adds a GPU that is to have the instances after.
func (r *record) addGPU(g mig.GPULayout, after []mig.Instance) {
	isOfGPU := func(s api.OperationStep) bool { return s.GPU == g.UUID }
	if !slices.ContainsFunc(r.Operation.Steps, isOfGPU) {
		r.Untouched = append(r.Untouched, layout{GPU: g.UUID, Instances: after})
		return
	}

	before := copyInstances(g.Instances)
	r.Changes = append(r.Changes, gpuChange{
		GPU: g.UUID, Before: before, After: after, Expected: copyInstances(before), facts: g,
	})
	r.Operation.GPUs = append(r.Operation.GPUs, api.OperationGPU{GPU: g.UUID, State: api.Pending})
}

// setViews binds an operation to the view of its GPUs.
func (r *record) setViews(marks map[gpu.UUID]mark) {
	for n := range r.Changes {
		c := &r.Changes[n]
		c.View = marks[c.GPU]
	}
}

// may returns a problem if the actor lacks the rights for a request that forces or takes over.
func (by Actor) may(force, takeOver bool) *api.Problem {
	switch {
	case force && !by.Rights.Force:
		return problemf(
			api.Forbidden,
			"%s may not force the destruction of busy instances",
			by.Name,
		)
	case takeOver && !by.Rights.TakeOver:
		return problemf(
			api.Forbidden,
			"%s may not take over GPUs from another owner (right take-over)",
			by.Name,
		)
	default:
		return nil
	}
}

func (e *Engine) mayApply(by Actor) *api.Problem {
	switch {
	case !by.Rights.Apply:
		return problemf(api.Forbidden, "%s may not change partitions", by.Name)
	case !e.o.Apply:
		return problemf(api.PlanOnly, "partitions are changed only with --control.mode=apply")
	default:
		return nil
	}
}

// checkStillHolds returns a problem if what a plan was made from has changed.
func (e *Engine) checkStillHolds(ctx context.Context, n *planned) (*usage, *api.Problem) {
	gpus := gpusOfPlan(n.plan)

	c, err := e.collectUsage(ctx, needsNoOther, gpus...)
	if err != nil {
		return nil, driverProblem(err)
	}

	c.marks = e.marks() // those before the reading would miss what came in between
	now := *n.plan

	var p *api.Problem
	if now.Owners, p = e.checkOwners(ctx, gpusOfSteps(now.Steps), now.TakeOver); p != nil {
		return nil, p
	}

	if facts := e.collectFacts(c, &now); hashFacts(facts) != n.plan.Hash {
		return nil, problemf(api.StalePlan, "plan again; %s", describeChanges(n.facts, facts))
	}

	return c, nil
}

func (e *Engine) newHeader(verb api.Verb, by string) api.Operation {
	return api.Operation{
		APIVersion: api.Version,
		ID:         newID(),
		Verb:       verb,
		By:         by,
		State:      api.Pending,
		Started:    e.o.Now(),
		Steps:      []api.OperationStep{},
	}
}

// acceptOperation saves an operation and hands it to Run. One without steps is over at once.
func (e *Engine) acceptOperation(r record, t task) (*api.Operation, error) {
	op, p := e.addOperation(r, t)
	if p != nil {
		return nil, p
	}

	if t == doSteps && len(r.Operation.Steps) == 0 {
		e.endOperation(context.Background(), op, api.Succeeded, nil)
		e.clearCurrent(context.Background(), op)
	} else {
		e.queue <- op
	}

	e.reportState()

	return e.Operation(op.id)
}

// addOperation saves an operation and makes it the current one. The room for all that it will save
// is reserved first.
func (e *Engine) addOperation(r record, t task) (*operation, *api.Problem) {
	if r.Driver == "" { // after a crash it could not be compared
		return nil, problemf(api.Unavailable, "the driver has not said its version yet; try again")
	}

	op := e.newOperation(r)
	op.change(func(o *entry) {
		o.task = t
		o.live = true
	})

	err := e.reserveRoom(op)
	if err == nil {
		err = e.saveOperation(op)
	}

	if err != nil {
		return nil, problemf(
			api.ReadOnly,
			"the operation could not be saved, and nothing was done: %s",
			e.Reason(),
		)
	}

	e.state.update(func(b *book) {
		b.current = op
		b.operations = append(b.operations, op)
		op.in(b).addEvent(api.Event{Kind: api.EventState, Text: string(api.Pending)})
	})

	return op, nil
}
