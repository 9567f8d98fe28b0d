package mig

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// PlanNode finds the steps after which a node is as a spec wants it. Of all ways it takes the one that destroys the fewest
// GPU instances, then the fewest compute instances, then the one that touches the fewest GPUs, then the one that leaves room
// for the largest profile, then the one whose new instances stand where the driver would place them (see preferred); what is
// busy stays where it is. The same node and spec have the same plan. A compute instance of a GPU instance that goes counts as
// destroyed.
//
// Errors are *SpecError, *SelectorError, *ModeError, *ProfileError and *InfeasibleError, and ctx's own, wrapped, if it ends
// before a long search does.
func PlanNode(ctx context.Context, gpus []NodeGPU, spec Spec) (NodePlan, error) {
	if len(spec.Rules) > 0 && len(spec.Demand) > 0 {
		return NodePlan{}, &SpecError{"rules and a demand: expected one of them"}
	}
	var plan NodePlan
	var err error
	w := &watch{gone: ctx.Done()}
	if len(spec.Demand) > 0 {
		plan.GPUs, err = planDemand(w, gpus, spec.Demand)
	} else {
		plan.GPUs, err = planRules(w, gpus, spec.Rules)
	}
	if w.stopped { // what was found is not the best
		return NodePlan{}, fmt.Errorf("plan: %w", ctx.Err())
	}
	if err != nil {
		return NodePlan{}, err
	}
	order := slices.Clone(plan.GPUs)
	slices.SortStableFunc(order, func(a, b PlannedGPU) int { return cmp.Compare(gpus[a.GPU].Index, gpus[b.GPU].Index) })
	for _, p := range order {
		plan.Steps = append(plan.Steps, steps(&gpus[p.GPU], p)...)
	}
	return plan, nil
}

// planRules plans each GPU by itself, for the last rule that selects it.
func planRules(w *watch, gpus []NodeGPU, rules []Rule) ([]PlannedGPU, error) {
	for i, r := range rules {
		if err := r.check(gpus); err != nil {
			return nil, fmt.Errorf("rule %d: %w", i, err)
		}
	}
	var list []PlannedGPU
	for i := range gpus {
		g := &gpus[i]
		rule := ruleFor(g, rules)
		if rule == nil {
			continue
		}
		if err := g.inModeFor(i, rule); err != nil {
			return nil, err
		}
		if !rule.Enabled {
			list = append(list, PlannedGPU{GPU: i})
			continue
		}
		p, err := planExact(w, g, i, rule.Want)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	if len(rules) > 0 && list == nil {
		return nil, &SelectorError{Has: listed(gpus)}
	}
	return list, nil
}

// check finds what is wrong with a rule on any GPU.
func (r *Rule) check(gpus []NodeGPU) error {
	for _, s := range r.GPUs {
		if s != AllGPUs && !slices.ContainsFunc(gpus, func(g NodeGPU) bool { return g.is(s) }) {
			return &SelectorError{Selector: s, Has: listed(gpus)}
		}
	}
	for _, w := range r.Want {
		if w.Count < 0 || w.Count > maxUnits {
			return &SpecError{fmt.Sprintf("%d of profile %q: expected 0 to %d", w.Count, w.Profile, maxUnits)}
		}
		if w.Count > 0 && !r.Enabled {
			return &SpecError{fmt.Sprintf("%d of profile %q where MIG is to be off: expected no instances", w.Count, w.Profile)}
		}
	}
	return nil
}

// inMIG reports whether a GPU has instances and goes on having them.
func (g *NodeGPU) inMIG() bool { return g.MIG.Or(false) && g.Pending.Or(true) }

// inModeFor reports whether the rule's layout is one for the GPU's mode.
func (g *NodeGPU) inModeFor(position int, r *Rule) error {
	current, pending := g.MIG.Or(false), g.Pending.Or(g.MIG.Or(false))
	if current == r.Enabled && pending == r.Enabled {
		return nil
	}
	return &ModeError{GPU: position, UUID: g.UUID, Index: g.Index, Current: g.MIG, Pending: g.Pending, Wanted: r.Enabled}
}

// planned says what becomes of a GPU whose layout is to be the given one.
func planned(g *NodeGPU, position int, after []PlannedInstance) PlannedGPU {
	p := PlannedGPU{GPU: position, After: after}
	slices.SortStableFunc(p.After, func(a, b PlannedInstance) int { return cmp.Compare(a.Placement.Start, b.Placement.Start) })
	stays := make([]bool, len(g.Instances))
	var all []Placed
	for _, a := range p.After {
		if i, ok := a.Standing.Get(); ok {
			stays[i] = true
		}
		all = append(all, a.Placed)
	}
	for i, stay := range stays {
		if stay {
			p.Keep = append(p.Keep, i)
		} else {
			p.Destroy = append(p.Destroy, i)
		}
	}
	p.Left, _ = newOccupancy(shapeOf(g.Profiles), g.Profiles, all).largest(cutsOf(g.Profiles))
	return p
}

// steps lead from what stands on a GPU to its layout to come: what goes first, compute instances before what they are in.
func steps(g *NodeGPU, p PlannedGPU) []Step {
	var destroyComputes, destroyInstances, createInstances, createComputes []Step
	for _, i := range p.Destroy {
		instance := &g.Instances[i]
		for k := range instance.ComputeInstances {
			destroyComputes = append(destroyComputes, g.destroyCompute(instance, k))
		}
		s := step(DestroyInstance, g.UUID, instance.Placed)
		s.Instance = gpu.Some(instance.ID)
		destroyInstances = append(destroyInstances, s)
	}
	for _, a := range p.After {
		var stays []int
		i, kept := a.Standing.Get()
		if !kept {
			createInstances = append(createInstances, step(CreateInstance, g.UUID, a.Placed))
		}
		for _, c := range a.ComputeInstances {
			if k, ok := c.Standing.Get(); ok {
				stays = append(stays, k)
				continue
			}
			s := step(CreateCompute, g.UUID, a.Placed)
			s.Compute = gpu.Some(c.Placement)
			createComputes = append(createComputes, s)
		}
		if kept {
			for k := range g.Instances[i].ComputeInstances {
				if !slices.Contains(stays, k) {
					destroyComputes = append(destroyComputes, g.destroyCompute(&g.Instances[i], k))
				}
			}
		}
	}
	return slices.Concat(destroyComputes, destroyInstances, createInstances, createComputes)
}

func step(op StepOp, id gpu.UUID, p Placed) Step {
	return Step{Op: op, GPU: id, ProfileID: p.ProfileID, Profile: p.Profile, Placement: p.Placement}
}

func (g *NodeGPU) destroyCompute(instance *NodeInstance, k int) Step {
	c := instance.ComputeInstances[k]
	s := step(DestroyCompute, g.UUID, instance.Placed)
	place, _ := computePlace(profileOf(g.Profiles, instance.Placed).ComputeSlices, c)
	s.Compute = gpu.Some(place)
	s.UUID, s.Instance, s.ComputeID = c.UUID, gpu.Some(instance.ID), gpu.Some(c.ID)
	return s
}
