package sim

import (
	"math"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// CountersOf is the entity that counters belong to: a GPU, one of its GPU instances, or a compute instance of that.
type CountersOf struct {
	GPU      int
	Instance gpu.Opt[gpu.InstanceID] // absent for a GPU
	Compute  gpu.Opt[gpu.ComputeID]  // absent for a GPU and for a GPU instance
}

// aboveOne is what activity-above-one adds to every ratio.
const aboveOne = 1

// GPM is the metric of the driver's GPM with an id (nvml.h, nvmlGpmMetricId_t) over the window between two readings of
// counters of one entity: percent, or MiB per second. It is false for a metric that the entity does not have.
func GPM(before, after Counters, id uint32) (float64, bool) {
	const mebi = 1 << 20
	a := &before.Activity
	b := &after.Activity
	whole := !after.Of.Instance.Present()
	var from, to, unit float64
	has := true

	switch id {
	case 1:
		from = a.Graphics
		to = b.Graphics
		unit = 100
	case 2:
		from = a.SM
		to = b.SM
		unit = 100
	case 3:
		from = a.Occupancy
		to = b.Occupancy
		unit = 100
	case 5:
		from = a.Tensor
		to = b.Tensor
		unit = 100
	case 10:
		from, to, unit, has = a.DRAM, b.DRAM, 100, !after.Of.Compute.Present()
	case 11:
		from = a.FP64
		to = b.FP64
		unit = 100
	case 12:
		from = a.FP32
		to = b.FP32
		unit = 100
	case 13:
		from = a.FP16
		to = b.FP16
		unit = 100
	case 20, 21: // of GPU instances, too, in the output of another exporter
		from, to, unit, has = before.PCIe, after.PCIe, 1.0/mebi, !after.Of.Compute.Present()
	case 60, 61:
		from = before.NVLink
		to = after.NVLink
		unit = 1.0 / mebi
		has = whole
	default:
		kind, engine, known := mediaMetric(id)
		if !known {
			return 0, false
		}

		from, to, unit, has = a.Media[kind], b.Media[kind], 100, engine < mediaCounts(after.Engines)[kind]
	}

	switch {
	case after.Odd == OddNaN:
		return math.NaN(), has
	case after.Odd == OddAboveOne && id < 20:
		return 100*aboveOne + (to-from)*unit/after.Time.Sub(before.Time).Seconds(), has
	}

	const digits = 1e6 // what adding up leaves behind these is noise: 100.00000000000001 %

	return math.Round((to-from)*unit/after.Time.Sub(before.Time).Seconds()*digits) / digits, has
}
