package sim

import (
	"math"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// CountersOf is the entity that counters belong to: a GPU, one of its GPU instances, or a compute
// instance of that.
type CountersOf struct {
	GPU      int
	Instance gpu.Opt[gpu.InstanceID] // absent for a GPU
	Compute  gpu.Opt[gpu.ComputeID]  // absent for a GPU and for a GPU instance
}

// aboveOne is what activity-above-one adds to every ratio.
const aboveOne = 1

// GPM returns the metric of the driver's GPM with an id (nvml.h, nvmlGpmMetricId_t) over the window
// between two readings of counters of one entity: percent, or MiB per second. It is false for a
// metric that the entity does not have.
func GPM(before, after Counters, id uint32) (float64, bool) {
	m, known := gpmGrowthOf(&before, &after, id)
	if !known {
		return 0, false
	}

	value := m.growth * m.unit / after.Time.Sub(before.Time).Seconds()

	switch {
	case after.Odd == OddNaN:
		return math.NaN(), m.has
	case after.Odd == OddAboveOne && id < 20:
		return 100*aboveOne + value, m.has
	}

	const digits = 1e6 // what adding up leaves behind these is noise: 100.00000000000001 %

	return math.Round(value*digits) / digits, m.has
}

// gpmGrowth is the growth of a counter, and how a metric follows from it.
type gpmGrowth struct {
	growth float64 // in the window
	unit   float64 // the value of the metric if the counter grows by 1 a second: 100 for percent
	has    bool    // whether the entity has the metric
}

// gpmGrowthOf finds the counter behind a metric. It is false for an id that no device has.
func gpmGrowthOf(before, after *Counters, id uint32) (m gpmGrowth, known bool) {
	const mebi = 1 << 20

	a := &before.Activity
	b := &after.Activity
	isGPU := !after.Of.Instance.Present()
	isCompute := after.Of.Compute.Present()

	switch id {
	case 1:
		return gpmGrowth{b.Graphics - a.Graphics, 100, true}, true
	case 2:
		return gpmGrowth{b.SM - a.SM, 100, true}, true
	case 3:
		return gpmGrowth{b.Occupancy - a.Occupancy, 100, true}, true
	case 5:
		return gpmGrowth{b.Tensor - a.Tensor, 100, true}, true
	case 10:
		return gpmGrowth{b.DRAM - a.DRAM, 100, !isCompute}, true
	case 11:
		return gpmGrowth{b.FP64 - a.FP64, 100, true}, true
	case 12:
		return gpmGrowth{b.FP32 - a.FP32, 100, true}, true
	case 13:
		return gpmGrowth{b.FP16 - a.FP16, 100, true}, true
	case 20, 21: // of GPU instances, too, in the output of another exporter
		return gpmGrowth{after.PCIe - before.PCIe, 1.0 / mebi, !isCompute}, true
	case 60, 61:
		return gpmGrowth{after.NVLink - before.NVLink, 1.0 / mebi, isGPU}, true
	}

	kind, engine, known := mediaMetric(id)
	if !known {
		return m, false
	}

	return gpmGrowth{b.Media[kind] - a.Media[kind], 100, engine < mediaCounts(after.Engines)[kind]}, true
}
