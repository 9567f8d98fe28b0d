package advise

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// evidenceOf summarizes what we know of a workload.
func evidenceOf(w *workload, now time.Time) Evidence {
	days := w.sums(now)
	observed := w.Busy.total()

	e := Evidence{
		Since:         w.First,
		ObservedHours: w.Observed / 3600,
		KnownDays:     min(keptDays, max(0, round3(now.Sub(w.First).Hours()/24))),
		MemoryBytes:   max(float64(days.Memory), w.Starts.peak()) * (1 << 20),
		Starts:        w.Starts.seen(),
		StartMemory:   w.Starts.peak() * (1 << 20),
		BusyMinutes:   w.busyMinutes(now),
		settledBytes:  float64(days.settled()) * (1 << 20),
		startNeed:     w.Starts.need(float64(days.Settled)) * (1 << 20),
		MemoryTrend:   w.trendBytesPerDay(now),
		growthRate:    w.growthRate(now),
		BusyP50:       w.Busy.quantile(0.5),
		BusyP99:       w.Busy.quantile(0.99),
		Busy10Minutes: float64(days.Busy10),
		Median:        Kernels{Width: w.Width.quantile(0.5), Bandwidth: w.Bandwidth.quantile(0.5)},
		P95: Kernels{
			Width:     w.Width.quantile(0.95),
			Bandwidth: w.Bandwidth.quantile(0.95),
		},
		decisive: Kernels{
			Width:     w.Width.quantile(decisiveQuantile),
			Bandwidth: w.Bandwidth.quantile(decisiveQuantile),
		},
		PCIeMax:        w.pcieMax(days.PCIe),
		pcieUnread:     w.isPCIeUnread(),
		powerUnread:    isUnread(observed-w.Power.total(), observed),
		MemoryUnread:   w.mayHideUse(w.MemoryUnread, w.MemoryUnreadBusy),
		MediaUnread:    w.mayHideUse(w.MediaUnread, w.MediaUnreadBusy),
		ActivityUnread: w.isActivityUnread(now),
		NeverBusy:      w.isNeverBusy(),
		unreadBusy:     w.unreadBusy(),
		queueOf:        w.queueOf,
		loadsKnown:     w.loadsKnown(),
		inSlices:       w.InSlices,
		now:            now,
		graphicsUnread: isUnread(float64(w.GraphicsUnread), observed),
		nvlinkUnread:   w.mayHideUse(w.NVLinkUnread, w.NVLinkUnreadBusy),
		BusyHistogram:  w.Busy.tenths(),
		WidthHistogram: w.Width.tenths(),
	}

	if w.isSampled() {
		e.ActivityHours = float64(days.Sampled) / 3600
	}

	if e.stretchUnknown() {
		e.Median = Kernels{}
		e.P95 = Kernels{}
		e.decisive = Kernels{}
		e.WidthHistogram = [10]float64{}
	}

	if w.Power.total() > 0 {
		e.leastPower = w.Power.quantile(0.95)
	}

	if w.Power.total() > 0 && !e.powerUnread {
		e.PowerP95 = gpu.Some(e.leastPower)
	}

	e.flat = w.isFlat(&e)
	e.BusyMean = w.Busy.mean()

	if days.Held > 0 {
		e.CoverageRatio = min(1, float64(days.Observed/days.Held))
	}

	if observed > 0 {
		e.ThrottledRatio = min(1, float64(w.Throttled)/observed)
	}

	e.setMediaUse(w.mediaUseOf(now))

	return e
}

// decisiveQuantile is the quantile of width and of bandwidth that decides. Each is above it for 2.5 % of
// the busy time, so both are below it for 95 % at least, even if the widest kernels are not the ones
// that draw the most.
const decisiveQuantile = 0.975

// isUnread reports whether a reading was absent in more than a twentieth of some time.
func isUnread(unread, of float64) bool { return unread > 0.05*of }

// isRecent reports whether a time in Unix seconds lies in the days that are kept, and not in the
// future.
func isRecent(at int64, now time.Time) bool {
	age := now.Sub(time.Unix(at, 0))
	return at != 0 && age >= 0 && age < keptDays*24*time.Hour
}

// busyMinutes returns for how long kernels have run whose use of the device was measured. Older minutes
// count less.
func (w *workload) busyMinutes(now time.Time) float64 {
	return w.Width.total() / 60 / w.growth(now)
}

