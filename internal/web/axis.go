package web

import (
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// segment is a run of units on a GPU's placement axis: a GPU instance, or room that is free or stranded.
type segment struct {
	gpu.Placement
	instance *gpu.GPUInstance // nil: room
	stranded bool             // room that no profile could use
}

// axisOf lays the GPU instances and the room between them on the placement axis, gapless from 0. Without an axis (no
// MIG, or placements that the driver withholds or that contradict each other) it gives nil.
func axisOf(g *gpu.GPU) []segment {
	units := axisUnits(g)
	if units == 0 {
		return nil
	}
	at := make([]*gpu.GPUInstance, units)
	for i := range g.Instances {
		inst := &g.Instances[i]
		place, ok := inst.Placement.Get()
		if !ok || place.Start < 0 || place.Size < 1 || place.End() > units {
			return nil
		}
		for u := place.Start; u < place.End(); u++ {
			if at[u] != nil {
				return nil
			}
			at[u] = inst
		}
	}
	usable, known := usableUnits(g, at)
	var axis []segment
	for u, inst := range at {
		stranded := inst == nil && known && !usable[u]
		if n := len(axis); n > 0 && axis[n-1].instance == inst && axis[n-1].stranded == stranded {
			axis[n-1].Size++
			continue
		}
		axis = append(axis, segment{Placement: gpu.Placement{Start: u, Size: 1}, instance: inst, stranded: stranded})
	}
	return axis
}

// axisMax bounds what is drawn; the longest axis known has 12 units.
const axisMax = 64

// axisUnits is the length of the axis: the memory slices of the GPU where its capacity is known, else what the
// profiles' placements reach. 0 where neither tells.
func axisUnits(g *gpu.GPU) int {
	units := 0
	if c, ok := g.Capacity.Get(); ok {
		units = c.Memory.Used + c.Memory.Free + c.Memory.Stranded
	} else {
		for _, p := range g.Profiles {
			for _, place := range p.Placements {
				units = max(units, place.End())
			}
		}
	}
	if units > axisMax {
		return 0
	}
	return units
}

// usableUnits marks the units that some profile which can still be created would cover; false where no placements are
// known.
func usableUnits(g *gpu.GPU, at []*gpu.GPUInstance) ([]bool, bool) {
	exhausted := make(map[string]bool)
	if c, ok := g.Capacity.Get(); ok {
		for _, p := range c.Profiles {
			exhausted[p.Name] = p.Available == 0
		}
	}
	usable := make([]bool, len(at))
	known := false
	for _, p := range g.Profiles {
		known = known || len(p.Placements) > 0
		if exhausted[p.Name] {
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

func isFree(at []*gpu.GPUInstance, place gpu.Placement) bool {
	if place.Start < 0 || place.End() > len(at) {
		return false
	}
	for u := place.Start; u < place.End(); u++ {
		if at[u] != nil {
			return false
		}
	}
	return true
}
