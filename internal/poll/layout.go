package poll

import (
	"errors"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// layoutTracker follows a GPU's GPU and compute instances over time. Ids and UUIDs are reused after
// a layout change: an instance keeps its generation, and its totals, only while every reading has
// it unchanged.
type layoutTracker struct {
	generation uint64 // 0: no layout has been seen yet
	// instances are a copy of the layout from its first reading. We keep their XID errors and
	// energy up to date, but no other readings.
	instances []gpu.GPUInstance
}

// isSameInstance reports whether both are the same GPU instance. It compares placements only if
// both are known: we may have lost the right to see them.
func isSameInstance(a, b *gpu.GPUInstance) bool {
	placementsKnown := a.Placement.Present() && b.Placement.Present()
	return a.ID == b.ID && a.Profile == b.Profile && (!placementsKnown || a.Placement == b.Placement)
}

func isSameCompute(a, b *gpu.ComputeInstance) bool {
	return a.ID == b.ID && a.UUID == b.UUID && a.Profile == b.Profile
}

// update sets the generations of the instances of g and reports whether the layout changed; the
// first layout is no change.
func (l *layoutTracker) update(g *gpu.GPU, at time.Time) bool {
	first := l.generation == 0
	next := l.generation + 1
	hidden := l.hiddenInstances(g)
	changed := first || len(g.Instances)+len(hidden) != len(l.instances)

	for i := range g.Instances {
		gi := &g.Instances[i]
		gi.Generation = next
		gi.Since = at
		var oldComputeInstances []gpu.ComputeInstance

		old := find(l.instances, func(old *gpu.GPUInstance) bool { return isSameInstance(old, gi) })
		if old != nil {
			gi.Generation = old.Generation
			gi.Since = old.Since
			gi.XIDErrors = old.XIDErrors
			gi.EnergyJoules = old.EnergyJoules
			oldComputeInstances = old.ComputeInstances
		}

		changed = changed || gi.Generation == next || len(gi.ComputeInstances) != len(oldComputeInstances)
		for c := range gi.ComputeInstances {
			ci := &gi.ComputeInstances[c]
			ci.Generation = next
			ci.Since = at

			old := find(
				oldComputeInstances,
				func(old *gpu.ComputeInstance) bool { return isSameCompute(old, ci) },
			)
			if old != nil {
				ci.Generation = old.Generation
				ci.Since = old.Since
			}

			changed = changed || ci.Generation == next
		}
	}

	if changed {
		l.generation = next
		l.instances = append(cloneInstances(g.Instances), hidden...)
	}

	g.MIG.LayoutGeneration = l.generation

	return changed && !first
}

// recordLayout records a reading of the layout alone, which began at at. Instances that were there
// before keep their last readings; new instances have none yet.
func (t *trackedGPU) recordLayout(read gpu.GPU, at time.Time) {
	t.countErrors(&read, at)

	before := t.last
	if !t.up || isLayoutUnknown(&read, &before) {
		return // the next whole reading will show the layout
	}

	g := before
	generation := g.MIG.LayoutGeneration
	g.MIG = read.MIG
	g.MIG.LayoutGeneration = generation
	g.Instances = read.Instances
	g.Errors = slices.DeleteFunc(slices.Clone(before.Errors), isOfLayout)
	g.Errors = append(g.Errors, read.Errors...)

	if t.layout.update(&g, at) {
		t.totals.LayoutChanges.Value++
	}

	for i := range g.Instances {
		gi := &g.Instances[i]

		old := findInstance(before.Instances, gi.ID)
		if old != nil && old.Generation == gi.Generation && gi.Up {
			keepReadings(gi, old)
		}
	}

	g.Capacity = t.capacity.get(&g)
	t.last = g
}

// isOfLayout reports whether an error is one of reading the layout.
func isOfLayout(e gpu.ReadError) bool { return e.Reading == gpu.ReadingMIG }

// keepReadings copies the readings of a GPU instance and of its compute instances from old, the
// same instance in an earlier reading. Which compute instances gi has does not change.
func keepReadings(gi, old *gpu.GPUInstance) {
	computeInstances := gi.ComputeInstances
	hidden := gi.ComputeInstancesHidden
	*gi = *old
	gi.ComputeInstances = computeInstances
	gi.ComputeInstancesHidden = hidden

	for i := range computeInstances {
		ci := &computeInstances[i]

		oldCompute := find(
			old.ComputeInstances,
			func(o *gpu.ComputeInstance) bool { return o.ID == ci.ID },
		)
		if oldCompute != nil && oldCompute.Generation == ci.Generation {
			*ci = *oldCompute
		}
	}
}

// hiddenInstances returns the instances that the reading could not see: without the right to list
// GPU instances, we find only those with a compute instance. The others count as unchanged until we
// see them again.
func (l *layoutTracker) hiddenInstances(g *gpu.GPU) []gpu.GPUInstance {
	if !mayLackInstances(g) {
		return nil
	}

	return slices.DeleteFunc(slices.Clone(l.instances), func(gi gpu.GPUInstance) bool {
		return len(gi.ComputeInstances) > 0 || findInstance(g.Instances, gi.ID) != nil
	})
}

// findInstance returns the GPU instance with an id; nil if the list has none.
func findInstance(list []gpu.GPUInstance, id gpu.InstanceID) *gpu.GPUInstance {
	return find(list, func(gi *gpu.GPUInstance) bool { return gi.ID == id })
}

// find returns the first element that matches; nil if none does.
func find[T any](list []T, matches func(*T) bool) *T {
	for i := range list {
		if matches(&list[i]) {
			return &list[i]
		}
	}

	return nil
}

// cloneInstances copies GPU instances and their compute instances.
func cloneInstances(list []gpu.GPUInstance) []gpu.GPUInstance {
	list = slices.Clone(list)
	for i := range list {
		list[i].ComputeInstances = slices.Clone(list[i].ComputeInstances)
	}

	return list
}

// mayLackInstances reports whether a reading may lack GPU instances because we had no permission to
// list them.
func mayLackInstances(g *gpu.GPU) bool {
	return slices.ContainsFunc(g.Errors, func(e gpu.ReadError) bool {
		return e.Reading == gpu.ReadingMIG && errors.Is(e.Err, gpu.ErrNoPermission)
	})
}

// capacityCache keeps a GPU's capacity, so that we compute it only once per layout.
type capacityCache struct {
	value gpu.Capacity
	// What value was computed for.
	generation uint64 // of the layout; 0: there is no value
	profiles   int    // how many the driver reported
	enabled    bool   // the MIG mode
}

// get returns which instances could still be created on g; absent if we do not know the profiles or
// the placements. While MIG is off there are no slices, and only the maximum of each profile is
// set.
func (c *capacityCache) get(g *gpu.GPU) gpu.Opt[gpu.Capacity] {
	enabled, hasMIG := g.MIG.Enabled.Get()

	placeable := slices.ContainsFunc(
		g.Profiles,
		func(p gpu.Profile) bool { return len(p.Placements) > 0 },
	)
	if !hasMIG || !placeable || mayLackInstances(g) || g.MIG.LayoutGeneration == 0 {
		return gpu.None[gpu.Capacity]()
	}

	if c.generation == g.MIG.LayoutGeneration && c.profiles == len(g.Profiles) &&
		c.enabled == enabled {
		return gpu.Some(c.value)
	}

	placed := make([]mig.Placed, 0, len(g.Instances))
	for i := range g.Instances {
		gi := &g.Instances[i]
		placement, placementKnown := gi.Placement.Get()

		id, idKnown := gi.ProfileID.Get()
		if !placementKnown || !idKnown {
			return gpu.None[gpu.Capacity]()
		}

		placed = append(placed, mig.Placed{ProfileID: id, Profile: gi.Profile, Placement: placement})
	}

	c.generation = g.MIG.LayoutGeneration
	c.profiles = len(g.Profiles)
	c.enabled = enabled
	c.value = mig.CapacityOf(g.Profiles, placed)

	if !enabled {
		c.value.Compute = gpu.SliceCount{}
		c.value.Memory = gpu.SliceCount{}

		for i := range c.value.Profiles {
			c.value.Profiles[i].Available = 0
		}
	}

	return gpu.Some(c.value)
}
