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

// computeSizes lists how many slices a compute instance can have in a GPU instance with a number of
// compute slices.
func computeSizes(slices int) []int {
	var sizes []int

	for _, n := range []int{1, 2, 3, 4, 7} {
		if n <= slices {
			sizes = append(sizes, n)
		}
	}

	return sizes
}

// orderPlacements returns a profile's placements in the order in which the driver tries them if the
// client names none. The orders for GPUs with 8 units of memory were seen on A100 and H100. In other
// cases we take the order of the starts.
func orderPlacements(f gpu.Profile, axisUnits int) []gpu.Placement {
	order := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}

	switch {
	case axisUnits == 8 && f.MemorySlices == 1:
		order = []int{6, 4, 5, 0, 1, 2, 3}
	case axisUnits == 8 && f.ComputeSlices == 2:
		order = []int{4, 0, 2}
	case axisUnits == 8 && f.ComputeSlices == 3:
		order = []int{4, 0}
	}

	placements := slices.Clone(f.Placements)
	slices.SortStableFunc(placements, func(a, b gpu.Placement) int {
		return slices.Index(order, a.Start) - slices.Index(order, b.Start)
	})

	return placements
}

// occupant returns an instance that overlaps the placement, or nil.
func (g *simGPU) occupant(p gpu.Placement) *Instance {
	for _, i := range g.instances {
		if i.Placement.Overlaps(p) {
			return i
		}
	}

	return nil
}

// excess returns why the GPU cannot have another instance of the profile, wherever it is placed, as
// in "9 compute slices of 7". It is empty if the GPU has what the instance needs.
func (g *simGPU) excess(f gpu.Profile) string {
	slicesUsed := f.ComputeSlices
	same := 0
	used := f.Engines.Or(gpu.Engines{})

	for _, i := range g.instances {
		slicesUsed += i.Profile.ComputeSlices
		used = addEngines(used, i.Profile.Engines.Or(gpu.Engines{}))

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

// hasEngines reports whether the GPU has as many engines of every kind. If its engines are unknown,
// we take it to have enough.
func (g *simGPU) hasEngines(e gpu.Engines) bool {
	all := g.engines()

	return all == gpu.Engines{} ||
		e.Copy <= all.Copy && e.Decoder <= all.Decoder && e.Encoder <= all.Encoder && e.JPEG <= all.JPEG &&
			e.OFA <= all.OFA
}

// addEngines returns the sum of the engines of each kind.
func addEngines(a, b gpu.Engines) gpu.Engines {
	return gpu.Engines{
		Copy:    a.Copy + b.Copy,
		Decoder: a.Decoder + b.Decoder,
		Encoder: a.Encoder + b.Encoder,
		JPEG:    a.JPEG + b.JPEG,
		OFA:     a.OFA + b.OFA,
	}
}

// remaining counts how many more instances of a profile the GPU can have.
func (g *simGPU) remaining(f gpu.Profile) int {
	trial := *g
	trial.instances = slices.Clone(g.instances)
	count := 0
	// All placements of a profile have the same size, so taking them from the left wastes no room.
	byStart := slices.Clone(f.Placements)
	slices.SortFunc(byStart, func(a, b gpu.Placement) int { return a.Start - b.Start })

	for _, p := range byStart {
		if trial.excess(f) == "" && trial.occupant(p) == nil {
			trial.instances = append(trial.instances, &Instance{Profile: f, Placement: p})
			count++
		}
	}

	return count
}