// isPreallocated reports whether a workload has reserved its memory, and we do not know how much of it it
// needs. Inference servers do that, and frameworks that take nearly all memory of a device at their
// start. Less memory that is flat only counts as a reservation if a slice would be large enough, see
// mayBeReserved.
func isPreallocated(w *workload, e *Evidence, deviceBytes float64) bool {
	if s := e.Server; s != nil && s.reserves {
		return !s.isKnown()
	}

	// We saw its start, however long that took, and memory has been flat since.
	if e.settledBytes >= preallocatedShare*deviceBytes && e.flat {
		return true
	}

	// It took the memory in its first minutes, and has kept it.
	first := float64(w.FirstMemory) * (1 << 20)

	return e.MemoryBytes >= preallocatedShare*deviceBytes && first >= 0.95*e.MemoryBytes &&
		e.settledBytes >= fallenShare*first
}

// mayBeReserved reports whether flat memory may be a fixed fraction of the device, as a server reserves
// it by a flag. It would reserve the same fraction of a slice, in which its weights may not fit.
func (e *Evidence) mayBeReserved(current capacity) bool {
	if e.Server.isKnown() || e.Server != nil && !e.Server.reserves {
		return false
	}

	return e.flat && e.settledBytes >= reservedShare*current.memoryBytes
}

const (
	// reservedShare is the share of a device's memory from which on flat memory may be a reservation.
	reservedShare = 0.4
	// preallocatedShare is the share of a device's memory from which on we take it for preallocated:
	// frameworks take 75 to 95 %.
	preallocatedShare = 0.7
)

// needBytes returns the memory that a slice must have: the most that was used, headroom, and room to
// grow.
func needBytes(e *Evidence, headroom float64) float64 {
	most := max(e.MemoryBytes, e.startNeed)
	grows := max(e.settledBytes, e.startNeed) // what a start needs grows as the data does that it loads

	if e.Server.isKnown() {
		most = e.Server.Need
		grows = e.settledBytes
	}

	needed := max(most*(1+headroom), most+minHeadroomBytes)

	return needed + growthIn(grows, e.MemoryTrend, e.growthRate)
}

// minHeadroomBytes is kept free at least: for the context of a further process, and for what a slice
// takes itself.
const minHeadroomBytes = 512 << 20

// confidence returns how far you can rely on a recommendation, 0-1. The least of four things decides:
// the hours for which the workload was observed, the minutes in which kernels ran, the share of these
// in which we read how much of the device they fill, and whether a start was seen. Gaps lower it, and
// memory that grows by more than 1 % a day takes a fifth of it.
func confidence(e *Evidence) float64 {
	c := min(1-e.unreadBusy, e.BusyMinutes/enoughBusyMinutes)
	if e.Starts == 0 {
		c = min(c, unseenConfidence)
	}

	c = min(c, hoursKnown(e)) * e.CoverageRatio
	if e.MemoryTrend > 0.01*e.MemoryBytes {
		c *= 0.8
	}

	return round3(c)
}

// provisionalBefore is the age of the evidence below which an answer is provisional.
const provisionalBefore = 7 * 24 * time.Hour

// idleConfidence returns how far you can rely on the answer that a device is idle, or that its container
// did not come up. Neither needs kernels or starts.
func idleConfidence(e *Evidence) float64 { return round3(hoursKnown(e) * e.CoverageRatio) }

// hoursKnown returns the observed hours as a share of those after which an answer is not provisional.
func hoursKnown(e *Evidence) float64 { return min(1, e.ObservedHours/provisionalBefore.Hours()) }

const (
	// enoughBusyMinutes is how many minutes kernels must run to show what they are like.
	enoughBusyMinutes = 60
	// unseenConfidence is the most confidence without a start that was seen.
	unseenConfidence = 0.5
)

// pcieMax returns a largest traffic over PCIe, as a share of the link, if it is known.
func (w *workload) pcieMax(largest float32) gpu.Opt[float64] {
	if w.isPCIeUnread() || !w.HasPCIe && largest == 0 {
		return gpu.None[float64]()
	}

	return gpu.Some(float64(largest))
}

// isPCIeUnread reports whether traffic over PCIe could not be read for some of the time. Of a driver
// that counts none it is false.
func (w *workload) isPCIeUnread() bool { return w.mayHideUse(w.PCIeUnread, 0) }
