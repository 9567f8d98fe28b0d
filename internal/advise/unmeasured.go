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

// The kinds of workload.UnreadDays.
const (
	unreadActivity = iota // while kernels ran
	unreadMemory
	unreadMedia
	unreadLinks // NVLink or PCIe
	unreadKinds
)

// addUnread adds, with a weight, the time of a window that ends now in which something could not be read.
func (w *workload) addUnread(now time.Time, v *window, weight float64) {
	v.memoryUnread.addTo(&w.MemoryUnread, &w.MemoryUnreadBusy, weight)
	v.mediaUnread.addTo(&w.MediaUnread, &w.MediaUnreadBusy, weight)
	v.nvlinkUnread.addTo(&w.NVLinkUnread, &w.NVLinkUnreadBusy, weight)
	w.PCIeUnread += float32(weight * v.pcieUnread)

	today := dayOf(now)

	for kind, isUnread := range [unreadKinds]bool{
		unreadActivity: v.busy > v.measuredBusy || w.isNeverBusy() && v.activityUnread > 0,
		unreadMemory:   v.memoryUnread.all > 0,
		unreadMedia:    v.mediaUnread.all > 0,
		unreadLinks:    v.nvlinkUnread.all > 0 || v.pcieUnread > 0,
	} {
		if isUnread {
			w.UnreadDays[kind] = uint16(today)
		} else if int32(w.UnreadDays[kind]) <= today-keptDays {
			w.forgetUnread(kind, now)
		}
	}
}

// forgetUnread forgets what was not read before the days that are kept, if these are enough evidence by
// themselves. A Record keeps all of its history.
func (w *workload) forgetUnread(kind int, now time.Time) {
	none := float32(0)

	sums := [unreadKinds][3]*float32{
		unreadActivity: {&w.BusyUnread, &w.ActivityUnread, &none},
		unreadMemory:   {&w.MemoryUnread, &w.MemoryUnreadBusy, &none},
		unreadMedia:    {&w.MediaUnread, &w.MediaUnreadBusy, &none},
		unreadLinks:    {&w.NVLinkUnread, &w.NVLinkUnreadBusy, &w.PCIeUnread},
	}[kind]

	if w.halfLife != 0 || *sums[0] == 0 && *sums[1] == 0 && *sums[2] == 0 {
		return
	}

	days := w.observedDays(now)
	if kind == unreadActivity && !w.isNeverBusy() {
		days = w.sampledDays(now)
	}

	if days >= MinObservedDays {
		for _, seconds := range sums {
			*seconds = 0
		}
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
	return w.countDays(now, func(d *daySums) bool { return d.Sampled > idleShare*d.Observed })
}

// restoreUnread fills in BusyUnread and UnreadDays for the evidence of a version that did not count them.
// The histogram of busy time is within 5 % of the truth, so that less is no sign of unread time.
func (w *workload) restoreUnread() {
	busy := w.Busy.mean() * w.Busy.total()
	unread := min(busy-w.Width.total(), float64(w.ActivityUnread))

	if w.BusyUnread == 0 && isUnread(unread, busy) {
		w.BusyUnread = float32(unread)
	}

	for kind, seconds := range [unreadKinds]float32{
		unreadActivity: w.BusyUnread + w.ActivityUnread,
		unreadMemory:   w.MemoryUnread,
		unreadMedia:    w.MediaUnread,
		unreadLinks:    w.NVLinkUnread,
	} {
		if seconds > 0 && w.UnreadDays[kind] == 0 {
			w.UnreadDays[kind] = uint16(dayOf(w.Last))
		}
	}
}

// unread is the time in which something could not be read, and the busy time of it, in seconds.
type unread struct{ all, busy float64 }

// add adds seconds in which a device was busy for a share.
func (u *unread) add(busy, seconds float64) {
	u.all += seconds
	u.busy += busy * seconds
}

// addTo adds the time to sums, with a weight.
func (u *unread) addTo(all, busy *float32, weight float64) {
	*all += float32(weight * u.all)
	*busy += float32(weight * u.busy)
}

// rareShare is the share of the time, and of the busy time, for which we may lack a reading of which the
// largest value decides, or whether there was any: an hour a day could hide what comes once a day.
const rareShare = 0.01

// mayHideUse reports whether something was not read for so long that a use of it may have been missed.
func (w *workload) mayHideUse(all, busy float32) bool {
	busySeconds := w.Width.total() + float64(w.BusyUnread)
	return float64(all) > rareShare*w.Busy.total() || float64(busy) > rareShare*busySeconds
}

// describeSample says in how much of the busy time SM activity was read, to follow the width of kernels;
// it is empty if that is nearly all of it.
func (e *Evidence) describeSample() string {
	if e.ActivityHours == 0 || e.NeverBusy {
		return ""
	}

	return fmt.Sprintf(" (by a sample of %.1f h, %.1f %% of the busy time)",
		e.ActivityHours, 100*(1-e.unreadBusy))
}
