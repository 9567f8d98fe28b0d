package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// hasMediaExtensions reports whether a profile is a +me profile, of which a GPU can have one
// instance.
func hasMediaExtensions(f gpu.Profile) bool { return strings.Contains(f.Name, "+me") }

// computeSizes lists how many slices compute instances of a GPU instance can have.
func computeSizes(slices int) []int {
	var sizes []int

	for _, n := range []int{1, 2, 3, 4, 7} {
		if n <= slices {
			sizes = append(sizes, n)
		}
	}

	return sizes
}

// preferred orders a profile's placements as the driver tries them if the caller names none. Seen
// on A100 and H100, whose axis has 8 units: 1g at 6, 4, 5, 0, 1, 2, 3, 2g at 4, 0, 2 and 3g at 4
// before 0. Others in the order of their starts.
func preferred(f gpu.Profile, axis int) []gpu.Placement {
	order := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}

	switch {
	case axis == 8 && f.MemorySlices == 1:
		order = []int{6, 4, 5, 0, 1, 2, 3}
	case axis == 8 && f.ComputeSlices == 2:
		order = []int{4, 0, 2}
	case axis == 8 && f.ComputeSlices == 3:
		order = []int{4, 0}
	}

	placements := slices.Clone(f.Placements)
	slices.SortStableFunc(placements, func(a, b gpu.Placement) int {
		return slices.Index(order, a.Start) - slices.Index(order, b.Start)
	})

	return placements
}

// occupant returns an instance that occupies a unit of the placement, or nil.
func (g *simGPU) occupant(p gpu.Placement) *Instance {
	for _, i := range g.instances {
		for unit := p.Start; unit < p.End(); unit++ {
			if i.Placement.Start <= unit && unit < i.Placement.End() {
				return i
			}
		}
	}

	return nil
}

// excess returns what the GPU would have too much of with an instance of the profile, wherever it
// is placed: compute slices, engines, or media extensions. It is empty if the GPU has what the
// instance needs.
func (g *simGPU) excess(f gpu.Profile) string {
	slicesUsed := f.ComputeSlices
	same := 0
	used := f.Engines.Or(gpu.Engines{})

	for _, i := range g.instances {
		slicesUsed += i.Profile.ComputeSlices
		used = together(used, i.Profile.Engines.Or(gpu.Engines{}))

		if hasMediaExtensions(f) && hasMediaExtensions(i.Profile) {
			return "a second profile with media extensions (+me); a GPU has one"
		}

		if i.Profile.ID == f.ID {
			same++
		}
	}

	switch {
	case slicesUsed > g.mig.ComputeSlices:
		return fmt.Sprintf("%d compute slices of %d", slicesUsed, g.mig.ComputeSlices)
	case same >= f.MaxInstances:
		return fmt.Sprintf("more than %d instances of %s", f.MaxInstances, f.Name)
	case !g.hasEngines(used):
		return "more copy or media engines than the GPU"
	}

	return ""
}

// hasEngines reports whether the GPU has as many engines of every kind: as many as an instance of
// all its slices.
func (g *simGPU) hasEngines(e gpu.Engines) bool {
	all := g.engines()

	return all == gpu.Engines{} ||
		e.Copy <= all.Copy && e.Decoder <= all.Decoder && e.Encoder <= all.Encoder && e.JPEG <= all.JPEG &&
			e.OFA <= all.OFA
}

// together adds up engines.
func together(a, b gpu.Engines) gpu.Engines {
	return gpu.Engines{
		Copy:    a.Copy + b.Copy,
		Decoder: a.Decoder + b.Decoder,
		Encoder: a.Encoder + b.Encoder,
		JPEG:    a.JPEG + b.JPEG,
		OFA:     a.OFA + b.OFA,
	}
}

// remaining counts the instances of a profile that could be made now, one after the other.
func (g *simGPU) remaining(f gpu.Profile) int {
	trial := *g
	trial.instances = slices.Clone(g.instances)
	count := 0
	// The placements of one profile have the same size, so taking them from the left wastes none.
	left := slices.Clone(f.Placements)
	slices.SortFunc(left, func(a, c gpu.Placement) int { return a.Start - c.Start })

	for _, p := range left {
		if trial.excess(f) == "" && trial.occupant(p) == nil {
			trial.instances = append(trial.instances, &Instance{Profile: f, Placement: p})
			count++
		}
	}

	return count
}
