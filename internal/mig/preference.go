package mig

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// preferred returns the placements of a profile in the order in which the driver itself takes them
// on an empty GPU if it is asked for none. Plans use it if nothing else makes a difference, so that
// new instances are where NVIDIA's own tools would have put them. We have seen this order on A100
// and H100, with 7 compute slices on an axis of 8 units:
//
//	1g, with and without +me    6, 4, 5, 0, 1, 2, 3
//	2g                          4, 0, 2
//	3g                          4, 0
//
// For 1g with double memory we don't know it, and begin at 6: only there does such an instance use the
// eighth memory slice, which it would waste at 4, with a compute slice. For other models (A30, RTX
// PRO 6000) we don't know it either, and keep the order in which the driver lists the placements. 4g
// and 7g have only one.
func preferred(p gpu.Profile, s shape) []gpu.Placement {
	if s.axis != 8 || s.compute != 7 {
		return p.Placements
	}

	var starts []int

	switch [2]int{p.ComputeSlices, p.MemorySlices} {
	case [2]int{1, 1}:
		starts = []int{6, 4, 5, 0, 1, 2, 3}
	case [2]int{1, 2}:
		starts = []int{6, 4, 0, 2}
	case [2]int{2, 2}:
		starts = []int{4, 0, 2}
	case [2]int{3, 4}:
		starts = []int{4, 0}
	}

	rank := func(at gpu.Placement) int {
		if i := slices.Index(starts, at.Start); i >= 0 {
			return i
		}

		return len(starts)
	}

	return slices.SortedStableFunc(
		slices.Values(p.Placements),
		func(a, b gpu.Placement) int { return rank(a) - rank(b) },
	)
}
