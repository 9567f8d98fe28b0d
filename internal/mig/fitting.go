package mig

import "slices"

// option is the best way for one GPU to take some further instances.
type option struct {
	cost
	fits []kindFitted // the new instances
	gone uint64       // the existing instances that it destroys, as bits: see destroys
}

// destroys reports whether the option destroys the existing instance with index i.
func (o *option) destroys(i int) bool { return o.gone>>i&1 == 1 }

// kindFitted is a new instance and the kind of need that it meets.
type kindFitted struct {
	fitted
	kind int // index in demand.kinds
}

// forItems returns the option for other items with the same number in each group: only the kinds
// differ. nil stays nil.
func (o *option) forItems(items []item) *option {
	if o == nil {
		return nil
	}

	same := *o
	same.fits = slices.Clone(o.fits)

	for i := range same.fits {
		same.fits[i].kind = items[same.fits[i].item].kind
	}

	return &same
}

// fitting is the search for room on one GPU for some further instances.
type fitting struct {
	check  *cancelCheck
	gpu    *GPULayout
	policy busyPolicy
	items  []item
	*room
	best       *option // so far
	bestWeight weight
}

// room is what all searches on one GPU have in common.
type room struct {
	own       []*searchProfile // profiles of the existing instances
	ranked    []*searchProfile // all profiles, the largest first
	start     occupancy        // with the instances that must stay
	obstacles []obstacle       // the instances that may be destroyed
}

// obstacle is an existing instance that may be destroyed.
type obstacle struct {
	set    uint64 // its units
	weight weight // of its destruction
}

// roomOf returns the room on a GPU. The policy decides which instances must stay.
func roomOf(g *GPULayout, p busyPolicy) room {
	r := room{own: g.profilesOfInstances(), ranked: rankedProfiles(g.Profiles),
		start: newOccupancy(shapeOf(g.Profiles), g.Profiles, nil)}
	for i := range g.Instances {
		instance := &g.Instances[i]
		if p == keepBusy && instance.inUse() {
			r.start = r.start.with(r.own[i], bitSet(instance.Placement))
			continue
		}

		r.obstacles = append(
			r.obstacles,
			obstacle{set: bitSet(instance.Placement), weight: g.costOf(i).weight()},
		)
	}

	return r
}

// withoutExisting returns copies of profiles without the placements where such an instance exists
// already: to destroy it and create it again would not add one.
func (r *room) withoutExisting(
	g *GPULayout,
	p busyPolicy,
	profiles []*searchProfile,
) []*searchProfile {
	existing := existingInstances(g, p)
	list := make([]*searchProfile, 0, len(profiles))

	for _, profile := range profiles {
		left := *profile
		left.Placements = nil
		left.sets = nil

		for k, at := range profile.Placements {
			exists := slices.ContainsFunc(existing, func(i int) bool {
				return g.Instances[i].Placement == at && r.own[i].same(profile)
			})
			if !exists {
				left.Placements = append(left.Placements, at)
				left.sets = append(left.sets, profile.sets[k])
			}
		}

		list = append(list, &left)
	}

	return list
}

// existingInstances returns the indices of the instances that must not be created again. Under
// replaceBusy a busy one may be: see there.
func existingInstances(g *GPULayout, p busyPolicy) []int {
	var list []int

	for i := range g.Instances {
		if p == keepBusy || !g.Instances[i].inUse() {
			list = append(list, i)
		}
	}

	return list
}

// findBest returns the best option for the items, nil if they don't fit.
func (f *fitting) findBest() *option {
	s := search{
		check:       f.check,
		items:       f.items,
		chosen:      make([]fitted, 0, len(f.items)),
		judgeLayout: f.judgeLayout,
		isHopeless:  f.isHopeless,
	}
	s.placeItems(f.start)

	return f.best
}

// isHopeless reports whether no layout with the instances in o can be better than the best so far:
// each destroys at least the existing instances that overlap them, and leaves no more room than o
// has.
func (f *fitting) isHopeless(o occupancy) bool {
	if f.best == nil {
		return false
	}

	if f.policy == ignoreBusy {
		return true // any layout will do
	}

	least := cost{touched: 1}.weight()

	for i := range f.obstacles {
		if obstacle := &f.obstacles[i]; obstacle.set&o.units != 0 {
			least = least.plus(obstacle.weight)
		}
	}

	// The room that is left counts last, and it takes longest to find out.
	if least.busyInstances != f.bestWeight.busyInstances {
		return least.busyInstances > f.bestWeight.busyInstances
	}

	if least.computeTouched != f.bestWeight.computeTouched {
		return least.computeTouched > f.bestWeight.computeTouched
	}

	_, rank := o.largest(f.ranked)

	return -rank >= int(f.bestWeight.left)
}

// judgeLayout destroys the existing instances that overlap the chosen ones, and tries which of the
// others can stay: they may need compute slices or engines that the chosen ones take.
func (f *fitting) judgeLayout(o occupancy, chosen []fitted) {
	start := cost{touched: min(len(chosen), 1)} // the GPU changes if anything is created
	var gone uint64
	var buffer [16]int // saves an allocation for most GPUs
	undecided := buffer[:0]

	for i := range f.gpu.Instances {
		switch instance := &f.gpu.Instances[i]; {
		case f.policy == keepBusy && instance.inUse(): // room.start has it already
		case bitSet(instance.Placement)&o.units != 0:
			gone |= 1 << i
			start = start.plus(f.gpu.costOf(i))
		default:
			undecided = append(undecided, i)
		}
	}

	f.tryKeeping(o, chosen, undecided, start, gone)
}

// costOf returns the cost of destroying an instance.
func (g *GPULayout) costOf(i int) cost {
	instance := &g.Instances[i]
	c := cost{instances: 1, computeInstances: len(instance.ComputeInstances)}

	if instance.inUse() {
		c.busy = 1
	}

	return c
}

// tryKeeping tries both to keep and to destroy each of the undecided instances, and stores the best
// option. gone are the instances that it has decided to destroy so far, and c is their cost.
func (f *fitting) tryKeeping(o occupancy, chosen []fitted, undecided []int, c cost, gone uint64) {
	if f.check.step() {
		return
	}

	if f.best != nil {
		bound := f.best.cost
		bound.left = 0 // c doesn't know yet what is left

		if c.compare(bound) > 0 {
			return
		}
	}

	if len(undecided) > 0 {
		i := undecided[0]
		rest := undecided[1:]

		// Without new instances the existing ones fit together, whatever the profiles say: they exist.
		if len(chosen) == 0 || o.leavesEnoughFor(f.own[i]) {
			f.tryKeeping(
				o.with(f.own[i], bitSet(f.gpu.Instances[i].Placement)),
				chosen,
				rest,
				c,
				gone,
			)
		}

		// For new instances it may have to go. Without them there is no reason to destroy it.
		if len(chosen) > 0 {
			f.tryKeeping(o, chosen, rest, c.plus(f.gpu.costOf(i)), gone|1<<i)
		}

		return
	}

	_, rank := o.largest(f.ranked)
	c.left = -rank

	if f.best == nil || c.compare(f.best.cost) < 0 {
		f.bestWeight = c.weight()
		f.best = &option{cost: c, gone: gone}

		for _, c := range chosen {
			f.best.fits = append(f.best.fits, kindFitted{fitted: c, kind: f.items[c.item].kind})
		}
	}
}
