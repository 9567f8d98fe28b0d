package mig

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// exact is the search for the best way to give one GPU exactly the wanted instances.
type exact struct {
	gpu    *GPULayout
	own    []*searchProfile // profiles of the existing instances
	ranked []*searchProfile // all profiles, the largest first
	wanted []wanted         // one entry for each instance, equal ones side by side

	// arrangements caches arrangementOf by the index of the existing instance and the group of the
	// wanted one.
	arrangements map[[2]int]*arrangement

	best     []fitted // the best layout so far; nil before the first, not nil for an empty one
	bestCost cost
}

// wanted is a GPU instance that the layout must have.
type wanted struct {
	group   int // the same for equal instances
	profile *searchProfile
	sizes   []int // of its compute instances in slices, descending
}

// planExact plans one GPU for a rule's wants. Of several equally good layouts it takes the one
// whose largest instance has the most preferred placement, then the next. position is the GPU's
// index in PlanNode's list, for errors and the plan.
func planExact(check *cancelCheck, g *GPULayout, position int, wants []Want) (PlannedGPU, error) {
	list, err := resolveWants(g, position, wants)
	if err != nil {
		return PlannedGPU{}, err
	}

	e := &exact{
		gpu:          g,
		own:          g.profilesOfInstances(),
		ranked:       rankedProfiles(g.Profiles),
		wanted:       list,
		arrangements: map[[2]int]*arrangement{},
	}
	s := search{check: check, items: itemsOf(list), judgeLayout: e.judgeLayout}
	s.placeItems(newOccupancy(shapeOf(g.Profiles), g.Profiles, nil))

	if e.best == nil {
		return PlannedGPU{}, &InfeasibleError{
			GPU: position,
			Reason: fmt.Sprintf("GPU %d: %s do not fit on an empty %s%s",
				g.Index, describe(wants), g.Name, whyNot(check, g, list)),
		}
	}

	if e.bestCost.busy > 0 {
		return PlannedGPU{}, e.newBlockedError(position, wants)
	}

	return planned(g, position, e.after()), nil
}

// itemsOf returns the items to search for.
func itemsOf(list []wanted) []item {
	var items []item
	for _, w := range list {
		items = append(items, item{group: w.group, fits: []*searchProfile{w.profile}})
	}

	return items
}

// resolveWants finds the wanted profiles, the largest first, each as often as it is wanted.
func resolveWants(g *GPULayout, position int, wants []Want) ([]wanted, error) {
	var list []wanted

	s := shapeOf(g.Profiles)
	for _, w := range wants {
		p, ok := findProfile(g.Profiles, w.Profile)
		if !ok {
			return nil, &ProfileError{
				GPU:     position,
				Index:   g.Index,
				Model:   g.Name,
				Profile: w.Profile,
				Offers:  listProfiles(g.Profiles),
			}
		}

		sizes, err := sizesOf(p, w.ComputeInstances)
		if err != nil {
			return nil, err
		}

		ready := newSearchProfile(p, s)
		for range w.Count {
			list = append(list, wanted{profile: ready, sizes: sizes})
		}
	}

	// The largest comes first. The other keys only put equal instances side by side, for groups.
	slices.SortStableFunc(list, func(a, b wanted) int {
		return cmp.Or(
			cmp.Compare(b.profile.MemorySlices, a.profile.MemorySlices),
			cmp.Compare(b.profile.ComputeSlices, a.profile.ComputeSlices),
			cmp.Compare(a.profile.ID, b.profile.ID),
			cmp.Compare(a.profile.Name, b.profile.Name),
			slices.Compare(b.sizes, a.sizes),
		)
	})

	for i := 1; i < len(list); i++ {
		previous := list[i-1]
		next := &list[i]

		next.group = previous.group
		if !previous.profile.same(next.profile) || !slices.Equal(previous.sizes, next.sizes) {
			next.group++
		}
	}

	return list, nil
}

// findProfile finds a profile by its name or, if no profile has that name, by its ID in decimal.
func findProfile(profiles []gpu.Profile, name string) (gpu.Profile, bool) {
	at := slices.IndexFunc(profiles, func(p gpu.Profile) bool { return p.Name == name })
	if at < 0 {
		at = slices.IndexFunc(profiles, func(p gpu.Profile) bool { return fmt.Sprint(p.ID) == name })
	}

	if at < 0 {
		return gpu.Profile{}, false
	}

	return profiles[at], true
}

// sizesOf returns the wanted sizes of compute instances, descending; nil asks for one with all
// slices. It returns an error if an instance of the profile can't have them.
func sizesOf(p gpu.Profile, computeInstances []int) ([]int, error) {
	if computeInstances == nil {
		return []int{p.ComputeSlices}, nil
	}

	possible := computeSizes(p.ComputeSlices)
	sum := 0

	for _, size := range computeInstances {
		if !slices.Contains(possible, size) {
			return nil, &SpecError{
				fmt.Sprintf("profile %s: a compute instance of %d slices: expected one of %s",
					p.Name, size, strings.Trim(fmt.Sprint(possible), "[]")),
			}
		}

		sum += size
	}

	if sum > p.ComputeSlices {
		return nil, &SpecError{
			fmt.Sprintf(
				"profile %s: compute instances of %d slices together: it has %d",
				p.Name,
				sum,
				p.ComputeSlices,
			),
		}
	}

	sizes := slices.Clone(computeInstances)
	slices.SortFunc(sizes, func(a, b int) int { return b - a })

	return sizes, nil
}

