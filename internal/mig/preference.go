package mig

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// preferred returns the placements of a profile in the order in which plans use them if nothing
// else tells them apart: that in which the driver itself takes them when it is given none, so that
// what a plan creates is where NVIDIA's own tools would have put it on an empty GPU. It was seen on
// A100 and H100, with 7 compute slices on an axis of 8 units:
//
//	1g, with and without +me    6, 4, 5, 0, 1, 2, 3
//	2g                          4, 0, 2
//	3g                          4, 0
//
// The order of the other profiles there (1g with double memory; 4g and 7g have one placement) and
// of other models (A30, RTX PRO 6000) is unknown: theirs is the order in which the driver lists
// them.
func preferred(p gpu.Profile, s shape) []gpu.Placement {
	if s.axis != 8 || s.compute != 7 {
		return p.Placements
	}

	var starts []int

	switch [2]int{p.ComputeSlices, p.MemorySlices} {
	case [2]int{1, 1}:
		starts = []int{6, 4, 5, 0, 1, 2, 3}
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
