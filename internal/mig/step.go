package mig

import (
	"cmp"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// ComputePlacements returns the placement of each compute instance of i. If the driver does not
// report one, we take the first free one, since that is where drivers create compute instances.
func ComputePlacements(i Instance) []gpu.Placement {
	placements := make([]gpu.Placement, len(i.ComputeInstances))
	var taken []gpu.Placement

	for n, c := range i.ComputeInstances {
		if at, ok := c.Placement.Get(); ok {
			placements[n] = at
			taken = append(taken, at)
		}
	}

	for n, c := range i.ComputeInstances {
		if c.Placement.Present() {
			continue
		}

		at := gpu.Placement{Size: max(c.Slices, 1)}
		for slices.ContainsFunc(taken, at.Overlaps) {
			at.Start++
		}

		placements[n] = at
		taken = append(taken, at)
	}

	return placements
}

// FillComputePlacements gives each compute instance without a placement the one that
// ComputePlacements returns for it.
func (i *Instance) FillComputePlacements() {
	for n, at := range ComputePlacements(*i) {
		i.ComputeInstances[n].Placement = gpu.Some(at)
	}
}

// IndexIn returns the index of the step's GPU instance in a list, by profile and placement, or -1
// if it is not there.
func (s Step) IndexIn(list []Instance) int {
	return slices.IndexFunc(list, func(i Instance) bool {
		return i.ProfileID == s.ProfileID && i.Placement == s.Placement
	})
}

// Destroys reports whether the step destroys an instance, rather than creating one.
func (s Step) Destroys() bool { return s.Op == DestroyCompute || s.Op == DestroyInstance }

// StepsTo returns the steps that give a GPU the instances wanted, in the order in which they can be
// done: destroy compute instances, destroy GPU instances, create GPU instances, create compute
// instances. A wanted instance that is not New exists already if one has its profile and placement,
// whatever the ids. Compute instances without a reported placement are compared by their ids.
func StepsTo(g *GPULayout, wanted []Instance) []Step {
	var destroyComputeInstances, destroyInstances, createInstances, createComputeInstances []Step

	for _, i := range g.Instances {
		w := i.findIn(wanted)

		for _, c := range i.ComputeInstances {
			if w == nil || !slices.ContainsFunc(w.ComputeInstances, c.isSame) {
				destroyComputeInstances = append(destroyComputeInstances, g.destroyCompute(&i, c))
			}
		}

		if w == nil {
			s := newStep(DestroyInstance, g.UUID, i.Placed)
			s.Instance = gpu.Some(i.ID)
			destroyInstances = append(destroyInstances, s)
		}
	}

	for _, w := range wanted {
		i := w.findIn(g.Instances)
		if i == nil {
			createInstances = append(createInstances, newStep(CreateInstance, g.UUID, w.Placed))
		}

		for _, c := range w.ComputeInstances {
			if i == nil || !slices.ContainsFunc(i.ComputeInstances, c.isSame) {
				s := newStep(CreateCompute, g.UUID, w.Placed)
				s.Compute = c.Placement
				createComputeInstances = append(createComputeInstances, s)
			}
		}
	}

	return slices.Concat(destroyComputeInstances, destroyInstances, createInstances, createComputeInstances)
}

// findIn returns the instance of a list with the same profile and placement, nil if there is none.
// A New instance is never the same as an existing one: a plan may replace an instance by an equal
// one.
func (i *Instance) findIn(list []Instance) *Instance {
	at := slices.IndexFunc(list, func(o Instance) bool {
		return o.ProfileID == i.ProfileID && o.Placement == i.Placement && o.New == i.New
	})
	if at < 0 {
		return nil
	}

	return &list[at]
}

// isSame compares compute instances of one GPU instance; see findIn about New.
func (c ComputeInstance) isSame(o ComputeInstance) bool {
	if c.Placement.Present() && o.Placement.Present() {
		return c.Placement == o.Placement && c.New == o.New
	}

	return c.ID == o.ID && c.New == o.New
}

func newStep(op StepOp, id gpu.UUID, p Placed) Step {
	return Step{Op: op, GPU: id, ProfileID: p.ProfileID, Profile: p.Profile, Placement: p.Placement}
}

func (g *GPULayout) destroyCompute(instance *Instance, c ComputeInstance) Step {
	s := newStep(DestroyCompute, g.UUID, instance.Placed)
	place := computePlace(profileOf(g.Profiles, instance.Placed).ComputeSlices, c)
	s.Compute = gpu.Some(place.Or(gpu.Placement{Start: unknownStart, Size: c.Slices}))
	s.UUID = c.UUID
	s.Instance = gpu.Some(instance.ID)
	s.ComputeID = gpu.Some(c.ID)

	return s
}

// Verify returns the instances of a GPU after a step, given those read before and after it. It
// reports false if the step does not lead from one to the other, or if anything else has changed. A
// MIG UUID that one of the readings lacks is taken from the other.
func (s Step) Verify(before, read []Instance) ([]Instance, bool) {
	from := s.IndexIn(before)
	if s.Op == DestroyInstance && from >= 0 && len(before[from].ComputeInstances) > 0 {
		return nil, false // its compute instances had to go first
	}

	after := AfterStep(before, s, s.doneIn(read))
	hadEffect := !SameInstances(after, before)

	if !hadEffect || !SameInstances(after, read) {
		return nil, false
	}

	for n := range after {
		computeInstances := slices.Clone(after[n].ComputeInstances)
		for k := range computeInstances {
			computeInstances[k].UUID = cmp.Or(read[n].ComputeInstances[k].UUID, computeInstances[k].UUID)
		}

		after[n].ComputeInstances = computeInstances
	}

	return after, true
}

// doneIn returns the ids that a list has for what the step creates.
func (s Step) doneIn(list []Instance) Done {
	at := s.IndexIn(list)
	if at < 0 {
		return Done{}
	}

	d := Done{Instance: list[at].ID}

	for _, c := range list[at].ComputeInstances {
		if c.Placement == s.Compute {
			d.ComputeID = gpu.Some(c.ID)
			d.UUID = c.UUID
		}
	}

	return d
}

// AfterStep returns the instances of a GPU after s if nothing else changes. A created instance gets
// its ids from d. AfterStep does not modify before.
func AfterStep(before []Instance, s Step, d Done) []Instance {
	after := slices.Clone(before)
	at := s.IndexIn(after)

	if s.Op == CreateInstance {
		after = append(
			after,
			Instance{
				ID:     d.Instance,
				Placed: Placed{ProfileID: s.ProfileID, Profile: s.Profile, Placement: s.Placement},
			},
		)
		slices.SortStableFunc(
			after,
			func(a, b Instance) int { return cmp.Compare(a.Placement.Start, b.Placement.Start) },
		)

		return after
	}

	if at < 0 {
		return after
	}

	place := s.Compute.Or(gpu.Placement{})
	switch s.Op {
	case DestroyInstance:
		after = slices.Delete(after, at, at+1)
	case DestroyCompute:
		placements := ComputePlacements(after[at])
		computeInstances := after[at].ComputeInstances
		after[at].ComputeInstances = nil

		for n, c := range computeInstances {
			if placements[n] != place {
				after[at].ComputeInstances = append(after[at].ComputeInstances, c)
			}
		}
	case CreateCompute:
		created := ComputeInstance{
			ID:        d.ComputeID.Or(0),
			UUID:      d.UUID,
			Slices:    place.Size,
			Placement: s.Compute,
		}
		computeInstances := append(slices.Clone(after[at].ComputeInstances), created)
		slices.SortFunc(computeInstances, func(a, b ComputeInstance) int {
			return cmp.Compare(a.ID, b.ID)
		})
		after[at].ComputeInstances = computeInstances
	}

	return after
}
