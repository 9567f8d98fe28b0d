package advise

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// keptDays is how many daily maxima are kept, today included.
const keptDays = 8

// daySums is what one day of UTC has seen of a workload.
type daySums struct {
	Day            int32   // since 1970; 0 is no day
	Observed, Held float32 // seconds
	Memory         float32 // largest, in MiB
	// Settled is the largest memory while no start was under way, in MiB; 0 if unknown.
	Settled float32
	Busy10  float32 // largest mean over 10 minutes
	PCIe    float32 // largest mean over 1 minute, as a share of the link
	// MinWidth and MinBandwidth are the smallest means over ten minutes while kernels ran, as
	// shares of the device; 0 if none ran.
	MinWidth, MinBandwidth float32
	// Sampled is the busy time in which SM and DRAM activity were read, in seconds. Older versions
	// have written none.
	Sampled float32
}

// The kinds of media engines, in the order of mediaNames.
const (
	encoder = iota
	decoder
	jpeg
	ofa
	mediaKinds
)

// workload is the evidence on one workload. A Checkpoint has its exported fields.
type workload struct {
	Key   Key
	First time.Time // when it was first seen
	Last  time.Time // the end of the last window
	// Reference is the time at which an observation has the weight 1. Later ones have more, so that
	// older ones count less without a change to each of them.
	Reference time.Time

	// Busy counts 60-second windows by busy time, Power by dynamic power as a share of the power
	// limit. Width and Bandwidth count busy seconds, as shares of the device.
	Busy, Width, Bandwidth, Power histogram

	Days [keptDays]daySums
	// Observed counts seconds since First. Those of several devices at once count once.
	Observed float64

	// Pods are the pods that ran the workload. If one of them runs on while the exporter restarts,
	// that time is a gap.
	Pods []podSeen
	// FirstMemory is the largest memory of the first ten windows, in MiB. A framework that takes all
	// memory in advance has taken it by then.
	FirstMemory float32
	// InSlices counts the seconds of all minutes that addLoads has counted, those of queueUse.Passed
	// among them, with the weights of the histograms.
	InSlices float32
	// NVLinkUnread counts the seconds in which the traffic over NVLink could not be read, with the
	// same weights.
	NVLinkUnread float32
	Untrusted    bool // busy time of its GPU instance was seen below SM activity
	HasPCIe      bool // traffic over PCIe was read: once it is not, it is unknown

	// BeforeSlow is about the whole GPU, in its busiest hour: how many times as far as the average a
	// slice of the current size would have stretched the slowest twentieth of the busy time, in parts
	// of slowUnit; 0 if unknown.
	BeforeSlow uint8
	// Ends is how its containers have ended after they were up.
	Ends usualEnds
	// BeforeMean is the mean of width and bandwidth on the whole GPU, in parts of wholeUnit; 0 if
	// unknown.
	BeforeMean [2]uint16
	// BeforeBusy is the busy time of the busiest hour there, in parts of wholeUnit.
	BeforeBusy uint16
	// BeforeRun is queueHour.Run of that hour in whole seconds, and shortRun at least; 0 if unknown.
	BeforeRun uint16

	// The end of the last window with traffic over NVLink, and with a graphics process, in Unix
	// seconds; 0 if there was none.
	NVLink, Graphics int64
	// InStep is the same for traffic over PCIe that was in step with another GPU's traffic.
	InStep int64
	// Media is the same for media engines, by kind.
	Media [mediaKinds]int64
	// Engines says how busy the media engines were, for each kind that was used since we count that.
	Engines []engineUse

	// Seconds in which these could not be read, and in which clocks were lowered from outside, with
	// the weights of the histograms.
	MemoryUnread, MediaUnread, ActivityUnread, Throttled float32
	GraphicsUnread                                       float32
	// The busy time in which these could not be read, in seconds with the same weights.
	MemoryUnreadBusy, MediaUnreadBusy, NVLinkUnreadBusy float32
	// PCIeUnread are the seconds in which traffic over PCIe could not be read, with these weights.
	PCIeUnread float32
	// BusyUnread is the busy time for which SM or DRAM activity could not be read, in seconds with
	// the same weights; Width and Bandwidth have the rest.
	BusyUnread float32
	// UnreadDays are the last days on which something could not be read, by kind, as numbers of days
	// since 1970.
	UnreadDays [unreadKinds]uint16

	NextSince float32 // see Next

	// Killed is how many processes of a container ended in a row while their memory grew, mostKilled at most,
	// before it came up: what prepares the data of a server may grow until it ends.
	Killed uint8

	HasBeenUp bool // one of its containers has held memory for an hour

	halfLife uint8 // of a Record, in days; 0 is the constant halfLife

	Starts starts     // empty in evidence of older versions
	Queues []queueUse // by size of profile; none for jobs, which answer no requests
	// Reserve is what its inference server says; nil if none has answered.
	Reserve *reserve

	// Answer was recommended last. Next is another answer that the evidence has led to without a
	// break since Observed was NextSince, see Advisor.stableAnswer.
	Answer, Next answer
	// Before is what kernels used at least on the whole GPU, as shares of it, if the workload runs
	// on a GPU instance now and was seen there.
	Before struct{ Width, Bandwidth float32 }
}

