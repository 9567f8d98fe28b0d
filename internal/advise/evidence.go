package advise

import (
	"math"
	"time"
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
		Starts:        int(w.Starts.Seen),
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
		PowerP95:       w.Power.quantile(0.95),
		PCIeMax:        float64(days.PCIe),
		MemoryUnread:   isUnread(w.MemoryUnread, observed),
		MediaUnread:    isUnread(w.MediaUnread, observed),
		ActivityUnread: w.isActivityUnread(now),
		NeverBusy:      w.isNeverBusy(),
		queueOf:        w.queueOf,
		loadsKnown:     w.loadsKnown(),
		inSlices:       w.InSlices,
		now:            now,
		graphicsUnread: isUnread(w.GraphicsUnread, observed),
		nvlinkUnread:   isUnread(float64(w.NVLinkUnread), observed),
		BusyHistogram:  w.Busy.tenths(),
		WidthHistogram: w.Width.tenths(),
	}
	if w.isSampled() {
		e.ActivityHours = float64(days.Measured) / 3600
	}

	if e.stretchUnknown() {
		e.Median = Kernels{}
		e.P95 = Kernels{}
		e.decisive = Kernels{}
		e.WidthHistogram = [10]float64{}
	}

	e.flat = w.isFlat(&e)
	e.BusyMean = w.Busy.mean()

	if days.Held > 0 {
		e.CoverageRatio = min(1, float64(days.Observed/days.Held))
	}

	if observed > 0 {
		e.ThrottledRatio = min(1, w.Throttled/observed)
	}

	e.setMediaUse(w.mediaUseOf(now))

	return e
}

// decisiveQuantile is the quantile of width and of bandwidth that decides. For 95 % of the busy
// time both stay below it, even if the widest kernels are not the ones that draw the most.
const decisiveQuantile = 0.975

// isUnread reports whether a reading was absent in more than a twentieth of a time.
func isUnread(unread, of float64) bool { return unread > 0.05*of }

// isRecent reports whether a time in Unix seconds lies in the days that are kept, and not in the
// future.
func isRecent(at int64, now time.Time) bool {
	age := now.Sub(time.Unix(at, 0))
	return at != 0 && age >= 0 && age < keptDays*24*time.Hour
}

// busyMinutes returns for how long kernels have run whose use of the device was measured, older
// minutes counting less.
func (w *workload) busyMinutes(now time.Time) float64 {
	return w.Width.total() / 60 / w.growth(now)
}

// isPreallocated reports whether what a workload holds is a reservation of which we do not know
// what is needed: that of an inference server, or of a framework that took nearly all memory of a
// device at its start, and the same since. Flat memory that is less than that, see mayBeReserved,
// counts as a reservation only where a slice would do otherwise.
func isPreallocated(w *workload, e *Evidence, deviceBytes float64) bool {
	if s := e.Server; s != nil && s.reserves {
		return !s.isKnown()
	}

	if e.settledBytes >= preallocatedShare*deviceBytes && w.isFlat(e) {
		return true // however long it loads
	}

	first := float64(w.FirstMemory) * (1 << 20)

	return e.MemoryBytes >= preallocatedShare*deviceBytes && first >= 0.95*e.MemoryBytes &&
		e.settledBytes >= fallenShare*first
}

// mayBeReserved reports whether memory that is flat since the end of the start may be a fraction of
// the device, as that of a server that was given one: it would be the same fraction of a slice, in
// which the weights may not fit.
func (e *Evidence) mayBeReserved(of capacity) bool {
	if e.Server.isKnown() || e.Server != nil && !e.Server.reserves {
		return false
	}

	return e.flat && e.settledBytes >= reservedShare*of.memoryBytes
}

// reservedShare is the share of a device's memory from which on flat memory may be a reservation.
const reservedShare = 0.4

// preallocatedShare is the share of a device's memory from which on it counts as taken in advance:
// frameworks take 75 to 95 %.
const preallocatedShare = 0.7

// needBytes returns the memory that a slice must have.
func needBytes(e *Evidence, headroom float64) float64 {
	most := max(e.MemoryBytes, e.startNeed)
	if e.Server.isKnown() {
		most = e.Server.Need
	}

	grows := e.settledBytes
	if !e.Server.isKnown() {
		grows = max(grows, e.startNeed) // what a start needs grows at the rate of what it loads
	}

	needed := max(most*(1+headroom), most+minHeadroomBytes)

	return needed + growthIn(grows, e.MemoryTrend, e.growthRate)
}

// minHeadroomBytes is kept free for the context and what a slice takes itself.
const minHeadroomBytes = 512 << 20

// confidence returns how much a recommendation can be relied on, 0-1. What is known least decides:
// of the hours for which the workload was observed, the minutes in which kernels ran, and its
// starts. Gaps lower it, and growing memory takes a fifth.
func confidence(e *Evidence) float64 {
	c := min(1, e.BusyMinutes/enoughBusyMinutes)
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

// idleConfidence returns how much the answer can be relied on that a device is idle, or that its
// container did not come up. Neither kernels nor starts can show that.
func idleConfidence(e *Evidence) float64 { return round3(hoursKnown(e) * e.CoverageRatio) }

// hoursKnown returns for which share of the hours that are needed a workload was observed.
func hoursKnown(e *Evidence) float64 { return min(1, e.ObservedHours/provisionalBefore.Hours()) }

// enoughBusyMinutes are the minutes with kernels that show what they are like. Without a start that
// was seen, the confidence is unseenConfidence at most.
const (
	enoughBusyMinutes = 60
	unseenConfidence  = 0.5
)

// mean returns the mean of the ratios, each taken as the middle of its bucket.
func (h *histogram) mean() float64 {
	var sum, weight float64

	for i, w := range h.Weights {
		if w == 0 {
			continue
		}

		middle := 0.0
		if i > 0 {
			middle = (bucketBound(i) + bucketBound(i-1)) / 2
		}

		sum += float64(w) * min(middle, float64(h.Max))
		weight += float64(w)
	}

	if weight == 0 {
		return 0
	}

	return sum / weight
}

// tenths returns the shares of the weight in ten equal ranges of 0-1.
func (h *histogram) tenths() [10]float64 {
	var shares [10]float64

	total := h.total()
	if total == 0 {
		return shares
	}

	for i, w := range h.Weights {
		if w == 0 {
			continue
		}

		at := min(bucketBound(i), float64(h.Max))
		shares[min(9, max(0, int(math.Ceil(at*10-1e-9))-1))] += float64(w) / total
	}

	for i := range shares {
		shares[i] = round3(shares[i])
	}

	return shares
}