// listProfiles names profiles with their ids, as "1g.5gb (19)".
func listProfiles(profiles []gpu.Profile) []string {
	var names []string
	for _, p := range profiles {
		names = append(names, fmt.Sprintf("%s (%d)", p.Name, p.ID))
	}

	return names
}

// describe writes wants as "2 x 3g.20gb, 1 x 1g.5gb", each profile once.
func describe(wants []Want) string {
	var names []string

	counts := map[string]int{}
	for _, w := range wants {
		if w.Count > 0 && counts[w.Profile] == 0 {
			names = append(names, w.Profile)
		}

		counts[w.Profile] += w.Count
	}

	if names == nil {
		return "no instances"
	}

	var parts []string
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%d x %s", counts[name], name))
	}

	return strings.Join(parts, ", ")
}

// judgeLayout keeps a layout that is better than the best so far. Of equal layouts the first
// remains, whose placements are the most preferred. We count only what is destroyed: how much is
// created follows from that.
func (e *exact) judgeLayout(o occupancy, chosen []fitted) {
	var c cost
	for i := range e.gpu.Instances {
		c = c.plus(e.costOf(chosen, i))
	}

	// To find the largest profile that is left takes longest, so we first compare without it.
	bound := e.bestCost
	bound.left = 0

	if e.best != nil && c.compare(bound) > 0 {
		return
	}

	_, rank := o.largest(e.ranked)
	c.left = -rank

	if e.best == nil || c.compare(e.bestCost) < 0 {
		e.best = append([]fitted{}, chosen...)
		e.bestCost = c
	}
}

// costOf returns the cost of what a layout does to an existing instance.
func (e *exact) costOf(chosen []fitted, existing int) cost {
	if a := e.arrangementOf(chosen, existing); a != nil {
		return cost{busy: len(a.busy), computeInstances: len(a.destroyed)}
	}

	return e.gpu.costOf(existing)
}

// inUse reports whether the instance or one of its compute instances is busy: then we cannot
// destroy it.
func (i *Instance) inUse() bool {
	return i.Busy ||
		slices.ContainsFunc(i.ComputeInstances, func(c ComputeInstance) bool { return c.Busy })
}

// arrangementOf returns how a layout arranges the compute instances of an existing instance, or nil
// if the layout destroys that instance.
func (e *exact) arrangementOf(chosen []fitted, existing int) *arrangement {
	own := e.own[existing]
	at := e.gpu.Instances[existing].Placement

	// The layout keeps the instance if it has one of the same profile in the same place.
	k := slices.IndexFunc(chosen, func(f fitted) bool { return f.at == at && f.profile.same(own) })
	if k < 0 {
		return nil
	}

	w := e.wanted[chosen[k].item]
	key := [2]int{existing, w.group}

	cached, known := e.arrangements[key]
	if !known {
		if a, ok := arrange(own.ComputeSlices, w.sizes, &e.gpu.Instances[existing]); ok {
			cached = &a
		}

		e.arrangements[key] = cached // nil, too: then no arrangement is possible
	}

	return cached
}

// after returns the instances of the best layout: those that are kept, then the new ones.
func (e *exact) after() []Instance {
	var list []Instance

	kept := map[gpu.Placement]bool{}

	for i, instance := range e.gpu.Instances {
		if a := e.arrangementOf(e.best, i); a != nil {
			kept[instance.Placement] = true
			instance.ComputeInstances = a.computeInstances
			list = append(list, instance)
		}
	}

	for _, f := range e.best {
		if !kept[f.at] {
			// sizesOf has checked that the sizes fit an empty instance.
			a, _ := arrange(f.profile.ComputeSlices, e.wanted[f.item].sizes, nil)
			list = append(
				list,
				Instance{Placed: placedAt(f), ComputeInstances: a.computeInstances, New: true},
			)
		}
	}

	return list
}

func placedAt(f fitted) Placed {
	return Placed{ProfileID: f.profile.ID, Profile: f.profile.Name, Placement: f.at}
}

// newBlockedError returns an error that names the busy instances that the best layout destroys; no
// layout destroys fewer.
func (e *exact) newBlockedError(position int, wants []Want) error {
	problem := &InfeasibleError{GPU: position, FitsEmpty: true}

	for i := range e.gpu.Instances {
		a := e.arrangementOf(e.best, i)
		if a == nil && e.gpu.Instances[i].inUse() {
			problem.Blocking = append(problem.Blocking, Blocking{GPU: position, Instance: i})
		}

		if a != nil {
			for _, compute := range a.busy {
				problem.Blocking = append(
					problem.Blocking,
					Blocking{GPU: position, Instance: i, Compute: gpu.Some(compute)},
				)
			}
		}
	}

	problem.Reason = fmt.Sprintf(
		"GPU %d: %s fit only without %s, busy",
		e.gpu.Index,
		describe(wants),
		e.gpu.listNames(problem.Blocking),
	)

	return problem
}

// listNames names instances as "3g.20gb@4:4, compute instance 1 of 2g.10gb@2:2".
func (g *GPULayout) listNames(blocking []Blocking) string {
	var parts []string

	for _, b := range blocking {
		instance := g.Instances[b.Instance]
		name := fmt.Sprintf("%s@%s", instance.Profile, instance.Placement)

		if i, ok := b.Compute.Get(); ok {
			name = fmt.Sprintf("compute instance %d of %s", instance.ComputeInstances[i].ID, name)
		}

		parts = append(parts, name)
	}

	return strings.Join(parts, ", ")
}
