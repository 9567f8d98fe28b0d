package advise

import "time"

// What was not measured is unknown: it is neither taken for nothing nor for the worst case, since a
// bound that holds only as the worst case advises nothing.

// sampleLength is how much SM and DRAM activity must have been read to say how much of a device
// kernels fill. An answer from a sample is provisional.
const sampleLength = time.Hour

// noActivityText says what is unknown without SM activity, and how to measure it.
const noActivityText = "SM or memory activity could not be read, or contradicts busy time: how " +
	"much of the GPU kernels fill is unknown. An hour in which they run and it is read gives a " +
	"provisional answer: give mig-exporter a DCGM (--dcgm.address), or dcgm-exporter a counters " +
	"file with DCGM_FI_PROF_SM_ACTIVE and DCGM_FI_PROF_DRAM_ACTIVE"

// isUnknown reports whether a reason says that what decides was not measured.
func (r Reason) isUnknown() bool { return r == ReasonNoActivity || r == ReasonNoBusyTime }

// isNeverBusy reports whether no kernel was seen: no minute was busier than the driver's own work
// makes it.
func (w *workload) isNeverBusy() bool { return w.Busy.Max <= idleShare }

// isSampled reports whether SM and DRAM activity were read in a part of the observed time only.
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
	days := 0
	today := dayOf(now)

	for i := range w.Days {
		if d := &w.Days[i]; d.Measured > 0 && d.Day > today-keptDays {
			days++
		}
	}

	return days
}
