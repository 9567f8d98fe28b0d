package advise

import (
	"fmt"
	"time"
)

// We take what was not measured for unknown, and neither for nothing nor for the worst case: from the
// worst case no advice would follow.

// sampleLength is the busy time for which SM and DRAM activity must have been read, at least, to say how
// much of a device kernels fill. An answer from such a sample is provisional.
const sampleLength = time.Hour

// noActivityText says what is unknown without SM activity, and how to measure it.
const noActivityText = "SM or memory activity could not be read, or contradicts busy time: how " +
	"much of the GPU kernels fill is unknown. An hour of busy time in which it is read gives a " +
	"provisional answer: give mig-exporter a DCGM (--dcgm.address), or dcgm-exporter a counters " +
	"file with DCGM_FI_PROF_SM_ACTIVE and DCGM_FI_PROF_DRAM_ACTIVE"

// isUnknown reports whether the reason is that something was not measured.
func (r Reason) isUnknown() bool { return r == ReasonNoActivity || r == ReasonNoBusyTime }

// isNeverBusy reports whether we have seen no kernel: the driver's own work explains how busy each minute
// was.
func (w *workload) isNeverBusy() bool { return w.Busy.Max <= idleShare }

// We compare what was not read with busy time: kernels are what SM and DRAM activity say something of.
// Twenty idle hours a day that were read say nothing of the kernels of the other four.

// addUnreadBusy adds busy time, with its weight, in which SM or DRAM activity could not be read.
func (w *workload) addUnreadBusy(now time.Time, seconds float64) {
	if seconds > 0 {
		w.BusyUnread += float32(seconds)
		w.UnreadAt = uint32(now.Unix())

		return
	}

	// After a week in which everything was read, what was not read before is no longer missing. A
	// Record keeps all of its history.
	complete := now.Unix()-int64(w.UnreadAt) >= int64(provisionalBefore.Seconds())
	if w.BusyUnread > 0 && w.halfLife == 0 && complete && w.sampledDays(now) >= minObservedDays {
		w.BusyUnread = 0
	}
}

// unreadBusy returns the share of busy time in which SM or DRAM activity was not read.
func (w *workload) unreadBusy() float64 {
	unread := float64(w.BusyUnread)
	if unread == 0 {
		return 0
	}

	return unread / (w.Width.total() + unread)
}

// isSampled reports whether SM and DRAM activity were read only in a part of the busy time. If no
// kernel was seen, the observed time decides: a reading in whole percent may have missed some.
func (w *workload) isSampled() bool {
	if w.isNeverBusy() {
		return isUnread(float64(w.ActivityUnread), w.Busy.total())
	}

	return isUnread(w.unreadBusy(), 1)
}

// isActivityUnread reports whether it is unknown how much of the device kernels fill: that was not
// measured, or in too little of the busy time. An hour of it is enough for a provisional answer. If
// kernels run for less than two hours in all, half of that is: else a workload that is rarely busy
// would have no answer until all was read.
func (w *workload) isActivityUnread(now time.Time) bool {
	if !w.isSampled() {
		return w.Width.total() == 0 && !w.isNeverBusy()
	}

	if w.isNeverBusy() {
		return float64(w.ActivityUnread) > w.Busy.total()/2
	}

	return w.unreadBusy() > 0.5 && float64(w.sums(now).Sampled) < sampleLength.Seconds()
}

// sampledDays counts the days of the last keptDays in which kernels ran, and SM and DRAM activity were
// read.
func (w *workload) sampledDays(now time.Time) int {
	return w.countDays(now, func(d *daySums) bool { return d.Sampled > 0 })
}

// restoreUnreadBusy fills in BusyUnread for the evidence of a version that did not count it. The
// histogram of busy time is within 5 % of the truth, so that less is no sign of unread time.
func (w *workload) restoreUnreadBusy() {
	busy := w.Busy.mean() * w.Busy.total()
	unread := min(busy-w.Width.total(), float64(w.ActivityUnread))

	if w.BusyUnread == 0 && w.UnreadAt == 0 && isUnread(unread, busy) {
		w.BusyUnread = float32(unread)
		w.UnreadAt = uint32(max(0, w.Last.Unix()))
	}
}

// describeSample says in how much of the busy time SM activity was read, to follow the width of kernels;
// it is empty if that is nearly all of it.
func (e *Evidence) describeSample() string {
	if e.ActivityHours == 0 {
		return ""
	}

	return fmt.Sprintf(" (by a sample of %.2g h, %.2g %% of the busy time)",
		e.ActivityHours, 100*(1-e.unreadBusy))
}
