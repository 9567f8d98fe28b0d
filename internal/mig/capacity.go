package mig

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Placed is the profile and the placement of a GPU instance. Its profile is the one with its id, or with its name if
// the id belongs to a profile of another name. An instance of no known profile still occupies its placement and, if
// its name can be parsed, compute slices.
type Placed struct {
	ProfileID uint32
	Profile   string
	Placement gpu.Placement
}

// CapacityOf returns what could still be created on a GPU with these profiles, given all of its instances.
//
// How many of a profile there can be follows from its placements, the GPU's compute slices, its engines and the rule
// that one instance at most has media extensions (+me, +me.all), not from MaxInstances, which drivers report wrongly
// for A30. Profiles without placements are left out. Totals are those of the largest profile.
//
// Free memory slices are those that an instance of some profile, created now, could have; the other unused ones are
// stranded. Free compute slices are as many as the best further instances together could have; the rest is stranded.
func CapacityOf(profiles []gpu.Profile, placed []Placed) gpu.Capacity {
	shape := shapeOf(profiles)
	empty := newOccupancy(shape, profiles, nil)
	now := newOccupancy(shape, profiles, placed)
	var c gpu.Capacity
	var coverable uint64

	for _, p := range profiles {
		if len(p.Placements) == 0 {
			continue
		}

		c.Profiles = append(c.Profiles, gpu.ProfileCapacity{
			Name:      p.Name,
			Max:       empty.count(p),
			Available: now.count(p),
		})
		for _, placement := range now.free(p) {
			coverable |= units(placement)
		}
	}

	c.Memory.Used = bits.OnesCount64(now.units)
	c.Memory.Free = bits.OnesCount64(coverable)
	c.Memory.Stranded = shape.axis - c.Memory.Used - c.Memory.Free
	c.Compute.Used = shape.compute - now.compute
	c.Compute.Free = now.bestCompletion(profiles)
	c.Compute.Stranded = now.compute - c.Compute.Free

	return c
}

// FreePlacements lists where one more instance of the profile could be created now, in the profile's order. It is empty
// if the GPU's compute slices, engines or its one instance with media extensions are taken, too.
func FreePlacements(profiles []gpu.Profile, placed []Placed, profile gpu.Profile) []gpu.Placement {
	return newOccupancy(shapeOf(profiles), profiles, placed).free(profile)
}

// shape is what a GPU can be partitioned into.
type shape struct {
	axis, compute int
	engines       engineCounts
}

// maxUnits is the number of units of a placement axis that fit the sets below; the longest known has 12.
const maxUnits = 64

// shapeOf takes the end of the last placement and the slices and engines of the largest profile.
func shapeOf(profiles []gpu.Profile) shape {
	s := shape{engines: engineTotals(profiles)}
	for _, p := range profiles {
		s.compute = max(s.compute, p.ComputeSlices)
		for _, placement := range p.Placements {
			s.axis = max(s.axis, bits.Len64(units(placement)))
		}
	}

	return s
}

// units is the set of axis units of a placement; none for one that is not on an axis of up to maxUnits.
func units(p gpu.Placement) uint64 {
	if p.Start < 0 || p.Size <= 0 || p.Start >= maxUnits || p.Size > maxUnits-p.Start {
		return 0
	}

	return (1<<p.Size - 1) << p.Start
}

// occupancy is what the instances of a GPU leave.
type occupancy struct {
	shape
	units   uint64 // occupied
	compute int    // slices that are not taken
	media   bool   // the one instance with media extensions exists
	left    engineCounts
}

func newOccupancy(s shape, profiles []gpu.Profile, placed []Placed) occupancy {
	o := occupancy{shape: s, compute: s.compute, left: s.engines}

	for _, instance := range placed {
		p := profileOf(profiles, instance)
		o.units |= units(instance.Placement)
		o.compute -= p.ComputeSlices
		o.media = o.media || hasMediaExtensions(p)
		o.left = o.left.without(countsOf(p))
	}

	o.units &= 1<<s.axis - 1
	o.compute = max(o.compute, 0)

	return o
}

