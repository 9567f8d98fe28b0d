package poll

import (
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const (
	// burstGap ends a burst: the driver reports one incident once for each channel, within
	// milliseconds.
	burstGap = 10 * time.Second
	// pairGap is how far apart the driver's event and the line of the kernel's log about one XID
	// may be.
	pairGap = 5 * time.Second
	// keepIncidents is how long we remember an incident. Reports come out of order: if we could not
	// read the kernel's log for hours, its lines are about XIDs whose events we counted then.
	keepIncidents = 24 * time.Hour
	// maxIncidents bounds how many incidents of a GPU we remember. We forget the oldest.
	maxIncidents = 1024
)

// incident is an XID that we count once, however often it is reported.
type incident struct {
	xid       uint64
	instance  gpu.Opt[gpu.InstanceID]
	logged    bool // its first report is from the kernel's log
	paired    bool // there is a second report: see record
	uncounted bool // it began before we first saw the GPU, so we have not counted it

	first, last time.Time // the times of its earliest and of its latest report
}

// isNear reports whether a time is at most gap before the first or after the last report.
func (i *incident) isNear(at time.Time, gap time.Duration) bool {
	return at.Sub(i.last) <= gap && i.first.Sub(at) <= gap
}

// incidents are the last incidents of a GPU, in the order in which we recorded them.
type incidents []incident

// record records a report of an XID. isNew is whether the report begins a new incident. located is
// whether it is the first to name the instance of an incident that we have counted.
//
// An XID that the driver reports for each channel is one incident for a burst of reports from both
// sources, which ends after burstGap without one. Every report of any other XID is an incident,
// except that a line of the kernel's log and an event of the driver within pairGap are the same
// one. They pair one to one: 3 events and 2 lines are 3 incidents.
func (l *incidents) record(e *gpu.Event, now time.Time) (isNew, located bool) {
	// Forget old incidents. Their age is relative to now, since the report itself may be old.
	*l = slices.DeleteFunc(*l, func(known incident) bool {
		age := now.Sub(known.last)
		return age > keepIncidents || age < -burstGap // in the future, if the clock was set back
	})

	perChannel := gpu.XIDByNumber(e.XID).PerChannel

	known := l.find(e, func(i *incident) bool {
		if perChannel {
			return i.isNear(e.Time, burstGap)
		}

		return i.logged != e.Logged && !i.paired && i.isNear(e.Time, pairGap)
	})
	if known != nil {
		known.paired = true
		if e.Time.After(known.last) {
			known.last = e.Time
		}

		if e.Time.Before(known.first) {
			known.first = e.Time
		}

		if e.Instance.Present() && !known.instance.Present() {
			known.instance = e.Instance // from now on, another instance means another incident
			located = !known.uncounted
		}

		return false, located
	}

	if len(*l) == maxIncidents {
		*l = slices.Delete(*l, 0, 1)
	}

	*l = append(
		*l,
		incident{xid: e.XID, instance: e.Instance, first: e.Time, last: e.Time, logged: e.Logged},
	)

	return true, false
}

// recordBefore records a report from before we first saw the GPU, so that later reports of its
// burst are no new incident.
func (l *incidents) recordBefore(e *gpu.Event, now time.Time) {
	if isNew, _ := l.record(e, now); isNew {
		(*l)[len(*l)-1].uncounted = true
	}
}

// find returns the first incident that matches and has the event's XID and GPU instance. If there
// is none, it returns the first that matches and has the XID, provided that the incident or the
// event names no instance: the kernel driver logs none (open-gpu-kernel-modules 595.45.04,
// krcGetMigAttributionForError_KERNEL). Otherwise it returns nil.
func (l *incidents) find(e *gpu.Event, matches func(*incident) bool) *incident {
	var unlocated *incident

	for i := range *l {
		known := &(*l)[i]
		switch {
		case known.xid != e.XID || !matches(known):
		case known.instance == e.Instance:
			return known
		case unlocated == nil && (!known.instance.Present() || !e.Instance.Present()):
			unlocated = known
		}
	}

	return unlocated
}
