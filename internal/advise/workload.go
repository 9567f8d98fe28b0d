package advise

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// keptDays is how many daily maxima are kept, today included.
const keptDays = 8

// daySums are what one day of UTC has seen of a workload.
type daySums struct {
	Day            int32   // since 1970; 0 is no day
	Observed, Held float32 // seconds
	Memory         float32 // largest, in MiB
	// largest while no start was under way; 0 if there was no such time, or it is not known
	Settled float32
	Busy10  float32 // largest mean over 10 minutes
	PCIe    float32 // largest mean over 1 minute, as a share of the link
	// MinWidth and MinBandwidth are the smallest means over ten minutes while kernels ran, as
	// shares of the device; 0 if none ran.
	MinWidth, MinBandwidth float32
	// Measured are the seconds of Observed in which SM and DRAM activity were read. An exporter
	// that did not count them has written 0.
	Measured float32
}

// Engines that are counted by the time of their last use, in the order of mediaUse.
const (
	encoder = iota
	decoder
	jpeg
	ofa
	mediaKinds
)

// workload is the evidence on one workload.
type workload struct {
	Key   Key
	First time.Time // when it was first seen
	Last  time.Time // the end of the last window
	// Reference is the time at which an observation has the weight 1; later ones have more.
	Reference time.Time
	// Busy counts 60-second windows by busy time, Power by dynamic power as a share of the power
	// limit; Width and Bandwidth count busy seconds, as shares of the device.
	Busy, Width, Bandwidth, Power histogram
	Days                          [keptDays]daySums
	Observed                      float64 // seconds, all time, those of several devices at once counted once
	// Pods are the pods that ran the workload. If a pod runs on while the exporter restarts, that
	// is a gap.
	Pods []podSeen
	// FirstMemory is the largest memory of the first ten windows, in MiB: a framework that takes
	// all memory in advance shows there.
	FirstMemory float32
	// InSlices are the seconds that count for queueUse.Passed, with the weights of the histograms.
	InSlices float32
	// NVLinkUnread are the seconds in which its traffic could not be read, with the same weights.
	NVLinkUnread float32
	Untrusted    bool // busy time of its GPU instance was seen below SM activity
	// BeforeSlow is how many times as far as on average a slice of this size would have stretched the
	// slowest twentieth of the busy time on the whole GPU, in the busiest hour, in parts of slowUnit;
	// 0 if it is not known.
	BeforeSlow uint8
	// BeforeMean is the mean of width and bandwidth on the whole GPU, in parts of wholeUnit; 0 if
	// it is not known.
	BeforeMean [2]uint16
	// BeforeBusy is the busy time of the busiest hour there, in parts of wholeUnit.
	BeforeBusy uint16
	// BeforeRun is queueHour.Run of that hour, in whole seconds, shortRun at least; 0 if it is not
	// known.
	BeforeRun uint16
	// The end of the last window with traffic, a graphics process, or a use of an engine, in Unix
	// seconds; 0 if there was none.
	NVLink, Graphics int64
	// InStep is the same for traffic over PCIe that was in step with another GPU's traffic.
	InStep int64
	Media  [mediaKinds]int64
	// Engines says how busy the engines were of each kind that was used since that is counted.
	Engines []engineUse
	// Seconds in which these could not be read, and in which clocks were lowered from outside, with
	// the weights of the histograms.
	MemoryUnread, MediaUnread, ActivityUnread, Throttled float64

	GraphicsUnread float64    // likewise
	Starts         starts     // none is known of evidence that an older version has written
	Queues         []queueUse // by profile; empty for what ends by itself
	// Reserve is what its inference server says; nil if none has answered.
	Reserve *reserve
	// Answer is what was last recommended; Next is another answer that has been computed since
	// NextSince without a break.
	Answer, Next answer
	NextSince    float64 // Observed when it was first computed
	// Before is what kernels used at least on the whole GPU, as shares of it, if the workload runs
	// on a GPU instance now and was seen there.
	Before   struct{ Width, Bandwidth float32 }
	halfLife time.Duration // of a Record; 0 is halfLife
}

// wholeUnit is what the shares of workload.BeforeMean are parts of.
const wholeUnit = math.MaxUint16

// podSeen is a pod and the end of its last window, in Unix seconds.
type podSeen struct {
	UID  string
	Last int64
	// Idle is since when it has held memory on its device and run nothing; 0 if that is not so, or
	// not known, as of a pod of several devices.
	Idle int64
}

// maxPods bounds the pods of a workload: no node has more slices.
const maxPods = 128

// window is what an open window has summed up of a device.
type window struct {
	held, observed              float64 // seconds
	busy, sm, dram              float64 // integrals over the observed seconds
	measured                    float64 // seconds in which SM and DRAM activity were read, too
	measuredBusy                float64 // integrals over these, as measuredSM and measuredDRAM
	measuredSM, measuredDRAM    float64
	power, pcie                 float64 // integrals, shares of the limit and of the link
	powered, linked             float64 // seconds in which these were known
	memory, settled             float64 // largest, in MiB; settled while no start was under way
	throttled                   float64
	nvlink, graphics            bool
	media                       [mediaKinds]bool    // used
	engines, enginesRead        [mediaKinds]float64 // integral of how busy they were, over these seconds
	memoryUnread                float64
	mediaUnread, activityUnread float64
	graphicsUnread              float64
	nvlinkUnread                float64
}

