package sim

import "math"

// CountersOf tells whose counters they are.
type CountersOf int

// The entities that have counters.
const (
	OfBoard CountersOf = iota
	OfInstance
	OfCompute
)

// aboveOne is what activity-above-one adds to every ratio.
const aboveOne = 1

// GPM is the metric of the driver's GPM with an id (nvml.h, nvmlGpmMetricId_t) over the window between two readings of
// counters: percent, or MiB per second. It is false for what the entity has no such metric. Of the counters of two entities
// it makes a number all the same, which means nothing.
func GPM(before, after Counters, id uint32) (float64, bool) {
	const mebi = 1 << 20
	a, b := &before.Activity, &after.Activity
	board := after.Of == OfBoard
	var from, to, unit float64
	has := true
	switch id {
	case 1:
		from, to, unit = a.Graphics, b.Graphics, 100
	case 2:
		from, to, unit = a.SM, b.SM, 100
	case 3:
		from, to, unit = a.Occupancy, b.Occupancy, 100
	case 5:
		from, to, unit = a.Tensor, b.Tensor, 100
	case 10:
		from, to, unit, has = a.DRAM, b.DRAM, 100, after.Of != OfCompute
	case 11:
		from, to, unit = a.FP64, b.FP64, 100
	case 12:
		from, to, unit = a.FP32, b.FP32, 100
	case 13:
		from, to, unit = a.FP16, b.FP16, 100
	case 20:
		from, to, unit, has = before.PCIeTransmitted, after.PCIeTransmitted, 1.0/mebi, board
	case 21:
		from, to, unit, has = before.PCIeReceived, after.PCIeReceived, 1.0/mebi, board
	case 60:
		from, to, unit, has = before.NVLinkReceived, after.NVLinkReceived, 1.0/mebi, board
	case 61:
		from, to, unit, has = before.NVLinkTransmitted, after.NVLinkTransmitted, 1.0/mebi, board
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
