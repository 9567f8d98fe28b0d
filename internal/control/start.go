package control

import (
	"context"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Start accepts a plan for execution, if its hash is the one given and still holds. When it returns, the operation is in
// the journal.
func (e *Engine) Start(ctx context.Context, by Actor, r api.OperationRequest) (*api.Operation, error) {
	if p := e.mayApply(by); p != nil {
		return nil, p
	}
	n, p := e.plans.get(r.Plan)
	switch {
	case p != nil:
		return nil, p
	case r.Hash != n.plan.Hash:
		return nil, problemf(api.StalePlan, "the hash is not that of plan %s: plan again", r.Plan)
	case len(n.plan.Forced) > 0 && !by.Rights.Force:
		return nil, problemf(api.Forbidden, "%s may not force the destruction of busy instances", by.Name)
	}
	if p := e.reserve(nil); p != nil {
		return nil, p
	}
	defer e.release()
	c, p := e.still(ctx, n)
	if p != nil {
		return nil, p
	}
	b := begun{Operation: e.header(api.VerbApply, by.Name), Boot: e.o.BootID, Before: n.before, After: n.after,
		Force: c.widen(n.plan.Forced), TakeOver: n.plan.TakeOver}
	b.Operation.Plan = n.plan.ID
	b.Operation.Steps = pendingSteps(n.plan.Steps)
	b.Operation.Warnings = slices.Clone(n.plan.Warnings)
	return e.accept(b, doSteps)
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

// still finds out whether what a plan was made from is still so.
func (e *Engine) still(ctx context.Context, n *planned) (*census, *api.Problem) {
	c, err := e.survey(ctx)
	if err != nil {
		return nil, driverProblem(err)
	}
	now := *n.plan
	var p *api.Problem
	if now.Owners, p = e.owners(ctx, touched(now.Steps), now.TakeOver); p != nil {
		return nil, p
	}
	if facts := e.facts(c, &now); hash(facts) != n.plan.Hash {
		return nil, problemf(api.StalePlan, "plan again; %s", changed(n.facts, facts))
	}
	return c, nil
}

func (e *Engine) header(verb api.Verb, by string) api.Operation {
	return api.Operation{APIVersion: api.Version, ID: newID(), Verb: verb, By: by, State: api.Pending, Started: e.o.Now(), Steps: []api.OperationStep{}}
}

// accept journals an operation and hands it to Run. One without steps is over at once.
func (e *Engine) accept(b begun, t task) (*api.Operation, error) {
	op, p := e.enter(b, t)
	if p != nil {
		return nil, p
	}
	if t == doSteps && len(op.doc.Steps) == 0 {
		e.end(op, api.Succeeded, nil)
		e.rest(op)
	} else {
		e.queue <- op
	}
	e.announce()
	return e.Operation(op.doc.ID)
}

// enter journals an operation and makes it the current one.
func (e *Engine) enter(b begun, t task) (*operation, *api.Problem) {
	op := newOperation(b)
	op.task, op.live = t, true
	err := e.record(op, entry{Kind: entryBegin, Begin: &b}, func() {
		e.current = op
		e.operations = append(e.operations, op)
		e.tell(op, "state", gpu.None[int](), "accepted")
	})
	if err != nil {
		return nil, problemf(api.ReadOnly, "the operation could not be journaled, and nothing was done")
	}
	return op, nil
}

// Rollback leads back to the layout before an operation that has succeeded, as an operation of its own; or tries again to
// roll back one that is degraded or stuck.
func (e *Engine) Rollback(ctx context.Context, by Actor, id string) (*api.Operation, error) {
	if p := e.mayApply(by); p != nil {
		return nil, p
	}
	e.mu.Lock()
	op, p := e.find(id)
	var state api.OperationState
	if p == nil {
		state = op.doc.State
	}
	e.mu.Unlock()
	if p != nil {
		return nil, p
	}
	switch {
	case state == api.Degraded || state == api.Stuck:
		return e.retry(ctx, op)
	case !over(state):
		p := problemf(api.InProgress, "operation %s is %s", id, state)
		p.Operation = id
		return nil, p
	case state != api.Succeeded:
		return nil, problemf(api.BadSpec, "operation %s is %s: there is nothing to roll back", id, state)
	case op.begun.Operation.Verb == api.VerbMode:
		return nil, problemf(api.BadSpec, "a MIG mode is not rolled back: ask for the other mode")
	}
	if p := e.reserve(nil); p != nil {
		return nil, p
	}
	defer e.release()
	b, p := e.backTo(ctx, op)
	if p != nil {
		return nil, p
	}
	b.Operation.By = by.Name
	return e.accept(*b, doSteps)
}

// backTo makes the operation that leads to the layout before another one. It destroys what is idle, and nothing that came
// to stand after that one.
func (e *Engine) backTo(ctx context.Context, op *operation) (*begun, *api.Problem) {
	c, err := e.survey(ctx)
	if err != nil {
		return nil, driverProblem(err)
	}
	own := places(op.begun.After)
	b := &begun{Operation: e.header(api.VerbRollback, ""), Boot: e.o.BootID, TakeOver: op.begun.TakeOver}
	var steps []mig.Step
	var blocking []api.Blocker
	for _, l := range op.begun.Before {
		at := slices.IndexFunc(c.gpus, func(g mig.NodeGPU) bool { return g.UUID == l.GPU })
		if at < 0 {
			return nil, problemf(api.Unavailable, "%s cannot be read", l.GPU)
		}
		g := c.gpus[at]
		list := cut{live: g, want: l}.steps()
		if len(list) > 0 && !g.MIG.Or(false) {
			return nil, problemf(api.ModeDiffers, "GPU %d (%s) has no MIG mode on any more", g.Index, g.UUID)
		}
		for _, s := range list {
			if creates(s) {
				continue
			}
			if !own[placeOf(s)] {
				return nil, problemf(api.StalePlan, "%s came to stand after operation %s: plan the layout that you want", stepPlace(s), op.doc.ID)
			}
			blocking = append(blocking, c.blocked(g, s)...)
		}
		b.Before, b.After = append(b.Before, layoutOf(g)), append(b.After, l)
		steps = append(steps, list...)
	}
	if len(blocking) > 0 {
		p := problemf(api.Busy, "%d of the instances that would go are in use", len(blocking))
		p.Blocking = blocking
		return nil, p
	}
	if _, p := e.owners(ctx, touched(steps), b.TakeOver); p != nil {
		return nil, p
	}
	b.Operation.Steps = pendingSteps(steps)
	return b, nil
}

// blocked says who holds what a step would destroy.
func (c *census) blocked(g mig.NodeGPU, s mig.Step) []api.Blocker {
	at := slices.IndexFunc(g.Instances, func(i mig.NodeInstance) bool { return i.Placement == s.Placement && i.ProfileID == s.ProfileID })
	if at < 0 {
		return nil
	}
	i := g.Instances[at]
	holds := c.busy(g, i, s, nil)
	if len(holds) == 0 {
		return nil
	}
	name := string(s.UUID)
	if name == "" {
		name = instanceName(g, i)
	}
	return []api.Blocker{{GPU: g.UUID, Instance: name, Profile: i.Profile, Placement: i.Placement, Holders: holds}}
}

func creates(s mig.Step) bool { return s.Op == mig.CreateInstance || s.Op == mig.CreateCompute }

func stepPlace(s mig.Step) string {
	if s.UUID != "" {
		return string(s.UUID)
	}
	return s.Profile + " at " + s.Placement.String() + " of " + string(s.GPU)
}
