package advise

import (
	"math"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The busiest minutes need not be those with the widest kernels: the p99 of busy time times the p95 of
// stretch is the load of a minute that may never have come. So when a minute ends, we count its load
// in each smaller slice: its busy time times the expected stretch of its own kernels.

// addLoads counts the open window, which ends at a time, in the slices that are smaller than the
// device. target is Options.TargetBusy.
func (d *device) addLoads(at time.Time, target float64) {
	v := &d.open
	w := d.workload

	// If a poll of the minute lacks a reading, v.sm and v.dram count all SMs and all bandwidth for it.
	// We do not leave such a minute out: it would count as one that fits.
	if v.measured == 0 || len(d.hour.queues) == 0 {
		return
	}

	last := d.lastTenMinutes()
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
		span.addWork(v.measuredBusy, loadIn(
			q.slice,
			v.measuredBusy/v.measured,
			v.measuredSM/v.measured,
			v.measuredDRAM/v.measured,
		))

		mean10 := loadIn(q.slice, float64(last.busy), float64(last.sm), float64(last.dram))
		span.Most10 = max(span.Most10, uint8(min(math.Ceil(mean10*100-1e-6), math.MaxUint8)))
	}
}

// loadIn returns how busy a slice would be in a time in which a device was busy for a share, and had
// these means of SM and DRAM activity. It is above 1 if the slice falls behind.
func loadIn(slice Slice, busy, sm, dram float64) float64 {
	if busy <= 0 {
		return 0
	}

	return busy * StretchOf(kernelsOf(busy, sm, dram), slice).Expected
}

// loadsKnown reports whether addLoads has counted half of what was observed at least. It has not if an
// older version observed the rest, or if SM activity was read only for a part of the time.
func (w *workload) loadsKnown() bool {
	return !w.isSampled() && float64(w.InSlices) >= w.Busy.total()/2
}

// busyIn returns how busy a workload keeps a profile that stretches its kernels: at p99, and in the
// busiest ten minutes. Both are above 1 if it falls behind.
func (e *Evidence) busyIn(p *gpu.Profile, stretch float64, strict bool, o Options) (p99, busy10 float64) {
	// Strictly, each minute may have had the widest kernels.
	p99 = e.BusyP99 * stretch
	busy10 = e.Busy10Minutes * stretch

	if strict || !e.loadsKnown || e.queueOf == nil {
		return p99, busy10
	}

	use := e.queueOf(p.SMs, p.MemorySlices)
	if use == nil {
		return p99, busy10
	}

	// We have counted how many minutes pass the target, so we know on which side of it p99 is.
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

// most10 returns how busy the slice would have been in the busiest ten minutes that are kept.
func (u *queueUse) most10(now time.Time) float64 {
	most := uint8(0)

	for i := range u.Spans {
		if s := &u.Spans[i]; s.isKept(now) {
			most = max(most, s.Most10)
		}
	}

	return float64(most) / 100
}
