package mig

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Placed is the profile and the placement of a GPU instance. If ProfileID and Profile name different
// profiles of the GPU, Profile counts. An instance of an unknown profile still occupies its
// placement and, if we can parse its name, compute slices.
type Placed struct {
	ProfileID uint32
	Profile   string // the profile's name
	Placement gpu.Placement
}

// CapacityOf returns what could still be created on a GPU with these profiles, given all of its
// instances.
//
// How many instances of a profile fit follows from its placements, the GPU's compute slices and
// engines, and the rule that at most one instance has media extensions (+me, +me.all). We don't use
// MaxInstances, which drivers report wrongly for A30. Profiles without placements are left out. The
// largest profile has the GPU's totals.
//
// A memory slice is free if an instance of some profile, created now, could have it; other unused
// ones are stranded. Of the unused compute slices, as many are free as further instances together
// could have at most; the rest is stranded.
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
			coverable |= bitSet(placement)
		}
	}

	c.Memory.Used = bits.OnesCount64(now.units)
	c.Memory.Free = bits.OnesCount64(coverable)
	c.Memory.Stranded = shape.axis - c.Memory.Used - c.Memory.Free
	c.Compute.Used = shape.compute - now.computeLeft
	c.Compute.Free = now.bestCompletion(profiles)
	c.Compute.Stranded = now.computeLeft - c.Compute.Free

	return c
}

// FreePlacements lists where one more instance of the profile could be created now, in the
// profile's order. It is empty if the GPU's compute slices, engines or its one instance with media
// extensions are taken, too.
func FreePlacements(profiles []gpu.Profile, placed []Placed, profile gpu.Profile) []gpu.Placement {
	return newOccupancy(shapeOf(profiles), profiles, placed).free(profile)
}

// shape is what instances divide among them.
type shape struct {
	axis    int // units of the placement axis; memory slices are the same
	compute int // compute slices
	engines engineCounts
}

// maxUnits is the number of units of a placement axis that fit the sets below; the longest known
// has 12.
const maxUnits = 64

// shapeOf derives the shape from a GPU's profiles: the axis ends with the last placement, and the
// largest profile has all slices and engines.
func shapeOf(profiles []gpu.Profile) shape {
	s := shape{engines: engineTotals(profiles)}
	for _, p := range profiles {
		s.compute = max(s.compute, p.ComputeSlices)
		for _, placement := range p.Placements {
			s.axis = max(s.axis, bits.Len64(bitSet(placement)))
		}
	}

	return s
}

// bitSet returns the set of a placement's axis units or compute slices, 2:2 as 0b1100; 0 if it is not
// on an axis of up to maxUnits.
func bitSet(p gpu.Placement) uint64 {
	if p.Start < 0 || p.Size <= 0 || p.Start >= maxUnits || p.Size > maxUnits-p.Start {
		return 0
	}

	return (1<<p.Size - 1) << p.Start
}

// occupancy is what the instances of a GPU take and leave.
type occupancy struct {
	shape
	units       uint64 // the set of units taken
	computeLeft int    // compute slices left
	media       bool   // the one instance with media extensions exists
	enginesLeft engineCounts
}

func newOccupancy(s shape, profiles []gpu.Profile, placed []Placed) occupancy {
	o := occupancy{shape: s, computeLeft: s.compute, enginesLeft: s.engines}

	for _, instance := range placed {
		p := profileOf(profiles, instance)
		o.units |= bitSet(instance.Placement)
		o.computeLeft -= p.ComputeSlices
		o.media = o.media || hasMediaExtensions(p)
		o.enginesLeft = o.enginesLeft.without(countsOf(p))
	}

	o.units &= 1<<s.axis - 1
	o.computeLeft = max(o.computeLeft, 0)

	return o
}

// profileOf finds an instance's profile, as Placed says. For an unknown one it returns a profile
// with the compute slices in its name, 3 for "3g.20gb".
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

// hasMediaExtensions reports whether the profile has media extensions. A GPU can have only one such
// instance, since each takes its only OFA engine. We look at NVML's enum first, since a driver may
// report no names.
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

// creatable reports whether compute slices and engines are left for an instance of the profile.
func (o occupancy) creatable(p gpu.Profile) bool {
	return p.ComputeSlices <= o.computeLeft && !(o.media && hasMediaExtensions(p)) &&
		o.enginesLeft.cover(countsOf(p))
}

// free lists the placements that an instance of the profile could have now.
func (o occupancy) free(p gpu.Profile) []gpu.Placement {
	if !o.creatable(p) {
		return nil
	}

	var free []gpu.Placement

	for _, placement := range p.Placements {
		if set := bitSet(placement); set != 0 && set&o.units == 0 {
			free = append(free, placement)
		}
	}

	return free
}

// count returns how many instances of the profile alone could be created. Taking the free placement
// that ends first, again and again, gives the most placements that don't overlap.
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
		n = min(n, o.computeLeft/p.ComputeSlices)
	}

	if hasMediaExtensions(p) {
		n = min(n, 1)
	}

	return min(n, o.enginesLeft.times(countsOf(p)))
}

// bestCompletion returns the most compute slices that further instances together could take. It
// goes along the axis and keeps, at every unit, which sums of compute slices the new instances below
// that unit can have. Sums are sets of bits: reached[2][r] with bits 1 and 2 says that new instances
// on units 0 and 1 can have 1 or 2 slices together, if they leave r.
func (o occupancy) bestCompletion(profiles []gpu.Profile) int {
	possibleSums := uint64(1)<<(o.computeLeft+1) - 1

	reached := make([]map[resourcesLeft]uint64, o.axis+1)
	for u := range reached {
		reached[u] = map[resourcesLeft]uint64{}
	}

	reached[0][resourcesLeft{engines: o.enginesLeft}] = 1 // no instances: the sum is 0

	candidates := o.candidatesByStart(profiles)
	for u := range o.axis {
		for before, sums := range reached[u] {
			reached[u+1][before] |= sums // unit u stays free

			for _, next := range candidates[u] {
				if before.media && next.media || !before.engines.cover(next.engines) {
					continue
				}

				after := resourcesLeft{
					media:   before.media || next.media,
					engines: before.engines.without(next.engines),
				}
				reached[u+next.size][after] |= sums << next.compute & possibleSums
			}
		}
	}

	most := 0
	for _, sums := range reached[o.axis] {
		most = max(most, bits.Len64(sums)-1)
	}

	return most
}

// resourcesLeft says what new instances leave, besides units and compute slices.
type resourcesLeft struct {
	media   bool // one of them has media extensions, so no other can
	engines engineCounts
}

// candidate is an instance that could begin at a unit.
type candidate struct {
	size    int // in units
	compute int // compute slices
	media   bool
	engines engineCounts
}

// candidatesByStart lists the instances that could be created now, by their first unit. None has
// media extensions if an existing instance has them.
func (o occupancy) candidatesByStart(profiles []gpu.Profile) [][]candidate {
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
