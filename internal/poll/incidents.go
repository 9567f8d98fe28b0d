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
	xid      uint64
	instance gpu.Opt[gpu.InstanceID]
	logged   bool // its first report is from the kernel's log
	paired   bool // the other source has reported it, too
	before   bool // it began before we first saw the GPU: we have not counted it

	first, last time.Time // of its reports
}

// isNear reports whether a time is within a gap of the incident's reports.
func (k *incident) isNear(at time.Time, gap time.Duration) bool {
	return at.Sub(k.last) <= gap && k.first.Sub(at) <= gap
}

// incidents are the last incidents of a GPU, in their order.
type incidents []incident

// record records a report of an XID. isNew is whether it is about a new incident, located whether
// it is the first to name the instance of a known one.
//
// An XID that the driver reports for each channel is one incident for a burst of reports from both
// sources, which ends after burstGap without one. Every report of any other XID is an incident,
// except that a line of the kernel's log and an event of the driver within pairGap are the same
// one. They pair one to one: 3 events and 2 lines are 3 incidents.
func (l *incidents) record(e *gpu.Event, now time.Time) (isNew, located bool) {
	// Forget incidents that are old now, however old the report is.
	*l = slices.DeleteFunc(*l, func(known incident) bool {
		age := now.Sub(known.last)
		return age > keepIncidents || age < -burstGap // in the future, if the clock was set back
	})

	perChannel := gpu.XIDByNumber(e.XID).PerChannel

	known := l.find(e, func(k *incident) bool {
		if perChannel {
			return k.isNear(e.Time, burstGap)
		}

		return k.logged != e.Logged && !k.paired && k.isNear(e.Time, pairGap)
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
			known.instance = e.Instance // a report that names another instance is now another incident
			located = !known.before
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
		(*l)[len(*l)-1].before = true
	}
}

// find returns the first incident of an event's XID and GPU instance that matches, else the first
// one that matches if either names no instance: the kernel's half of the driver logs none
// (open-gpu-kernel-modules 595.45.04, krcGetMigAttributionForError_KERNEL). It returns nil if there
// is none.
func (l *incidents) find(e *gpu.Event, matches func(*incident) bool) *incident {
	var other *incident

	for i := range *l {
		known := &(*l)[i]
		switch {
		case known.xid != e.XID || !matches(known):
		case known.instance == e.Instance:
			return known
		case other == nil && (!known.instance.Present() || !e.Instance.Present()):
			other = known
		}
	}

	return other
}