// wholeUnit is the unit of workload.BeforeMean and BeforeBusy.
const wholeUnit = math.MaxUint16

// podSeen is a pod and the end of its last window, in Unix seconds.
type podSeen struct {
	UID  string
	Last int64
	// Idle is since when it has held memory on its device and run nothing, in Unix seconds; 0 if it
	// has run something, or if we do not know, as of a pod with several devices.
	Idle int64
}

// maxPods bounds the pods of a workload: no node has more slices.
const maxPods = 128

// window sums up what was seen of a device, usually for a minute.
type window struct {
	held, observed float64 // seconds
	busy, sm, dram float64 // integrals over the observed seconds

	// The seconds in which SM and DRAM activity were read, too, and integrals over these.
	measured                               float64
	measuredBusy, measuredSM, measuredDRAM float64

	// Integrals, as shares of the limit and of the link, and the seconds in which these were known.
	power, pcie     float64
	powered, linked float64

	memory  float64 // largest, in MiB
	settled float64 // largest while no start was under way, in MiB

	nvlink, graphics bool             // whether any was seen
	media            [mediaKinds]bool // used

	// Integrals of how busy media engines were, and the seconds in which that was read.
	engines, enginesRead [mediaKinds]float64

	// When these could not be read.
	memoryUnread, mediaUnread, nvlinkUnread unread

	// Seconds in which these could not be read, and in which clocks were lowered from outside.
	activityUnread, graphicsUnread, pcieUnread, throttled float64
}

// close adds a window that ends now, with the means over the last ten minutes.
func (w *workload) close(now time.Time, v *window, last minute) {
	day := w.today(now)
	weight := w.weight(now)

	day.Held += float32(v.held)
	day.Memory = max(day.Memory, float32(v.memory))
	day.Settled = max(day.Settled, float32(v.settled))

	w.addUnread(now, v, weight)
	w.ActivityUnread += float32(weight * v.activityUnread)
	w.GraphicsUnread += float32(weight * v.graphicsUnread)
	w.Throttled += float32(weight * v.throttled)

	if w.Observed < firstMinutes.Seconds() {
		w.FirstMemory = max(w.FirstMemory, float32(v.memory))
	}

	// Another device of the workload may have counted a part of the time.
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
	day.Sampled += float32(v.measuredBusy)
	day.Busy10 = max(day.Busy10, last.busy)

	if last.busy >= minBusy {
		day.MinWidth = smallerKnown(day.MinWidth, last.sm/last.busy)
		day.MinBandwidth = smallerKnown(day.MinBandwidth, last.dram/last.busy)
	}

	w.Busy.add(v.busy/v.observed, weight*v.observed)
	w.BusyUnread += float32(weight * (v.busy - v.measuredBusy))

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

// smallerKnown returns the smaller of two numbers that are known. 0 stands for an unknown one.
func smallerKnown(a, b float32) float32 {
	if a == 0 || b > 0 && b < a {
		return b
	}

	return a
}

// resume notes that a pod runs the workload on a device from now on. If it already did, the time since
// we last saw it is a gap.
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

// endWindow notes that a window of a pod on a device ended at a time.
func (w *workload) endWindow(d *device, at time.Time) {
	i := w.podAt(d.holder.UID)
	if i < 0 {
		return
	}

	p := &w.Pods[i]

	// Windows of all devices end at the same time, so the pod has another one if it was seen now.
	hasSeveral := p.Last == at.Unix()

	p.Last = at.Unix()
	p.Idle = 0

	if !hasSeveral && !d.idle.IsZero() && !d.up.IsZero() {
		p.Idle = max(d.idle.Unix(), d.up.Unix())
	}
}

// shortRestart is how long an exporter can be away before we say that an idle device may have worked
// meanwhile.
const shortRestart = 15 * time.Minute

// restoreIdle restores since when the pod of a device has been up and idle, from before a restart of the
// exporter.
func (w *workload) restoreIdle(d *device, now time.Time) {
	i := w.podAt(d.holder.UID)
	if i < 0 || w.Pods[i].Idle == 0 || now.Unix()-w.Pods[i].Last > int64(shortRestart.Seconds()) {
		return
	}

	d.idle = time.Unix(w.Pods[i].Idle, 0)
	d.up = time.Unix(w.Pods[i].Idle, 0)
}

// podAt returns the index of a pod; -1 if it is not known.
func (w *workload) podAt(uid string) int {
	return slices.IndexFunc(w.Pods, func(p podSeen) bool { return p.UID == uid })
}

// forgetPods drops the pods that were not seen for a day.
func (w *workload) forgetPods(now time.Time) {
	w.Pods = slices.DeleteFunc(w.Pods, func(p podSeen) bool { return now.Unix()-p.Last > 24*60*60 })
}

// firstMinutes is how long a workload is observed until its memory shows whether a framework takes it in
// advance, see workload.FirstMemory.
const firstMinutes = 10 * time.Minute

// mark sets a time if something was seen then.
func mark(at *int64, seen bool, now time.Time) {
	if seen {
		*at = now.Unix()
	}
}

// today returns the sums of the current day. A new day takes the place of the oldest one.
func (w *workload) today(now time.Time) *daySums {
	number := dayOf(now)

	d := w.slotOf(number)
	if d.Day != number {
		*d = daySums{Day: number}
		w.Ends = w.Ends.onNewDay()
		w.clearEngines(slotOf(number))
	}

	return d
}

// dayOf returns the number of the day of UTC since 1970.
func dayOf(at time.Time) int32 { return int32(math.Floor(float64(at.Unix()) / (24 * 60 * 60))) }

// slotOf returns the slot of a day. The sums in it can still belong to another day.
func (w *workload) slotOf(day int32) *daySums { return &w.Days[slotOf(day)] }

// slotOf returns the index of a day in arrays of days.
func slotOf(day int32) int32 { return (day%keptDays + keptDays) % keptDays }

// maxWeight is the weight at which all weights are scaled down. It is far below what a float32 can hold.
const maxWeight = 1 << 20

// growth returns how much more an observation counts now than one at the reference time.
func (w *workload) growth(now time.Time) float64 {
	return math.Exp2(now.Sub(w.Reference).Hours() / cmp.Or(24*float64(w.halfLife), halfLife.Hours()))
}

// weight returns how much an observation counts now, relative to one at the reference time. If that is
// too much, it makes now the reference time.
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

	for i := range w.Queues {
		w.Queues[i].Passed /= float32(weight)
	}

	for _, seconds := range w.weightedSeconds() {
		*seconds /= float32(weight)
	}

	w.Reference = now

	return 1
}

