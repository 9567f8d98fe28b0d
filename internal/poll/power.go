package poll

import (
	"fmt"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// GPUs have no power sensor for an instance, so its power is an estimate. We share the GPU's active
// power (its power minus the idle power, never negative) by w*u / sum(w*u), where w is the
// instance's share of the SMs of the largest profile and u its graphics engine activity. We share
// the idle power by w. The rest is unallocated, so that all parts add up to the GPU's power.

// estimatePower shares the GPU's power and energy among its GPU instances, and further among the
// compute instances of split GPU instances.
func (t *trackedGPU) estimatePower(g *gpu.GPU, at time.Time) {
	fromEnergy := t.fillPowerFromEnergy(g)
	g.Power = gpu.PowerEstimate{FromEnergy: fromEnergy}
	g.Power.IdleWatts = t.idle.update(g, &t.totals, at, t.windowEnd(g, at))
	idle := g.Power.IdleWatts

	// Instances have their energy up to now even if this reading adds none.
	defer t.writeEnergy(g)

	// Without the MIG mode we do not know which devices used the energy. The next reading that has
	// the mode shares it.
	if t.hasMIG && !g.MIG.Enabled.Present() {
		return
	}

	gpuJoules := g.Readings.EnergyJoules
	since := t.energyReadAt
	spent := counterGrowth(t.energyCounter, gpuJoules)

	if gpuJoules.Present() {
		t.energyCounter = gpuJoules
		t.energyReadAt = at
	}

	t.exclusive.addEnergy(gpu.IDOfGPU(g.UUID), spent, since, at)
	t.reportMissingPower(g, at)

	if !g.MIG.Enabled.Or(false) {
		t.totals.EnergyUnallocatedJoules = gpu.None[gpu.Counter]()
		return
	}

	gpuWatts, ok := g.Readings.PowerWatts.Get()
	g.Power.Method = gpu.PowerUnknown

	if ok {
		// Until we know the idle power, all power counts as idle.
		var parts []devicePower
		parts, g.Power.Method = sharePower(g, gpuWatts, min(idle.Or(gpuWatts), gpuWatts))
		rest := gpuWatts

		for i := range g.Instances {
			gi := &g.Instances[i]
			if !gi.SMs.Present() {
				continue
			}

			gi.PowerWatts = gpu.Some(parts[i].total())
			rest -= parts[i].total()

			if gi.IsSplit() {
				sharePowerOfInstance(gi, parts[i])
			}
		}

		g.Power.UnallocatedWatts = gpu.Some(dropRounding(gpuWatts, rest))
	}

	if gpuJoules.Present() {
		t.shareEnergy(g, spent, since, at)
	}
}

// dropRounding returns the rest of a total after its parts were subtracted, 0 if that is only
// rounding: 1e-12 of the total is far more than the few subtractions can be off.
func dropRounding(total, rest float64) float64 {
	if rest < total*1e-12 {
		return 0
	}

	return rest
}

// reportMissingPower adds an error to a GPU in MIG mode for which the driver reports neither power
// nor energy. It counts the error once for as long as that lasts.
func (t *trackedGPU) reportMissingPower(g *gpu.GPU, at time.Time) {
	reported := g.Readings.PowerWatts.Present() || g.Readings.EnergyJoules.Present()

	failed := readingFailed(g, gpu.ReadingPower) || readingFailed(g, gpu.ReadingEnergy)
	if reported || failed || !g.MIG.Enabled.Or(false) {
		t.powerMissing = false
		return
	}

	err := fmt.Errorf(
		"the driver reports neither power nor energy in MIG mode, so nothing is estimated: %w",
		gpu.ErrNotSupported,
	)
	e := gpu.ReadError{Reading: gpu.ReadingPower, Err: err, Remembered: t.powerMissing}
	t.powerMissing = true
	t.countError(e, at)
	g.Errors = append(slices.Clone(g.Errors), e) // the source keeps its own slice
}

// windowEnd returns the time to which the activity in g belongs: that of the reading, at, or that of
// the profiler's answer, which can be older.
func (t *trackedGPU) windowEnd(g *gpu.GPU, at time.Time) time.Time {
	if g.ActivitySource == gpu.ActivityDCGM && !t.profiling.Time.IsZero() {
		return t.profiling.Time
	}

	return at
}

// writeEnergy sets the energy of the instances of g from the counters that the layout keeps of each.
func (t *trackedGPU) writeEnergy(g *gpu.GPU) {
	for i := range g.Instances {
		gi := &g.Instances[i]
		gi.EnergyJoules = findInstance(t.layout.instances, gi.ID).EnergyJoules
	}
}

// devicePower is the power of a device: what it draws while idle, and the rest.
type devicePower struct{ idle, active float64 }

func (p devicePower) total() float64 { return p.idle + p.active }

// sharePower splits the GPU's power among its instances. idleWatts is the part of gpuWatts that the
// GPU would draw without work.
func sharePower(g *gpu.GPU, gpuWatts, idleWatts float64) ([]devicePower, gpu.PowerMethod) {
	parts := make([]devicePower, len(g.Instances))
	weights := smShares(g)
	activity := make([]gpu.Opt[float64], len(g.Instances))

	for i := range g.Instances {
		if g.Instances[i].SMs.Present() {
			activity[i] = engineActivity(&g.Instances[i])
		}

		parts[i].idle = idleWatts * weights[i]
	}

	if !shareActive(parts, weights, activity, gpuWatts-idleWatts) {
		return parts, gpu.PowerUnallocated
	}

	return parts, gpu.PowerByActivity
}

// sharePowerOfInstance splits the power of a split GPU instance among its compute instances by the
// same rule. The idle power of SMs that no compute instance has stays unassigned. So does all active
// power if the activity of any compute instance is unknown, or all are idle.
func sharePowerOfInstance(gi *gpu.GPUInstance, instance devicePower) {
	parts := make([]devicePower, len(gi.ComputeInstances))
	weights := make([]float64, len(gi.ComputeInstances))
	activity := make([]gpu.Opt[float64], len(gi.ComputeInstances))
	total := 0

	for c := range gi.ComputeInstances {
		total += gi.ComputeInstances[c].SMs.Or(0)
	}

	total = max(total, gi.SMs.Or(0))
	for c := range gi.ComputeInstances {
		ci := &gi.ComputeInstances[c]
		if sms, ok := ci.SMs.Get(); ok && total > 0 {
			weights[c] = float64(sms) / float64(total)
			activity[c] = ci.Activity.GraphicsEngine
		}

		parts[c].idle = instance.idle * weights[c]
	}

	shareActive(parts, weights, activity, instance.active)

	for c := range gi.ComputeInstances {
		if gi.ComputeInstances[c].SMs.Present() {
			gi.ComputeInstances[c].PowerWatts = gpu.Some(parts[c].total())
		}
	}
}

// shareActive shares active power by weight and activity. If the activity of a part is unknown, or
// all are idle, it shares nothing and returns false.
func shareActive(
	parts []devicePower,
	weights []float64,
	activity []gpu.Opt[float64],
	active float64,
) bool {
	sum := 0.0

	for i := range parts {
		ratio, known := activity[i].Get()
		if !known {
			return false
		}

		sum += weights[i] * max(ratio, 0)
	}

	if sum <= 0 {
		return false
	}

	for i := range parts {
		parts[i].active = active * weights[i] * max(activity[i].Or(0), 0) / sum
	}

	return true
}

// engineActivity returns the instance's graphics engine activity. Without a compute instance
// nothing can run: it is 0.
func engineActivity(gi *gpu.GPUInstance) gpu.Opt[float64] {
	if gi.IsEmpty() {
		return gpu.Some(0.0)
	}

	return gi.Activity.GraphicsEngine
}

// smShares returns the instances' shares of the SMs of the largest profile. Their sum is at most 1.
func smShares(g *gpu.GPU) []float64 {
	largest := g.SMs.Or(0)
	if len(g.Profiles) > 0 {
		largest = 0
		for i := range g.Profiles {
			largest = max(largest, g.Profiles[i].SMs)
		}
	}

	shares := make([]float64, len(g.Instances))
	total := 0

	for i := range g.Instances {
		total += g.Instances[i].SMs.Or(0)
	}

	largest = max(largest, total)
	if largest == 0 {
		return shares
	}

	for i := range g.Instances {
		shares[i] = float64(g.Instances[i].SMs.Or(0)) / float64(largest)
	}

	return shares
}

// counterGrowth returns by how much the GPU's counter grew; a counter that fell has restarted at 0.
func counterGrowth(before, now gpu.Opt[float64]) float64 {
	from, ok := before.Get()
	to, okNow := now.Get()

	switch {
	case !ok || !okNow:
		return 0
	case to < from:
		return to
	}

	return to - from
}

// shareEnergy adds to each instance its share of the energy that the GPU spent since the last
// reading with an energy counter. The counter of a new instance begins at 0 with this reading.
func (t *trackedGPU) shareEnergy(g *gpu.GPU, spent float64, since, at time.Time) {
	rest := spent
	gpuWatts := g.Readings.PowerWatts.Or(0)
	energyShare := func(power gpu.Opt[float64]) float64 {
		if gpuWatts <= 0 {
			return 0
		}

		return spent * power.Or(0) / gpuWatts
	}

	for i := range g.Instances {
		gi := &g.Instances[i]
		if !gi.SMs.Present() {
			continue
		}

		total := &findInstance(t.layout.instances, gi.ID).EnergyJoules

		counter, begun := total.Get()
		if !begun {
			counter.Since = at
		} else {
			joules := energyShare(gi.PowerWatts)
			counter.Value += joules
			rest -= joules
			t.exclusive.addEnergy(gpu.IDOfInstance(g.UUID, gi), joules, since, at)

			// A compute instance that is all of its GPU instance has the same energy.
			for c := range gi.ComputeInstances {
				ci := &gi.ComputeInstances[c]
				if gi.IsSplit() {
					joules = energyShare(ci.PowerWatts)
				}

				t.exclusive.addEnergy(gpu.IDOfCompute(g.UUID, gi, ci), joules, since, at)
			}
		}

		*total = gpu.Some(counter)
	}

	unallocated, begun := t.totals.EnergyUnallocatedJoules.Get()
	if !begun {
		unallocated = gpu.Counter{Since: at}
	} else {
		unallocated.Value += dropRounding(spent, rest)
	}

	t.totals.EnergyUnallocatedJoules = gpu.Some(unallocated)
}
