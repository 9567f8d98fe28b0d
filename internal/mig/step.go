package mig

import (
	"cmp"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// ComputePlacements returns the placements of the compute instances of i, in their order. One that the driver does
// not report is taken to be the first free one, by id, which is where drivers create compute instances.
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

// FillComputePlacements gives each compute instance without a placement the one that ComputePlacements returns for it.
func (i *Instance) FillComputePlacements() {
	for n, at := range ComputePlacements(*i) {
		i.ComputeInstances[n].Placement = gpu.Some(at)
	}
}

// IndexIn returns the index of the step's GPU instance in a list, by profile and placement, or -1 if it is not there.
func (s Step) IndexIn(list []Instance) int {
	return slices.IndexFunc(list, func(i Instance) bool {
		return i.ProfileID == s.ProfileID && i.Placement == s.Placement
	})
}

// AfterStep returns the instances of a GPU as s leaves them if it does what it says and nothing else changes. The ids
// of what it creates are those of d. It does not modify before.
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
		computes := after[at].ComputeInstances
		after[at].ComputeInstances = nil

		for n, c := range computes {
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
		computes := append(slices.Clone(after[at].ComputeInstances), created)
		slices.SortFunc(computes, func(a, b ComputeInstance) int { return cmp.Compare(a.ID, b.ID) })
		after[at].ComputeInstances = computes
	}

	return after
}
