package nodedoc

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Segment is a part of a GPU's placement axis: a GPU instance, or room between instances.
type Segment struct {
	gpu.Placement
	Instance int  // the index of the GPU instance in the list given to LayOut, or Room
	Stranded bool // it is room that no further instance could use
}

// Room is the Instance of a Segment without a GPU instance.
const Room = -1

// maxUnits bounds the length of an axis; the longest known has 12 units.
const maxUnits = 64

// AxisUnits returns the length of a placement axis: the GPU's number of memory slices or, if that
// is not known, the end of the last placement of the profiles. It is 0 if neither is known.
func AxisUnits(memorySlices gpu.SliceCount, profiles []gpu.Profile) int {
	units := memorySlices.Used + memorySlices.Free + memorySlices.Stranded
	if units == 0 {
		for _, p := range profiles {
			for _, placement := range p.Placements {
				units = max(units, placement.End())
			}
		}
	}

	if units > maxUnits {
		return 0
	}

	return units
}

// Axis is the placement axis of a GPU.
type Axis struct {
	Units    int // its length, in memory slices
	Profiles []gpu.Profile
	// Available says how many instances of each profile can still be created. A profile that it
	// lacks is not limited.
	Available []gpu.ProfileCapacity
}

// LayOut returns the segments of the axis from 0 to its end, given the placements of the GPU
// instances. It returns nil if the axis has no length, a placement is unknown, or placements
// contradict each other.
func (a Axis) LayOut(instances []gpu.Opt[gpu.Placement]) []Segment {
	occupants := slices.Repeat([]int{Room}, a.Units) // the Instance of each unit

	for i, instance := range instances {
		placement, ok := instance.Get()
		if !ok || !isFree(occupants, placement) {
			return nil
		}

		for u := placement.Start; u < placement.End(); u++ {
			occupants[u] = i
		}
	}

	usable, known := a.usableUnits(occupants)
	var segments []Segment

	for u, instance := range occupants {
		stranded := instance == Room && known && !usable[u]
		if n := len(segments); n > 0 && segments[n-1].Instance == instance &&
			segments[n-1].Stranded == stranded {
			segments[n-1].Size++
			continue
		}

		segments = append(
			segments,
			Segment{Placement: gpu.Placement{Start: u, Size: 1}, Instance: instance,
				Stranded: stranded},
		)
	}

	return segments
}

// usableUnits reports for each unit whether a further instance could cover it. known is false if we
// know the placements of no profile.
func (a Axis) usableUnits(occupants []int) (usable []bool, known bool) {
	usable = make([]bool, len(occupants))
	for _, p := range a.Profiles {
		known = known || len(p.Placements) > 0

		if slices.ContainsFunc(a.Available,
			func(c gpu.ProfileCapacity) bool { return c.Name == p.Name && c.Available == 0 }) {
			continue
		}

		for _, placement := range p.Placements {
			if isFree(occupants, placement) {
				for u := placement.Start; u < placement.End(); u++ {
					usable[u] = true
				}
			}
		}
	}

	return usable, known
}

// isFree reports whether a placement lies on the axis and no instance occupies any of its units.
func isFree(occupants []int, p gpu.Placement) bool {
	return p.Start >= 0 && p.Size > 0 && p.End() <= len(occupants) &&
		!slices.ContainsFunc(occupants[p.Start:p.End()], func(instance int) bool { return instance != Room })
}