// close adds a window that ended at a time, with the means over the last ten minutes.
func (w *workload) close(now time.Time, v *window, last minute) {
	day := w.today(now)
	day.Held += float32(v.held)
	day.Memory = max(day.Memory, float32(v.memory))
	day.Settled = max(day.Settled, float32(v.settled))
	weight := w.weight(now)
	w.MemoryUnread += weight * v.memoryUnread
	w.MediaUnread += weight * v.mediaUnread
	w.ActivityUnread += weight * v.activityUnread
	w.GraphicsUnread += weight * v.graphicsUnread
	w.NVLinkUnread += float32(weight * v.nvlinkUnread)
	w.Throttled += weight * v.throttled

	if w.Observed < firstMinutes.Seconds() {
		w.FirstMemory = max(w.FirstMemory, float32(v.memory))
	}

	w.Observed += min(v.observed, max(0, now.Sub(w.Last).Seconds()))
	w.Last = now
	mark(&w.NVLink, v.nvlink, now)
	mark(&w.Graphics, v.graphics, now)

	for kind := range v.media {
		mark(&w.Media[kind], v.media[kind], now)
	}

	w.closeEngines(now, v)

	if v.observed == 0 {
		return
	}

	day.Observed += float32(v.observed)
	busy := v.busy / v.observed
	day.Busy10 = max(day.Busy10, last.busy)

	if last.busy >= minBusy {
		day.MinWidth = lesser(day.MinWidth, last.sm/last.busy)
		day.MinBandwidth = lesser(day.MinBandwidth, last.dram/last.busy)
	}

	w.Busy.add(busy, weight*v.observed)

	day.Measured += float32(v.measured)
	if v.measuredBusy > 0 {
		w.Width.add(min(v.measuredSM/v.measuredBusy, 1), weight*v.measuredBusy)
		w.Bandwidth.add(min(v.measuredDRAM/v.measuredBusy, 1), weight*v.measuredBusy)
	}

	if v.powered > 0 {
		w.Power.add(v.power/v.powered, weight*v.powered)
	}

	if v.linked > 0 {
		day.PCIe = max(day.PCIe, float32(v.pcie/v.linked))
	}
}

// minBusy is the busy time over ten minutes from which on the mean width of its kernels counts.
const minBusy = idleShare

// lesser returns the smaller of two numbers, of which 0 is none.
func lesser(a, b float32) float32 {
	if a == 0 || b > 0 && b < a {
		return b
	}

	return a
}

// resume notes that a pod runs the workload on a device from now on. If it did before, the time
// since then is a gap.
func (w *workload) resume(uid string, now time.Time) {
	if uid == "" {
		return
	}

	if at := w.podAt(uid); at >= 0 {
		w.today(now).Held += float32(max(0, now.Unix()-w.Pods[at].Last))
		w.Pods[at].Last = now.Unix()

		return
	}

	if len(w.Pods) >= maxPods {
		oldest := slices.MinFunc(w.Pods, func(a, b podSeen) int {
			return cmp.Compare(a.Last, b.Last)
		})
		w.Pods = slices.Delete(w.Pods, w.podAt(oldest.UID), w.podAt(oldest.UID)+1)
	}

	w.Pods = append(w.Pods, podSeen{UID: uid, Last: now.Unix()})
}

// seen notes that a window of a pod on a device ended at a time.
func (w *workload) seen(d *device, at time.Time) {
	i := w.podAt(d.holder.UID)
	if i < 0 {
		return
	}

	p := &w.Pods[i]
	several := p.Last == at.Unix()

	p.Last = at.Unix()
	p.Idle = 0

	if !several && !d.idle.IsZero() && !d.up.IsZero() {
		p.Idle = max(d.idle.Unix(), d.up.Unix())
	}
}

// shortRestart is for how long an exporter can be away without that an idle device counts as one
// that may have worked.
const shortRestart = 15 * time.Minute

// takeUp takes over since when the pod of a device has been up and idle, from before a restart of
// the exporter.
func (w *workload) takeUp(d *device, now time.Time) {
	i := w.podAt(d.holder.UID)
	if i < 0 || w.Pods[i].Idle == 0 || now.Unix()-w.Pods[i].Last > int64(shortRestart.Seconds()) {
		return
	}

	d.idle = time.Unix(w.Pods[i].Idle, 0)
	d.up = time.Unix(w.Pods[i].Idle, 0)
}

func (w *workload) podAt(uid string) int {
	return slices.IndexFunc(w.Pods, func(p podSeen) bool { return p.UID == uid })
}

// forgetPods drops the pods that were not seen for a day.
func (w *workload) forgetPods(now time.Time) {
	w.Pods = slices.DeleteFunc(w.Pods, func(p podSeen) bool { return now.Unix()-p.Last > 24*60*60 })
}

