package poll

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// profilerReading is the last answer of the profiler for one GPU.
type profilerReading struct {
	gpu.Profiling
	requestedAt      time.Time // by the loop's clock; zero: there is no answer
	complete         bool      // see reportsAll
	anomaliesCounted bool      // its anomalies are in the GPU's total
}

// addActivity adds the profiler's activity to a reading that has none from the driver, counts the
// anomalies, and computes the activity of a MIG GPU from its instances.
func (t *trackedGPU) addActivity(g *gpu.GPU, at time.Time) {
	fromDriver := g.ActivitySource != gpu.ActivityUnknown
	if !fromDriver {
		t.applyProfiling(g, at)
	}

	if g.ActivitySource == gpu.ActivityUnknown {
		return
	}

	// Several readings can have the same answer of the profiler, whose anomalies count once.
	if fromDriver || !t.profiling.anomaliesCounted {
		t.countAnomalies(g, at)
	}

	t.profiling.anomaliesCounted = t.profiling.anomaliesCounted || !fromDriver

	rollUpActivity(g)
}

// applyProfiling copies the profiler's last answer to the GPU and its instances. The answer is for
// the layout of the last Snapshot and came before this reading began: if the layout generation is
// still the same, the GPU was not repartitioned in between.
func (t *trackedGPU) applyProfiling(g *gpu.GPU, at time.Time) {
	p := &t.profiling
	if p.requestedAt.IsZero() || p.LayoutGeneration != g.MIG.LayoutGeneration ||
		at.Sub(p.requestedAt) >= t.maxGap {
		return
	}

	g.ActivitySource = p.Source
	g.Activity = p.GPU
	g.Rates = p.Rates
	g.InvalidActivity = p.Invalid

	for i := range g.Instances {
		gi := &g.Instances[i]
		gi.Activity = p.Instances[gi.ID]

		for c := range gi.ComputeInstances {
			ci := &gi.ComputeInstances[c]
			ci.Activity = p.ComputeInstances[[2]uint32{uint32(gi.ID), uint32(ci.ID)}]
		}
	}
}

// countAnomalies adds the impossible values of one reading to the total: ratios above 1, and values
// that are no numbers.
func (t *trackedGPU) countAnomalies(g *gpu.GPU, at time.Time) {
	above := 0
	for d := range g.DistinctDevices() {
		above += countAboveOne(&d.Activity)
	}

	counter, begun := t.totals.ActivityAnomalies.Get()
	if !begun {
		counter.Since = at
	}

	counter.Value += float64(above + g.InvalidActivity)
	t.totals.ActivityAnomalies = gpu.Some(counter)
}

// ratioTolerance is by how much rounding can raise a ratio above 1.
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

// rollUpActivity computes the activity of a MIG GPU from its instances. Each counts by its SMs, or
// for DRAM by its memory slices, relative to the largest profile. (NVIDIA's example: two 3g
// instances at 98.6 % are 2*42/98*0.986 = 84.5 % of an A100.) A ratio is absent if an instance that
// has a compute instance does not report it: a partial sum would look like the whole.
func rollUpActivity(g *gpu.GPU) {
	if !g.MIG.Enabled.Or(false) || !hasComputeInstances(g) {
		return
	}

	g.ActivityRollup = true
	bySM := smShares(g)
	byMemory := memoryShares(g)
	dram := &g.Activity.DRAM

	for n, ratio := range g.Activity.All() {
		weights := bySM
		if ratio == dram {
			weights = byMemory
		}

		*ratio = weightedRatio(g, n, weights)
	}
}

// weightedRatio returns the weighted sum of ratio n of Activity.All over the GPU instances; absent
// if an instance does not have it, or a weight is missing.
func weightedRatio(g *gpu.GPU, n int, weights []float64) gpu.Opt[float64] {
	sum := 0.0

	for i := range g.Instances {
		gi := &g.Instances[i]
		if gi.IsEmpty() {
			continue
		}

		ratio, ok := gi.Activity.All()[n].Get()
		if !ok || weights == nil || weights[i] == 0 {
			return gpu.None[float64]()
		}

		sum += ratio * weights[i]
	}

	return gpu.Some(sum)
}

// hasComputeInstances reports whether any GPU instance has a compute instance, or may have one that
// we don't see. Nothing can run on a GPU instance without one.
func hasComputeInstances(g *gpu.GPU) bool {
	for i := range g.Instances {
		if !g.Instances[i].IsEmpty() {
			return true
		}
	}

	return false
}

// memoryShares returns the instances' shares of the memory slices of the largest profile; nil if
// the driver does not report how many there are.
func memoryShares(g *gpu.GPU) []float64 {
	largest := 0
	for i := range g.Profiles {
		largest = max(largest, g.Profiles[i].MemorySlices)
	}

	if largest == 0 {
		return nil
	}

	shares := make([]float64, len(g.Instances))
	for i := range g.Instances {
		shares[i] = float64(g.Instances[i].MemorySlices.Or(0)) / float64(largest)
	}

	return shares
}
