package advise

import (
	"math"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The busiest minutes need not be those with the widest kernels: p99 of busy time times p95 of
// stretch is the load of a minute that may never have come. So the load of each minute in each
// smaller slice is counted when the minute ends: its busy time times the stretch that its own
// kernels let expect.

// addLoads counts a window that ended at a time in the slices that are smaller than the device, by
// the highest busy time that they should have.
func (d *device) addLoads(at time.Time, target float64) {
	v := &d.open
	w := d.workload

	// Where a sample of the minute lacks a reading, v counts all SMs and all bandwidth: a minute
	// that is left out would count as one that fits.
	if v.measured == 0 || len(d.hour.queues) == 0 {
		return
	}

	last := d.meanOfLast()
	weight := w.weight(at) * v.observed
	w.InSlices += float32(weight)

	for i := range d.hour.queues {
		q := &d.hour.queues[i]
		use := w.queueFor(q, len(d.hour.queues))

		load := loadIn(q.slice, v.busy/v.observed, v.sm/v.observed, v.dram/v.observed)
		if load > target {
			use.Passed += float32(weight)
		}

		span := use.spanAt(spanOf(at))
		span.lose(v.measuredBusy, loadIn(
			q.slice,
			v.measuredBusy/v.measured,
			v.measuredSM/v.measured,
			v.measuredDRAM/v.measured,
		))

		mean10 := loadIn(q.slice, float64(last.busy), float64(last.sm), float64(last.dram))
		span.Most10 = max(span.Most10, uint8(min(math.Ceil(mean10*100-1e-6), math.MaxUint8)))
	}
}

// loadIn returns how busy a slice is with kernels that keep a device busy for a share of a time,
// and have these means of its SMs and bandwidth in it.
func loadIn(slice Slice, busy, sm, dram float64) float64 {
	if busy <= 0 {
		return 0
	}

	return busy * StretchOf(Kernels{Width: min(sm/busy, 1), Bandwidth: min(dram/busy, 1)}, slice).Expected
}

// loadsKnown reports whether at least half of what was observed is counted in slices: not if an
// older version has seen the rest, or if it was measured in a sample.
func (w *workload) loadsKnown() bool {
	return !w.isSampled() && float64(w.InSlices) >= w.Busy.total()/2
}

// busyIn returns how busy a workload keeps a profile that stretches its kernels: at p99 and in the
// busiest ten minutes, above 1 if it falls behind. If the minutes were counted in the profile, p99
// is the target or less, unless they passed it; strictly, each minute may have had the widest
// kernels.
func (e *Evidence) busyIn(p *gpu.Profile, stretch float64, strict bool, o Options) (p99, most10 float64) {
	p99 = e.BusyP99 * stretch
	most10 = e.Busy10Minutes * stretch

	if strict || !e.loadsKnown || e.queueOf == nil {
		return p99, most10
	}

	use := e.queueOf(p.SMs, p.MemorySlices)
	if use == nil {
		return p99, most10
	}

	if use.Passed > passedShare*e.inSlices {
		p99 = max(p99, o.TargetBusy*aboveTarget)
	} else {
		p99 = min(p99, o.TargetBusy)
	}

	return p99, use.most10(e.now)
}

// aboveTarget times Options.TargetBusy stands for a p99 of which we only know that it is above the
// target.
const aboveTarget = 1.001

// Bound says whether a figure is the true one, or a bound of it.
type Bound string

// The bounds. The zero value is a figure that is no bound.
const (
	AtMost  Bound = "at most"
	AtLeast Bound = "at least"
)

// BoundOfBusy returns what Predicted.BusyP99, or that figure as Decided.Ratio, is. A figure that
// was measured and happens to have the value of a bound counts as one.
func BoundOfBusy(p99 float64) Bound {
	switch target := DefaultOptions().TargetBusy; p99 {
	case round3(target):
		return AtMost
	case round3(target * aboveTarget):
		return AtLeast
	default:
		return ""
	}
}

// passedShare is the share of the minutes that may pass Options.TargetBusy.
const passedShare = 0.01

// most10 returns how busy the slice would have been in the busiest ten minutes of the days that are
// kept.
func (u *queueUse) most10(now time.Time) float64 {
	most := uint8(0)

	for _, s := range u.Spans {
		if int32(s.Number) > spanOf(now)-keptSpans {
			most = max(most, s.Most10)
		}
	}

	return float64(most) / 100
}
