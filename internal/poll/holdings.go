package poll

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// holdings remembers who has had the devices of one GPU to themselves, since when, and the energy that they have used. Energy
// is added between two readings to who held the device before the second: what a pod used up to its end is never laid to its
// successor.
type holdings struct {
	open map[part]*holding
}

// part is a device of the GPU; instance and compute are absent for the whole GPU. The generation tells apart devices that have
// had the same ids.
type part struct {
	instance   gpu.Opt[gpu.InstanceID]
	compute    gpu.Opt[gpu.ComputeID]
	generation uint64
}

func instancePart(gi *gpu.GPUInstance) part {
	return part{instance: gpu.Some(gi.ID), generation: gi.Generation}
}

func computePart(gi *gpu.GPUInstance, ci *gpu.ComputeInstance) part {
	return part{instance: gpu.Some(gi.ID), compute: gpu.Some(ci.ID), generation: ci.Generation}
}

type holding struct {
	by      tenant
	since   time.Time
	energy  gpu.Opt[gpu.Counter] // absent while the device's is not known, or its holder not described
	counted time.Time            // since when energy is counted
}

// tenant is a container or a batch job, or both.
type tenant struct {
	container gpu.Container
	job       string
}

// update writes into the GPU's exclusive holders since when they have held their device. Holdings begin and end with it.
func (h *holdings) update(g *gpu.GPU, now time.Time) {
	next := make(map[part]*holding, len(h.open))
	keep := func(key part, holders []gpu.Holder, jobs []string, energyKnown bool) {
		by, holder := exclusiveTenant(holders, jobs)
		if by == (tenant{}) {
			return
		}
		one := h.open[key]
		if one == nil || one.by != by {
			one = &holding{by: by, since: now}
		}
		if holder != nil {
			holder.Since = one.since
		}
		if energyKnown && !one.energy.Present() && (holder == nil || !holder.Undescribed) {
			one.energy, one.counted = gpu.Some(gpu.Counter{Since: now}), now
		}
		next[key] = one
	}
	keep(part{}, g.Holders, g.Jobs, g.Readings.EnergyJoules.Present())
	for i := range g.Instances {
		gi := &g.Instances[i]
		keep(instancePart(gi), gi.Holders, gi.Jobs, gi.EnergyJoules.Present())
		for c := range gi.Computes {
			ci := &gi.Computes[c]
			known := gi.EnergyJoules.Present() && (!gi.IsSplit() || ci.PowerWatts.Present())
			keep(computePart(gi, ci), ci.Holders, gi.Jobs, known)
		}
	}
	h.open = next
}

// exclusiveTenant returns who has a device to itself: its only holder, and its only batch job. The holder points into holders.
func exclusiveTenant(holders []gpu.Holder, jobs []string) (by tenant, holder *gpu.Holder) {
	if holder = gpu.ExclusiveHolder(holders); holder != nil {
		by.container = holder.Container
	}
	if len(jobs) == 1 {
		by.job = jobs[0]
	}
	return by, holder
}

// spend adds energy that a device used between two readings to its holding. Of a holding that began in between only the share
// of the time since then is its own.
func (h *holdings) spend(key part, joules float64, before, at time.Time) {
	one := h.open[key]
	if one == nil {
		return
	}
	counter, begun := one.energy.Get()
	if !begun {
		return
	}
	if one.counted.After(before) {
		whole, own := at.Sub(before), at.Sub(one.counted)
		if own <= 0 || whole <= 0 {
			return
		}
		joules *= float64(own) / float64(whole)
	}
	counter.Value += joules
	one.energy = gpu.Some(counter)
}
