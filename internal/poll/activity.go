package poll

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// profilerReading is what the profiler said last of one GPU.
type profilerReading struct {
	gpu.Profiling
	requestedAt      time.Time // by the loop's clock; zero: it has said nothing
	anomaliesCounted bool      // what is odd in it has been counted
}

// addActivity completes a reading with the activity that the driver itself does not tell, and rolls the instances' up.
func (t *trackedGPU) addActivity(g *gpu.GPU, at time.Time) {
	own := g.ActivitySource != gpu.ActivityUnknown
	if !own {
		t.applyProfiling(g, at)
	}
	if g.ActivitySource == gpu.ActivityUnknown {
		return
	}
	if own || !t.profiling.anomaliesCounted {
		t.profiling.anomaliesCounted = !own
		t.countAnomalies(g, at)
	}
	rollUpActivity(g)
}

// applyProfiling lays what the profiler said to the GPU and its instances. It was asked for the layout of the last Snapshot
// and has answered before this reading began: where the layout is still the same, nothing was repartitioned in between.
func (t *trackedGPU) applyProfiling(g *gpu.GPU, at time.Time) {
	p := &t.profiling
	if p.requestedAt.IsZero() || p.LayoutGeneration != g.MIG.LayoutGeneration || at.Sub(p.requestedAt) >= t.maxGap {
		return
	}
	g.ActivitySource, g.Activity, g.Rates, g.InvalidActivity = p.Source, p.Board, p.Rates, p.Invalid
	for i := range g.Instances {
		gi := &g.Instances[i]
		gi.Activity = p.Instances[gi.ID]
		for c := range gi.ComputeInstances {
			ci := &gi.ComputeInstances[c]
			ci.Activity = p.ComputeInstances[[2]uint32{uint32(gi.ID), uint32(ci.ID)}]
		}
	}
}

// countAnomalies counts the values of one reading that cannot be.
func (t *trackedGPU) countAnomalies(g *gpu.GPU, at time.Time) {
	above := countAboveOne(&g.Activity)
	for i := range g.Instances {
		gi := &g.Instances[i]
		above += countAboveOne(&gi.Activity)
		for c := range gi.ComputeInstances {
			above += countAboveOne(&gi.ComputeInstances[c].Activity)
		}
	}
	counter, begun := t.totals.ActivityAnomalies.Get()
	if !begun {
		counter.Since = at
	}
	counter.Value += float64(above + g.InvalidActivity)
	t.totals.ActivityAnomalies = gpu.Some(counter)
}

// ratioTolerance is what a ratio of 1 may be off by after a source has divided.
const ratioTolerance = 1e-9

func countAboveOne(a *gpu.Activity) int {
	n := 0
	for _, ratio := range a.All() {
		if ratio.Or(0) > 1+ratioTolerance {
			n++
		}
	}
	return n
}

// rollUpActivity makes a MIG GPU's activity out of its instances': by their SMs, and that of the memory by their memory slices,
// of those of the largest profile. (NVIDIA's example: two 3g at 98.6 % are 2*42/98*0.986 = 84.5 % of an A100.) A ratio
// that one instance with a compute instance does not tell is absent: a part of the sum would pass for all of it.
func rollUpActivity(g *gpu.GPU) {
	if !g.MIG.Enabled.Or(false) || !hasComputeInstances(g) {
		return
	}
	g.ActivityRollup = true
	bySM, byMemory := smShares(g), memoryShares(g)
	dram := &g.Activity.DRAM
	for m, whole := range g.Activity.All() {
		weights := bySM
		if whole == dram {
			weights = byMemory
		}
		*whole = weightedRatio(g, m, weights)
	}
}

// weightedRatio is one ratio of the GPU, the m-th of Activity.
func weightedRatio(g *gpu.GPU, m int, weights []float64) gpu.Opt[float64] {
	sum := 0.0
	for i := range g.Instances {
		gi := &g.Instances[i]
		if len(gi.ComputeInstances) == 0 {
			continue // nothing can run on it
		}
		ratio, ok := gi.Activity.All()[m].Get()
		if !ok || weights == nil || weights[i] == 0 {
			return gpu.None[float64]()
		}
		sum += ratio * weights[i]
	}
	return gpu.Some(sum)
}

// hasComputeInstances reports whether any GPU instance has a compute instance. A GPU without one has no more than its own counters.
func hasComputeInstances(g *gpu.GPU) bool {
	for i := range g.Instances {
		if len(g.Instances[i].ComputeInstances) > 0 {
			return true
		}
	}
	return false
}

// memoryShares are the instances' shares of the memory slices of the largest profile; nil where the driver does not tell
// how many there are.
func memoryShares(g *gpu.GPU) []float64 {
	most := 0
	for i := range g.Profiles {
		most = max(most, g.Profiles[i].MemorySlices)
	}
	if most == 0 {
		return nil
	}
	shares := make([]float64, len(g.Instances))
	for i := range g.Instances {
		shares[i] = float64(g.Instances[i].MemorySlices.Or(0)) / float64(most)
	}
	return shares
}