// profileOf finds an instance's profile; for an unknown one it returns what the name says.
func profileOf(profiles []gpu.Profile, instance Placed) gpu.Profile {
	byID := slices.IndexFunc(
		profiles,
		func(p gpu.Profile) bool { return p.ID == instance.ProfileID },
	)

	byName := slices.IndexFunc(
		profiles,
		func(p gpu.Profile) bool { return p.Name == instance.Profile },
	)
	switch {
	case byID >= 0 && (byName < 0 || profiles[byID].Name == instance.Profile):
		return profiles[byID]
	case byName >= 0:
		return profiles[byName]
	}

	n, err := ParseName(instance.Profile)
	if err != nil {
		return gpu.Profile{Name: instance.Profile}
	}

	return gpu.Profile{Name: instance.Profile, ComputeSlices: n.Slices}
}

// hasMediaExtensions reports whether the profile is one of those of which a GPU can have a single instance: all of them
// want its only OFA engine. NVML's enum decides if a driver reports no names.
func hasMediaExtensions(p gpu.Profile) bool {
	switch p.Enum {
	case enum1SliceMedia, enum2SliceMedia, enum1SliceAllMedia, enum2SliceAllMedia:
		return true
	}

	n, err := ParseName(p.Name)

	return err == nil && (n.Has(attributeMedia) || n.Has(attributeAllMedia))
}

// NVML's NVML_GPU_INSTANCE_PROFILE_{1,2}_SLICE_{REV1,ALL_ME}.
const (
	enum1SliceMedia    = 7
	enum2SliceMedia    = 8
	enum1SliceAllMedia = 15
	enum2SliceAllMedia = 16
)

// creatable reports whether one more instance of the profile is possible, at any placement.
func (o occupancy) creatable(p gpu.Profile) bool {
	return p.ComputeSlices <= o.compute && !(o.media && hasMediaExtensions(p)) &&
		o.left.cover(countsOf(p))
}

// free lists the placements that an instance of the profile could have now.
func (o occupancy) free(p gpu.Profile) []gpu.Placement {
	if !o.creatable(p) {
		return nil
	}

	var free []gpu.Placement

	for _, placement := range p.Placements {
		if set := units(placement); set != 0 && set&o.units == 0 {
			free = append(free, placement)
		}
	}

	return free
}

// count is how many instances of the profile alone could be created: the most intervals of which no two overlap are
// found by taking whichever ends first.
func (o occupancy) count(p gpu.Profile) int {
	free := o.free(p)
	slices.SortFunc(free, func(a, b gpu.Placement) int { return cmp.Compare(a.End(), b.End()) })

	n := 0
	end := 0

	for _, placement := range free {
		if placement.Start >= end {
			n++
			end = placement.End()
		}
	}

	if p.ComputeSlices > 0 {
		n = min(n, o.compute/p.ComputeSlices)
	}

	if hasMediaExtensions(p) {
		n = min(n, 1)
	}

	return min(n, o.left.times(countsOf(p)))
}

// bestCompletion is the most compute slices that further instances together could take. Going along the axis, it keeps
// for every unit the sets of sums that can be reached there, one set for each combination of what else instances take.
func (o occupancy) bestCompletion(profiles []gpu.Profile) int {
	within := uint64(1)<<(o.compute+1) - 1

	reached := make([]map[taken]uint64, o.axis+1)
	for u := range reached {
		reached[u] = map[taken]uint64{}
	}

	reached[0][taken{left: o.left}] = 1

	starts := o.startingAt(profiles) // without media extensions if an existing instance has them
	for u := range o.axis {
		for so, sums := range reached[u] {
			reached[u+1][so] |= sums
			for _, next := range starts[u] {
				if so.media && next.media || !so.left.cover(next.engines) {
					continue
				}

				then := taken{media: so.media || next.media, left: so.left.without(next.engines)}
				reached[u+next.size][then] |= sums << next.compute & within
			}
		}
	}

	most := 0
	for _, sums := range reached[o.axis] {
		most = max(most, bits.Len64(sums)-1)
	}

	return most
}

// taken is what further instances take besides units and compute slices.
type taken struct {
	media bool
	left  engineCounts // what they leave
}

// candidate is an instance that could begin at a unit.
type candidate struct {
	size, compute int
	media         bool
	engines       engineCounts
}

// startingAt lists the instances that could be created now, by their first unit.
func (o occupancy) startingAt(profiles []gpu.Profile) [][]candidate {
	starts := make([][]candidate, o.axis)

	for _, p := range profiles {
		c := candidate{compute: p.ComputeSlices, media: hasMediaExtensions(p), engines: countsOf(p)}
		for _, placement := range o.free(p) {
			c.size = placement.Size
			if !slices.Contains(starts[placement.Start], c) {
				starts[placement.Start] = append(starts[placement.Start], c)
			}
		}
	}

	return starts
}
