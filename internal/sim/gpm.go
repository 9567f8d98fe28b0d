package sim

import (
	"math"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// CountersOf names the entity that counters belong to: a GPU, a GPU instance, or a compute instance.
type CountersOf struct {
	GPU      int
	Instance gpu.Opt[gpu.InstanceID] // absent for a GPU
	Compute  gpu.Opt[gpu.ComputeID]  // absent for a GPU and for a GPU instance
}

// aboveOne is what FaultActivityAbove adds to every ratio.
const aboveOne = 1

// GPM returns a metric of the driver's GPM by its id (nvml.h, nvmlGpmMetricId_t), in percent or in
// MiB per second. The metric is over the time between two readings of the counters of one entity. It
// returns false if the entity does not have the metric.
func GPM(before, after Counters, id uint32) (float64, bool) {
	m, known := gpmGrowthOf(&before, &after, id)
	if !known {
		return 0, false
	}

	value := m.growth * m.unit / after.Time.Sub(before.Time).Seconds()

	switch {
	case after.Odd == OddNaN:
		return math.NaN(), m.has
	case after.Odd == OddAboveOne && id < 20: // the ids below 20 are ratios in percent
		return 100*aboveOne + value, m.has
	}

	return round(value), m.has // without noise of adding up: 100.00000000000001 %
}

// gpmGrowth is how a counter grew, and how a metric follows from that.
type gpmGrowth struct {
	growth float64 // between the two readings
	unit   float64 // the value of the metric if the counter grows by 1 a second: 100 for percent
	has    bool    // whether the entity has the metric
}

// gpmGrowthOf finds the counter behind a metric. known is false for an id that no device has.
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
	case 20, 21: // PCIe: another exporter's output shows it for GPU instances, too
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
