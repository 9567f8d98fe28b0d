package mig

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// PlanNode finds the steps after which a node is as a spec wants it. It never destroys busy
// instances. Of all other ways it takes the one that destroys the fewest GPU instances, then the
// fewest compute instances (including those that go with their GPU instance), then the one that
// touches the fewest GPUs, then the one that leaves room for the largest profile, then the one whose
// new instances are where the driver would place them (see preferred). The same node and spec always
// give the same plan.
//
// Errors are *SpecError, *SelectorError, *ModeError, *ProfileError and *InfeasibleError, and ctx's
// own, wrapped, if it ends before a long search does.
func PlanNode(ctx context.Context, gpus []GPULayout, spec Spec) (NodePlan, error) {
	if len(spec.Rules) > 0 && len(spec.Demand) > 0 {
		return NodePlan{}, &SpecError{"rules and a demand: expected one of them"}
	}

	var plan NodePlan
	var err error

	check := &cancelCheck{done: ctx.Done()}
	if len(spec.Demand) > 0 {
		plan.GPUs, err = planDemand(check, gpus, spec.Demand)
	} else {
		plan.GPUs, err = planRules(check, gpus, spec.Rules)
	}

	// The best plan found before the search was stopped need not be the best there is.
	if check.stopped {
		return NodePlan{}, fmt.Errorf("plan: %w", ctx.Err())
	}

	if err != nil {
		return NodePlan{}, err
	}

	order := slices.Clone(plan.GPUs)
	slices.SortStableFunc(
		order,
		func(a, b PlannedGPU) int { return cmp.Compare(gpus[a.GPU].Index, gpus[b.GPU].Index) },
	)

	for _, p := range order {
		plan.Steps = append(plan.Steps, StepsTo(&gpus[p.GPU], p.After)...)
	}

	return plan, nil
}

// planRules plans each GPU by itself, for the last rule that selects it.
func planRules(check *cancelCheck, gpus []GPULayout, rules []Rule) ([]PlannedGPU, error) {
	for _, r := range rules {
		if err := r.check(gpus); err != nil {
			return nil, err
		}
	}

	if err := checkModes(gpus, rules); err != nil {
		return nil, err
	}

	var list []PlannedGPU

	for i := range gpus {
		g := &gpus[i]

		rule := ruleFor(g, rules)
		if rule == nil {
			continue
		}

		if !rule.Enabled {
			list = append(list, PlannedGPU{GPU: i})
			continue
		}

		p, err := planExact(check, g, i, rule.Want)
		if err != nil {
			return nil, err
		}

		list = append(list, p)
	}

	if len(rules) > 0 && list == nil {
		return nil, &SelectorError{Has: indexesOf(gpus)}
	}

	return list, nil
}

// check returns an error if a selector names no GPU, or if the rule could be met on no GPU.
func (r *Rule) check(gpus []GPULayout) error {
	for _, s := range r.GPUs {
		if s != AllGPUs &&
			!slices.ContainsFunc(gpus, func(g GPULayout) bool { return Names(s, &g.Facts) }) {
			return &SelectorError{Selector: s, Has: indexesOf(gpus)}
		}
	}

	for _, w := range r.Want {
		if w.Count < 0 || w.Count > maxUnits {
			return &SpecError{
				fmt.Sprintf("%d of profile %q: expected 0 to %d", w.Count, w.Profile, maxUnits),
			}
		}

		if w.Count > 0 && !r.Enabled {
			return &SpecError{
				fmt.Sprintf(
					"%d of profile %q while MIG is to be off: expected no instances",
					w.Count,
					w.Profile,
				),
			}
		}
	}

	return nil
}

// inMIG reports whether MIG is on, now and after the next reset.
func (g *GPULayout) inMIG() bool { return g.MIG.Or(false) && g.Pending.Or(true) }

// checkModes returns a *ModeError unless all GPUs are in the modes that their rules want, now and
// after a reset. The error is about the first GPU that is not, and lists those with the same modes.
func checkModes(gpus []GPULayout, rules []Rule) error {
	var first *ModeError

	for i := range gpus {
		g := &gpus[i]

		rule := ruleFor(g, rules)
		if rule == nil {
			continue
		}

		current := g.MIG.Or(false)
		if current == rule.Enabled && g.Pending.Or(current) == rule.Enabled {
			continue
		}

		switch {
		case first == nil:
			first = &ModeError{
				GPU:     i,
				Index:   g.Index,
				UUID:    g.UUID,
				Current: g.MIG,
				Pending: g.Pending,
				Wanted:  rule.Enabled,
				Indexes: []int{g.Index},
				All:     len(gpus),
			}
		case first.Current == g.MIG && first.Pending == g.Pending && first.Wanted == rule.Enabled:
			first.Indexes = append(first.Indexes, g.Index)
		}
	}

	if first == nil {
		return nil
	}

	return first
}

// planned returns the plan of a GPU that shall have the instances after, which may be in any order.
func planned(g *GPULayout, position int, after []Instance) PlannedGPU {
	slices.SortStableFunc(
		after,
		func(a, b Instance) int { return cmp.Compare(a.Placement.Start, b.Placement.Start) },
	)

	var all []Placed
	for _, a := range after {
		all = append(all, a.Placed)
	}

	o := newOccupancy(shapeOf(g.Profiles), g.Profiles, all)
	left, _ := o.largest(rankedProfiles(g.Profiles))

	return PlannedGPU{GPU: position, After: after, Left: left}
}
