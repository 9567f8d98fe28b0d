package control

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/spec"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Plan returns the cheapest plan for a spec. It changes nothing.
func (e *Engine) Plan(ctx context.Context, by Actor, r api.PlanRequest) (*api.Plan, error) {
	if !by.Rights.Plan {
		return nil, problemf(api.Forbidden, "%s may not plan", by.Name)
	}

	if p := by.checkRights(len(r.Force) > 0, r.TakeOver); p != nil {
		return nil, p
	}

	wanted, err := spec.Resolve(r.Spec, e.named.Load().rules)
	if err != nil {
		if own := (*api.Problem)(nil); errors.As(err, &own) {
			return nil, own
		}

		return nil, problemf(api.BadSpec, "%s", err)
	}

	// If the spec names GPUs, we first read only those. A problem may then be due to the others.
	only := e.listNamed(wanted)

	u, node, p := e.solve(ctx, wanted, r.Force, only)
	if p != nil && len(only) > 0 && mayBeElsewhere(p) {
		u, node, p = e.solve(ctx, wanted, r.Force, nil)
	}

	if p != nil {
		return nil, p
	}

	for _, id := range gpusOfSteps(node.Steps) {
		if p := e.checkBlocked(id); p != nil {
			u.warnings = append(u.warnings, "the plan cannot be applied now: "+p.Detail)
		}
	}

	owners, p := e.checkOwners(ctx, gpusOfSteps(node.Steps), r.TakeOver)
	if p != nil {
		return nil, p
	}

	made := e.buildPlan(u, node, r, owners)
	e.plans.add(by.Name, made)

	return made.plan, nil
}

// solve reads all GPUs, or those in only if there are any, and returns their usage and the cheapest
// plan for them.
func (e *Engine) solve(
	ctx context.Context,
	wanted mig.Spec,
	force []string,
	only []gpu.UUID,
) (*usage, mig.NodePlan,
	*api.Problem) {
	concerns := func(f gpu.Facts) bool { return mayConcern(wanted, f) }

	u, err := e.collectUsage(ctx, concerns, only...)
	if err != nil {
		return nil, mig.NodePlan{}, driverProblem(err)
	}

	if p := u.markBusy(force); p != nil {
		return nil, mig.NodePlan{}, p
	}

	node, err := mig.PlanNode(ctx, u.gpus, wanted)
	if err != nil {
		for id := range u.unreadable { // the spec may need one of these
			if p := e.checkBlocked(id); p != nil {
				return nil, mig.NodePlan{}, p
			}
		}

		return nil, mig.NodePlan{}, u.planProblem(err)
	}

	return u, node, nil
}

// mayBeElsewhere reports whether the cause of a problem may be that we did not read all GPUs: the
// spec may name a GPU, or force an instance on one, that we left out.
func mayBeElsewhere(p *api.Problem) bool {
	return p.Type == api.BadSpec || p.Type == api.Unavailable
}

// buildPlan makes the API's plan from the planner's result.
func (e *Engine) buildPlan(
	u *usage,
	node mig.NodePlan,
	r api.PlanRequest,
	owners []string,
) *planned {
	plan := &api.Plan{
		APIVersion: api.Version,
		ID:         newID(),
		Created:    e.o.Now(),
		Node:       e.o.Hostname,
		GPUs:       []api.PlanGPU{},
		Steps:      slices.Clone(node.Steps),
		Forced:     forcedBy(r.Force, node.Steps),
		Owners:     owners,
		TakeOver:   r.TakeOver,
		Warnings:   slices.Clone(u.warnings),
	}
	if plan.Steps == nil {
		plan.Steps = []mig.Step{}
	}

	destroyed := placesDestroyed(node.Steps)
	plan.Warnings = append(plan.Warnings, u.warnOfProcesses(plan.Forced)...)
	made := &planned{plan: plan}

	for _, pg := range node.GPUs {
		g := u.gpus[pg.GPU]
		plan.GPUs = append(
			plan.GPUs,
			api.PlanGPU{
				UUID:      g.UUID,
				Index:     g.Index,
				Name:      g.Name,
				AxisUnits: axisLength(g.Profiles),
				Before:    u.describeInstances(g, destroyed),
				After:     describeLayout(knownInstances(pg.After)),
				Left:      pg.Left,
			},
		)
		made.after = append(made.after, layout{GPU: g.UUID, Instances: withoutIDs(pg.After)})
	}

	made.facts = e.collectFacts(u, plan)
	plan.Hash = hashFacts(made.facts)

	return made
}

// axisLength returns the length of the placement axis in units: where the last placement ends.
func axisLength(profiles []gpu.Profile) int {
	units := 0

	for _, p := range profiles {
		for _, at := range p.Placements {
			units = max(units, at.End())
		}
	}

	return units
}

// gpusOfSteps returns the GPUs that steps change.
func gpusOfSteps(steps []mig.Step) []gpu.UUID {
	var list []gpu.UUID
	for _, s := range steps {
		if !slices.Contains(list, s.GPU) {
			list = append(list, s.GPU)
		}
	}

	return list
}

// gpusOfPlan returns the GPUs that a plan is about.
func gpusOfPlan(p *api.Plan) []gpu.UUID {
	var list []gpu.UUID
	for _, g := range p.GPUs {
		list = append(list, g.UUID)
	}

	return list
}

// checkOwners asks the cluster which other controllers manage the GPUs, and returns them. Unless
// takeOver is set, it returns a problem if there are any, or if the cluster does not answer.
func (e *Engine) checkOwners(
	ctx context.Context,
	gpus []gpu.UUID,
	takeOver bool,
) ([]string, *api.Problem) {
	if len(gpus) == 0 {
		return nil, nil
	}

	return e.askOwners(ctx).check(gpus, takeOver)
}

// ownership is the cluster's answer to which other controllers manage the partitions of the node's
// GPUs.
type ownership struct {
	owners map[gpu.UUID][]string // from Cluster.Owners
	err    error                 // why the cluster did not answer
}

// askOwners asks the cluster. Without a cluster there are no other controllers.
func (e *Engine) askOwners(ctx context.Context) ownership {
	if e.o.Cluster == nil {
		return ownership{}
	}

	ctx, cancel := context.WithTimeout(ctx, e.o.CallTimeout)
	defer cancel()

	owners, err := e.o.Cluster.Owners(ctx)

	return ownership{owners, err}
}

// check is checkOwners, but with an answer that the cluster has given before.
func (o ownership) check(gpus []gpu.UUID, takeOver bool) ([]string, *api.Problem) {
	if len(gpus) == 0 {
		return nil, nil
	}

	if o.err != nil && takeOver {
		return []string{"unknown: " + clusterText(o.err)}, nil
	}

	if o.err != nil {
		return nil, problemf(
			api.ForeignOwner,
			"cannot determine whether another controller manages this node: %s",
			clusterProblem(o.err),
		)
	}

	list := listOwners(o.owners, gpus)
	if len(list) > 0 && !takeOver {
		return nil, problemf(
			api.ForeignOwner,
			"%s; let it make the change, or say that you take over",
			strings.Join(list, ", "),
		)
	}

	return list, nil
}

// PlanByID returns a recent plan of this process.
func (e *Engine) PlanByID(id string) (*api.Plan, error) {
	stored, p := e.plans.get(id)
	if p != nil {
		return nil, p
	}

	return stored.plan, nil
}
