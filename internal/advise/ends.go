package advise

import (
	"fmt"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A container that has been up for an hour has all that its start needs. Its work may still need more
// at its peaks than a slice has: then its processes end again and again, or all have ended and none
// comes. A workload on a larger device may do the same by itself: a notebook's kernels are restarted by
// its user, and a server may unload its model at night. So we compare.

const (
	// endsWithin is how long the end of a container counts. It is less than a day, so that one that is
	// restarted daily, now earlier and now later, has a single end in it.
	endsWithin = 20 * time.Hour
	// failingEnds is from how many ends on a container does not stay up.
	failingEnds = 2
	// lostAfter is how long a container may hold no memory although one of its workload was up.
	lostAfter = 4 * time.Hour
)

// ends are the times at which the processes of a container ended after it had been up for an hour, in
// Unix seconds. They are replaced and never changed, so that copies may share them.
type ends []int64

// count returns how many of the ends still count.
func (e ends) count(now time.Time) int {
	n := 0

	for _, at := range e {
		if now.Sub(time.Unix(at, 0)) < endsWithin {
			n++
		}
	}

	return n
}

// with returns the ends that still count, and another one now. It drops the oldest beyond mostEnds.
func (e ends) with(now time.Time) ends {
	e = e[len(e)-min(e.count(now), int(mostEnds)-1):] // the oldest are first
	return append(append(make(ends, 0, len(e)+1), e...), now.Unix())
}

// shifted returns the ends with a duration added to each.
func (e ends) shifted(by time.Duration) ends {
	var list ends

	for _, at := range e {
		shiftSeconds(by, &at)
		list = append(list, at)
	}

	return list
}

// usualEnds says in one byte what is usual for a workload on a device: the most ends that one of its
// containers had within endsWithin, and the flags below. Evidence of older versions has none.
type usualEnds uint8

const (
	mostEnds usualEnds = 1<<5 - 1
	counting usualEnds = 1 << 5 // a day began since all this is counted
	wasEmpty usualEnds = 1 << 6 // one held no memory for half of lostAfter
	areKnown usualEnds = 1 << 7 // all this was counted for a day at least, or from the beginning
)

// with returns what is usual if it is on two devices.
func (u usualEnds) with(o usualEnds) usualEnds {
	return max(u&mostEnds, o&mostEnds) | (u|o)&(wasEmpty|counting) | u&o&areKnown
}

// onNewDay returns what is usual when a day begins. Evidence of an older version, which counted none, is
// known from the second day on: the first one after it may have had minutes.
func (u usualEnds) onNewDay() usualEnds {
	if u&counting != 0 {
		return u | areKnown
	}

	return u | counting
}

// excuse reports whether a number of ends is usual: a container had half as many before. One end there
// is no more than the end of its pod.
func (u usualEnds) excuse(n int) bool {
	most := int(u & mostEnds)
	return u&areKnown == 0 || most >= failingEnds && n <= 2*most
}

// excuseLoss reports whether it is usual that a container holds no memory for hours.
func (u usualEnds) excuseLoss() bool { return u&areKnown == 0 || u&wasEmpty != 0 }

// noteEnd notes that the processes of a device have ended. It counts if a container was up for an hour:
// what follows the processes of a batch job is its next work.
func (d *device) noteEnd(now time.Time) {
	if d.holder.Pod == "" || !d.hasBeenUp(now) {
		return
	}

	d.ends = d.ends.with(now)
	d.workload.Ends = d.workload.Ends.with(usualEnds(d.ends.count(now)) | areKnown)
}

// noteEmpty notes that a container holds no memory.
func (d *device) noteEmpty() {
	if d.holder.Pod != "" && d.emptyFor() >= lostAfter/2 {
		d.workload.Ends |= wasEmpty
	}
}

// emptyFor returns for how long a device has held no memory, by its last reading: what could not be
// read since then is unknown.
func (d *device) emptyFor() time.Duration {
	if d.empty.IsZero() {
		return 0
	}

	return d.memoryRead.Sub(d.empty)
}

// whyLost returns a sentence on a container that came up and does not stay up; "" if it does, or if
// that is as usual.
func (d *device) whyLost(now time.Time, usual usualEnds) string {
	n := d.ends.count(now)

	switch {
	case n >= failingEnds && !usual.excuse(n):
		return fmt.Sprintf("it does not stay up: the container was killed or restarted %d times in the last "+
			"%.0f h after it had been up for an hour", n, endsWithin.Hours())
	case d.holder.Pod != "" && d.emptyFor() >= lostAfter && !usual.excuseLoss():
		return fmt.Sprintf("it is not up: the container has held no memory for %.1f h, and its pod is still there",
			d.emptyFor().Hours())
	}

	return ""
}

// downSeen is what a Checkpoint has of a container that ended lately, holds no memory or may be in its start,
// and of the device that it holds. Times are in Unix seconds.
type downSeen struct {
	GPU            gpu.UUID
	Instance       gpu.InstanceID // 0 for a whole GPU: no pod can have held both
	UID, Container string
	Last           int64 // when memory was read
	Empty          int64 // see device.empty
	Ends           ends
	Lost           bool // see device.isLosable
}

// appendDown appends what a Checkpoint must have of the container of a device, if anything.
func (d *device) appendDown(list []downSeen, now time.Time) []downSeen {
	isLost := d.isLosable(now)
	if d.holder.UID == "" || len(d.ends) == 0 && d.empty.IsZero() && !isLost {
		return list
	}

	seen := downSeen{
		GPU:       d.id.GPU(),
		Instance:  d.id.Instance().Or(0),
		UID:       d.holder.UID,
		Container: d.holder.Name,
		Last:      d.memoryRead.Unix(),
		Ends:      d.ends,
		Lost:      isLost,
	}
	if !d.empty.IsZero() {
		seen.Empty = d.empty.Unix()
	}

	return append(list, seen)
}

// shift adds a duration to all times.
func (s *downSeen) shift(by time.Duration) {
	shiftSeconds(by, &s.Last, &s.Empty)
	s.Ends = s.Ends.shifted(by)
}

// restoreDown restores what is known of the container of a device from before a restart of the exporter.
// If that took long, memory may have been held meanwhile.
func (a *Advisor) restoreDown(d *device) {
	at := slices.IndexFunc(a.down, func(s downSeen) bool {
		return s.UID != "" && s.UID == d.holder.UID && s.Container == d.holder.Name &&
			s.GPU == d.id.GPU() && s.Instance == d.id.Instance().Or(0)
	})
	if at < 0 {
		return
	}

	s := &a.down[at]
	d.ends = s.Ends
	d.start.lost = d.start.lost || s.Lost

	if s.Empty != 0 && a.now.Unix()-s.Last <= int64(shortRestart.Seconds()) {
		d.empty = time.Unix(s.Empty, 0)
	}

	a.down = slices.Delete(a.down, at, at+1)
}
