package advise

import "time"

// We take what was not measured for unknown, and neither for nothing nor for the worst case: from the
// worst case no advice would follow.

// sampleLength is for how long SM and DRAM activity must have been read, at least, to say how much of a
// device kernels fill. An answer from such a sample is provisional.
const sampleLength = time.Hour

// noActivityText says what is unknown without SM activity, and how to measure it.
const noActivityText = "SM or memory activity could not be read, or contradicts busy time: how " +
	"much of the GPU kernels fill is unknown. An hour in which they run and it is read gives a " +
	"provisional answer: give mig-exporter a DCGM (--dcgm.address), or dcgm-exporter a counters " +
	"file with DCGM_FI_PROF_SM_ACTIVE and DCGM_FI_PROF_DRAM_ACTIVE"

// isUnknown reports whether the reason is that something was not measured.
func (r Reason) isUnknown() bool { return r == ReasonNoActivity || r == ReasonNoBusyTime }

// isNeverBusy reports whether we have seen no kernel: the driver's own work explains how busy each minute
// was.
func (w *workload) isNeverBusy() bool { return w.Busy.Max <= idleShare }

// isSampled reports whether SM and DRAM activity were read only in a part of the observed time.
func (w *workload) isSampled() bool { return isUnread(w.ActivityUnread, w.Busy.total()) }

// isActivityUnread reports whether it is unknown how much of the device kernels fill: none was
// measured, or for too short a time.
func (w *workload) isActivityUnread(now time.Time) bool {
	if w.isSampled() {
		return w.Width.total() == 0 || float64(w.sums(now).Measured) < sampleLength.Seconds()
	}

	return w.Width.total() == 0 && !w.isNeverBusy()
}

// measuredDays counts the days of the last keptDays in which SM and DRAM activity were read.
func (w *workload) measuredDays(now time.Time) int {
	return w.countDays(now, func(d *daySums) bool { return d.Measured > 0 })
}
