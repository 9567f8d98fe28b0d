package nodedoc

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Segment is a run of units, memory slices, on a GPU's placement axis: a GPU instance, or room that
// is free or stranded.
type Segment struct {
	gpu.Placement
	Instance int  // index of the GPU instance; Room for room
	Stranded bool // slices that no profile can use beside the existing instances
}

// Room is the Instance of a Segment that is none.
const Room = -1

// maxUnits bounds the axis; the longest axis known has 12 units.
const maxUnits = 64

// AxisUnits returns the length of a placement axis: the memory slices of the GPU if its capacity is
// known, otherwise what the profiles' placements reach. It is 0 if neither is known.
func AxisUnits(capacity gpu.SliceCount, profiles []gpu.Profile) int {
	units := capacity.Used + capacity.Free + capacity.Stranded
	if units == 0 {
		for _, p := range profiles {
			for _, place := range p.Placements {
				units = max(units, place.End())
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
	// how many instances of each profile can still be created; a profile that is missing: any
	Available []gpu.ProfileCapacity
}

// LayOut returns the GPU instances of some placements and the room between them in the order of the
// axis, gapless from 0. It returns nil without an axis, or if placements are unknown or contradict
// each other.
func (a Axis) LayOut(instances []gpu.Opt[gpu.Placement]) []Segment {
	at := slices.Repeat([]int{Room}, a.Units)

	for i, placement := range instances {
		place, ok := placement.Get()
		if !ok || !isFree(at, place) {
			return nil
		}

		for u := place.Start; u < place.End(); u++ {
			at[u] = i
		}
	}

	usable, known := a.usableUnits(at)
	var segments []Segment

	for u, instance := range at {
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

// usableUnits marks the units that a profile which can still be created would cover. known is false
// if no placements are.
func (a Axis) usableUnits(at []int) (usable []bool, known bool) {
	usable = make([]bool, len(at))
	for _, p := range a.Profiles {
		known = known || len(p.Placements) > 0

		if slices.ContainsFunc(a.Available,
			func(c gpu.ProfileCapacity) bool { return c.Name == p.Name && c.Available == 0 }) {
			continue
		}

		for _, place := range p.Placements {
			if isFree(at, place) {
				for u := place.Start; u < place.End(); u++ {
					usable[u] = true
				}
			}
		}
	}

	return usable, known
}

// isFree reports whether a placement lies on the axis, and no instance on it.
func isFree(at []int, place gpu.Placement) bool {
	return place.Start >= 0 && place.Size > 0 && place.End() <= len(at) &&
		!slices.ContainsFunc(at[place.Start:place.End()], func(i int) bool { return i != Room })
}