// firstMinutes is the observed time at the start that shows whether a framework takes its memory in
// advance.
const firstMinutes = 10 * time.Minute

// mark sets a time if something was seen then.
func mark(at *int64, seen bool, now time.Time) {
	if seen {
		*at = now.Unix()
	}
}

// today returns the sums of the day of a time. A day that comes takes the place of the oldest.
func (w *workload) today(now time.Time) *daySums {
	number := dayOf(now)

	d := w.slotOf(number)
	if d.Day != number {
		*d = daySums{Day: number}
		w.clearEngines(slotOf(number))
	}

	return d
}

// dayOf returns the number of the day of UTC since 1970.
func dayOf(at time.Time) int32 { return int32(math.Floor(float64(at.Unix()) / (24 * 60 * 60))) }

// slotOf returns where the sums of a day are kept. The sums there can still belong to another day.
func (w *workload) slotOf(day int32) *daySums { return &w.Days[slotOf(day)] }

// slotOf returns the index in an array of days of where a day is kept.
func slotOf(day int32) int32 { return (day%keptDays + keptDays) % keptDays }

// maxWeight is the weight at which all weights are scaled down, far below what float32 can hold.
const maxWeight = 1 << 20

// growth returns how much more an observation counts now than one at the reference time.
func (w *workload) growth(now time.Time) float64 {
	return math.Exp2(now.Sub(w.Reference).Hours() / cmp.Or(w.halfLife, halfLife).Hours())
}

// weight returns how much an observation counts now, relative to one at the reference time.
func (w *workload) weight(now time.Time) float64 {
	weight := w.growth(now)
	if weight <= maxWeight {
		return weight
	}

	for _, h := range []*histogram{&w.Busy, &w.Width, &w.Bandwidth, &w.Power} {
		h.scale(1 / weight)
	}

	for i := range w.Engines {
		w.Engines[i].Busy.scale(1 / weight)
	}

	w.InSlices /= float32(weight)
	w.NVLinkUnread /= float32(weight)

	for i := range w.Queues {
		w.Queues[i].Passed /= float32(weight)
	}

	for _, sum := range []*float64{&w.MemoryUnread, &w.MediaUnread, &w.ActivityUnread, &w.GraphicsUnread,
		&w.Throttled} {
		*sum /= weight
	}

	w.Reference = now

	return 1
}

// sums are the days of the last keptDays added up. If the clock was set, the last one can be of
// tomorrow.
func (w *workload) sums(now time.Time) daySums {
	var all daySums

	today := dayOf(now)
	for _, d := range w.Days {
		if d.Day <= today-keptDays {
			continue
		}

		all.Observed += d.Observed
		all.Held += d.Held
		all.Measured += d.Measured
		all.Memory = max(all.Memory, d.Memory)
		all.Settled = max(all.Settled, d.Settled)
		all.Busy10 = max(all.Busy10, d.Busy10)
		all.PCIe = max(all.PCIe, d.PCIe)
		all.MinWidth = lesser(all.MinWidth, d.MinWidth)
		all.MinBandwidth = lesser(all.MinBandwidth, d.MinBandwidth)
	}

	return all
}

// observedDays counts the days of the last keptDays in which something was observed.
func (w *workload) observedDays(now time.Time) int {
	days := 0
	today := dayOf(now)

	for _, d := range w.Days {
		if d.Observed > 0 && d.Day > today-keptDays {
			days++
		}
	}

	return days
}

// isProvisional reports whether the evidence is of less than a week: it began later, or misses too
// many of the last days, or of SM activity there is but a sample.
func (w *workload) isProvisional(now time.Time) bool {
	return now.Sub(w.First) < provisionalBefore || w.observedDays(now) < minObservedDays ||
		w.isSampled() && w.measuredDays(now) < minObservedDays
}

// minObservedDays leaves out a weekend.
const minObservedDays = 5

// settled returns the largest use of memory while no start was under way, in MiB; the largest of
// all if unknown.
func (d *daySums) settled() float32 { return cmp.Or(d.Settled, d.Memory) }

// trendBytesPerDay returns the slope of the daily maxima of memory, without starts. It fits the
// last days by least squares, however many of them, and returns the steepest slope, since growth
// can have begun lately. It is 0 if they shrink or are known for less than a day and a half.
func (w *workload) trendBytesPerDay(now time.Time) float64 {
	days := float64(now.Unix()) / (24 * 60 * 60)
	today := dayOf(now)
	steepest := 0.
	var n, sx, sy, sxx, sxy float64

	for back := range int32(keptDays) {
		d := w.slotOf(today - back)
		if d.Day != today-back || d.Memory == 0 {
			continue
		}

		x := min(0, float64(1-back)-(days-float64(today)))
		y := float64(d.settled()) // its end; of today, now

		n++
		sx += x
		sy += y
		sxx += x * x
		sxy += x * y

		if n >= 3 && x <= -1.5 {
			steepest = max(steepest, (n*sxy-sx*sy)/(n*sxx-sx*sx))
		}
	}

	return steepest * (1 << 20)
}
