package control

import (
	"context"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Start accepts a plan for execution if the request has the plan's hash, and nothing that the plan
// was made from has changed. When it returns, the operation is on disk.
func (e *Engine) Start(
	ctx context.Context,
	by Actor,
	r api.OperationRequest,
) (*api.Operation, error) {
	if p := e.checkMayApply(by); p != nil {
		return nil, p
	}

	stored, p := e.plans.get(r.Plan)
	if p != nil {
		return nil, p
	}

	plan := stored.plan
	if r.Hash != plan.Hash {
		return nil, problemf(api.StalePlan, "the hash is not that of plan %s: plan again", r.Plan)
	}

	if p := by.checkRights(len(plan.Forced) > 0, plan.TakeOver); p != nil {
		return nil, p
	}

	if p := e.reserve(ctx, nil, gpusOfSteps(plan.Steps)...); p != nil {
		return nil, p
	}

	defer e.releaseReservation()

	u, p := e.checkStillHolds(ctx, stored)
	if p != nil {
		return nil, p
	}

	accepted := e.newRecord(ctx, api.VerbApply, by.Name, plan.Steps)
	accepted.Force = u.widenForce(plan.Forced)
	accepted.TakeOver = plan.TakeOver
	accepted.Operation.Plan = plan.ID
	accepted.Operation.StatedReason = by.Reason
	accepted.Operation.Warnings = slices.Clone(plan.Warnings)

	for _, l := range stored.after {
		g, err := u.gpu(l.GPU)
		if err != nil {
			return nil, driverProblem(err)
		}

		accepted.addGPU(g, l.Instances)
	}

	accepted.setViews(u.marks)

	return e.acceptOperation(accepted, doSteps)
}

// newRecord returns the record of an operation with these steps.
func (e *Engine) newRecord(ctx context.Context, verb api.Verb, by string, steps []mig.Step) record {
	r := record{Operation: e.newHeader(verb, by), Boot: e.o.BootID, Driver: e.driverVersion(ctx)}
	r.Operation.Steps = pendingSteps(steps)

	return r
}

// addGPU adds a GPU, which shall have the instances after. g is the GPU as it is now.
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

// setViews records up to which changes of its GPUs the operation has seen them, see mark.
func (r *record) setViews(marks map[gpu.UUID]mark) {
	for n := range r.Changes {
		c := &r.Changes[n]
		c.View = marks[c.GPU]
	}
}

// checkRights returns a problem if the actor lacks the rights for a request that forces or takes
// over.
func (by Actor) checkRights(force, takeOver bool) *api.Problem {
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

// checkMayApply returns a problem if the actor or this program may not change partitions.
func (e *Engine) checkMayApply(by Actor) *api.Problem {
	switch {
	case !by.Rights.Apply:
		return problemf(api.Forbidden, "%s may not change partitions", by.Name)
	case !e.o.Apply:
		return problemf(api.PlanOnly, "partitions are changed only with --control.mode=apply")
	default:
		return nil
	}
}

// checkStillHolds collects the facts that a plan was made from once more, and returns a problem if
// they have changed.
func (e *Engine) checkStillHolds(ctx context.Context, stored *planned) (*usage, *api.Problem) {
	gpus := gpusOfPlan(stored.plan)

	u, err := e.collectUsage(ctx, needsNoOther, gpus...)
	if err != nil {
		return nil, driverProblem(err)
	}

	// collectUsage takes the marks before it reads the GPUs: they would not show a change that was
	// made while it read.
	u.marks = e.marks()
	now := *stored.plan

	var p *api.Problem
	if now.Owners, p = e.checkOwners(ctx, gpusOfSteps(now.Steps), now.TakeOver); p != nil {
		return nil, p
	}

	if facts := e.collectFacts(u, &now); hashFacts(facts) != stored.plan.Hash {
		return nil, problemf(api.StalePlan, "plan again; %s", describeChanges(stored.facts, facts))
	}

	return u, nil
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

// addOperation saves an operation and makes it the current one. First it reserves disk space for all
// that the operation will save.
func (e *Engine) addOperation(r record, t task) (*operation, *api.Problem) {
	// After a crash, the next start compares the version: see resumeRefusal.
	if r.Driver == "" {
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