// weightedSeconds returns the sums of seconds that have the weights of the histograms.
func (w *workload) weightedSeconds() [12]*float32 {
	return [...]*float32{
		&w.InSlices,
		&w.MemoryUnread,
		&w.MemoryUnreadBusy,
		&w.MediaUnread,
		&w.MediaUnreadBusy,
		&w.ActivityUnread,
		&w.BusyUnread,
		&w.GraphicsUnread,
		&w.NVLinkUnread,
		&w.NVLinkUnreadBusy,
		&w.PCIeUnread,
		&w.Throttled,
	}
}

// sums adds up the last keptDays days. If the clock was set back, a day can be tomorrow's; it counts.
func (w *workload) sums(now time.Time) daySums {
	var all daySums

	today := dayOf(now)
	for _, d := range w.Days {
		if d.Day <= today-keptDays {
			continue
		}

		all.Observed += d.Observed
		all.Held += d.Held
		all.Sampled += d.Sampled
		all.Memory = max(all.Memory, d.Memory)
		all.Settled = max(all.Settled, d.Settled)
		all.Busy10 = max(all.Busy10, d.Busy10)
		all.PCIe = max(all.PCIe, d.PCIe)
		all.MinWidth = smallerKnown(all.MinWidth, d.MinWidth)
		all.MinBandwidth = smallerKnown(all.MinBandwidth, d.MinBandwidth)
	}

	return all
}

// observedDays counts the days of the last keptDays in which something was observed.
func (w *workload) observedDays(now time.Time) int {
	return w.countDays(now, func(d *daySums) bool { return d.Observed > 0 })
}

// countDays counts the days of the last keptDays with a property.
func (w *workload) countDays(now time.Time, has func(*daySums) bool) int {
	days := 0
	today := dayOf(now)

	for i := range w.Days {
		if d := &w.Days[i]; d.Day > today-keptDays && has(d) {
			days++
		}
	}

	return days
}

// isProvisional reports whether the evidence covers less than a week: it began later, or lacks too many
// of the last days, or we know only from a sample how much of the device its kernels fill.
func (w *workload) isProvisional(now time.Time) bool {
	return now.Sub(w.First) < provisionalBefore || w.observedDays(now) < MinObservedDays ||
		w.isSampled()
}

// MinObservedDays is how many days of a week must be observed: it may lack a weekend.
const MinObservedDays = 5

// settled returns the largest use of memory while no start was under way, in MiB. If that is unknown, it
// returns the largest use.
func (d *daySums) settled() float32 { return cmp.Or(d.Settled, d.Memory) }

// trendBytesPerDay returns the slope of the daily maxima of memory, without starts. It fits a line by
// least squares through the last three days, the last four and so on, and returns the steepest slope,
// since growth can have begun lately. It is 0 if memory shrinks, or is known for less than a day and a
// half.
func (w *workload) trendBytesPerDay(now time.Time) float64 {
	today := dayOf(now)
	hours := float64(now.Unix())/(24*60*60) - float64(today) // of today so far, in days
	steepest := 0.
	var n, sx, sy, sxx, sxy float64

	for back := range int32(keptDays) {
		d := w.slotOf(today - back)
		if d.Day != today-back || d.Memory == 0 {
			continue
		}

		// The maximum of a day counts at its end, the one of today now. x is in days from now.
		x := min(0, float64(1-back)-hours)
		y := float64(d.settled())

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
