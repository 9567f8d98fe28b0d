package poll

import (
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// No sensor exists below the GPU, so an instance's power is an estimate. Active power (the GPU's - idle, never negative)
// is shared by w*u / sum(w*u), w the instance's share of the SMs of the largest profile and u its graphics engine
// activity; idle power by w. What is left is unallocated, so that the parts add up to the GPU.

// idlePower learns a GPU's idle power: the lowest seen while nothing ran, a default for the model until then.
type idlePower struct {
	lowest gpu.Opt[float64]
}

// defaultIdleShare is the idle power of a GPU whose model has no default, as a share of its power limit.
const defaultIdleShare = 0.1

// defaultIdleWatts lists idle GPU power by a part of the model's name, the first match counts. They serve until an
// idle moment was seen. Sources: the A100 PCIe figure is a published nvidia-smi capture (34 W); the others are what
// idle GPUs of that kind commonly show and are marked as defaults in the docs.
func defaultIdleWatts(name string) (float64, bool) {
	for _, d := range []struct {
		part  string
		watts float64
	}{
		{"A100-PCIE", 34}, {"A100", 52}, {"A30", 28}, {"H100 PCIe", 46}, {"H100 NVL", 60}, {"H100", 70}, {"H200", 76},
		{"RTX PRO 6000", 32},
	} {
		if strings.Contains(name, d.part) {
			return d.watts, true
		}
	}
	return 0, false
}

// update takes one reading in and returns the idle power, absent where nothing is known of it.
func (p *idlePower) update(g *gpu.GPU) gpu.Opt[float64] {
	gpuWatts, hasWatts := g.Readings.PowerWatts.Get()
	procs, hasProcesses := g.Readings.Processes.Get()
	// A list that is empty because nothing may be seen is told apart by the driver's own utilization, where it has one.
	if hasWatts && gpuWatts > 0 && hasProcesses && len(procs) == 0 && g.Readings.Utilization.Or(0) == 0 {
		if low, ok := p.lowest.Get(); !ok || gpuWatts < low {
			p.lowest = gpu.Some(gpuWatts)
		}
	}
	if p.lowest.Present() {
		return p.lowest
	}
	if w, ok := defaultIdleWatts(g.Name); ok {
		return gpu.Some(w)
	}
	if limit, ok := g.Readings.PowerLimitWatts.Get(); ok {
		return gpu.Some(limit * defaultIdleShare)
	}
	return gpu.None[float64]()
}

// estimatePower shares the GPU's power and energy among the GPU instances and the parts of split ones.
func (t *trackedGPU) estimatePower(g *gpu.GPU, at time.Time) {
	idle := t.idle.update(g)
	g.Power = gpu.PowerEstimate{IdleWatts: idle}
	defer t.writeEnergy(g)
	if t.hasMIG && !g.MIG.Enabled.Present() {
		return // the next reading that tells the mode shares the energy since the last one that did
	}
	boardJ, before := g.Readings.EnergyJoules, t.energyReadAt
	spent := counterGrowth(t.energyCounter, boardJ)
	if boardJ.Present() {
		t.energyCounter, t.energyReadAt = boardJ, at
	}
	t.holdings.addEnergy(deviceKey{}, spent, before, at)
	if !g.MIG.Enabled.Or(false) {
		t.totals.EnergyUnallocatedJoules = gpu.None[gpu.Counter]()
		return
	}
	gpuWatts, ok := g.Readings.PowerWatts.Get()
	g.Power.Method = gpu.PowerUnallocated
	if ok {
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
		g.Power.UnallocatedWatts = gpu.Some(max(rest, 0))
	}
	if boardJ.Present() {
		t.addEnergy(g, spent, before, at)
	}
}

// writeEnergy writes the energy of the instances, over a failed reading, too.
func (t *trackedGPU) writeEnergy(g *gpu.GPU) {
	for i := range g.Instances {
		g.Instances[i].EnergyJoules = t.instances[g.Instances[i].ID].energy
	}
}

// devicePower is the power of a device: what it draws without work, and the rest.
type devicePower struct{ idle, active float64 }

func (w devicePower) total() float64 { return w.idle + w.active }

// sharePower splits GPU power among the instances; idle is the part of it that is drawn without work.
func sharePower(g *gpu.GPU, gpuWatts, idle float64) ([]devicePower, gpu.PowerMethod) {
	parts := make([]devicePower, len(g.Instances))
	weights := smShares(g)
	work := make([]gpu.Opt[float64], len(g.Instances))
	for i := range g.Instances {
		if g.Instances[i].SMs.Present() {
			work[i] = engineActivity(&g.Instances[i])
		}
		parts[i].idle = idle * weights[i]
	}
	if !shareActive(parts, weights, work, gpuWatts-idle) {
		return parts, gpu.PowerUnallocated
	}
	return parts, gpu.PowerByActivity
}

// sharePowerOfInstance splits the power of a split GPU instance among its compute instances by the same rule. What is not
// shared, as the active power if the activity of one is unknown, is no compute instance's.
func sharePowerOfInstance(gi *gpu.GPUInstance, of devicePower) {
	parts := make([]devicePower, len(gi.ComputeInstances))
	weights := make([]float64, len(gi.ComputeInstances))
	work := make([]gpu.Opt[float64], len(gi.ComputeInstances))
	total := 0
	for c := range gi.ComputeInstances {
		total += gi.ComputeInstances[c].SMs.Or(0)
	}
	total = max(total, gi.SMs.Or(0))
	for c := range gi.ComputeInstances {
		ci := &gi.ComputeInstances[c]
		if sms, ok := ci.SMs.Get(); ok && total > 0 {
			weights[c] = float64(sms) / float64(total)
			work[c] = ci.Activity.GraphicsEngine
		}
		parts[c].idle = of.idle * weights[c]
	}
	shareActive(parts, weights, work, of.active)
	for c := range gi.ComputeInstances {
		if gi.ComputeInstances[c].SMs.Present() {
			gi.ComputeInstances[c].PowerWatts = gpu.Some(parts[c].total())
		}
	}
}

// shareActive shares active power by weight and work. It reports false, and shares nothing, if the work of one part is unknown
// or none does any.
func shareActive(parts []devicePower, weights []float64, work []gpu.Opt[float64], active float64) bool {
	sum := 0.0
	for i := range parts {
		activity, known := work[i].Get()
		if !known {
			return false
		}
		sum += weights[i] * max(activity, 0)
	}
	if sum <= 0 {
		return false
	}
	for i := range parts {
		parts[i].active = active * weights[i] * max(work[i].Or(0), 0) / sum
	}
	return true
}

// engineActivity is the instance's graphics engine activity. One without a compute instance does nothing.
func engineActivity(gi *gpu.GPUInstance) gpu.Opt[float64] {
	if len(gi.ComputeInstances) == 0 {
		return gpu.Some(0.0)
	}
	return gi.Activity.GraphicsEngine
}

// smShares are the instances' shares of the SMs of the largest profile; together they are at most 1.
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

// counterGrowth is what the GPU's counter grew by; it started again where it fell.
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

// addEnergy gives each instance its share of the energy spent since the last reading. One that is new had no part in
// it: its counter begins at 0 now.
func (t *trackedGPU) addEnergy(g *gpu.GPU, spent float64, before, at time.Time) {
	rest := spent
	gpuWatts := g.Readings.PowerWatts.Or(0)
	share := func(power gpu.Opt[float64]) float64 {
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
		it := t.instances[gi.ID]
		counter, begun := it.energy.Get()
		if !begun {
			counter.Since = at
		} else {
			own := share(gi.PowerWatts)
			counter.Value += own
			rest -= own
			t.holdings.addEnergy(instanceDeviceKey(gi), own, before, at)
			for c := range gi.ComputeInstances {
				ci := &gi.ComputeInstances[c]
				if gi.IsSplit() {
					own = share(ci.PowerWatts)
				}
				t.holdings.addEnergy(computeDeviceKey(gi, ci), own, before, at)
			}
		}
		it.energy = gpu.Some(counter)
	}
	unallocated, begun := t.totals.EnergyUnallocatedJoules.Get()
	if !begun {
		unallocated = gpu.Counter{Since: at}
	} else {
		unallocated.Value += max(rest, 0)
	}
	t.totals.EnergyUnallocatedJoules = gpu.Some(unallocated)
}
