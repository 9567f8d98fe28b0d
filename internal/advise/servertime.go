package advise

import (
	"cmp"
	"slices"
	"time"
)

// A server that is silent may need any amount of memory meanwhile. So what it says counts only if each
// replica of the workload has said it for nearly all of the time that it held its device, from the first
// answer of any of them on.

// serverReplica is for how long a pod of a workload has held its device, and for how long its server has
// said meanwhile how much of its cache is used.
type serverReplica struct {
	UID  string // of the pod
	Last int64  // when it held its device last, in Unix seconds
	Days [keptDays]serverTime
}

// serverTime is one day of a serverReplica.
type serverTime struct {
	Day         int32   // since 1970; 0 is no day
	Held, Asked float32 // seconds
}

// today returns the times of the current day.
func (p *serverReplica) today(now time.Time) *serverTime {
	number := dayOf(now)

	t := &p.Days[slotOf(number)]
	if t.Day != number {
		*t = serverTime{Day: number}
	}

	return t
}

// sums adds up the last keptDays days.
func (p *serverReplica) sums(now time.Time) serverTime {
	var all serverTime

	for _, t := range p.Days {
		if t.Day > dayOf(now)-keptDays {
			all.Held += t.Held
			all.Asked += t.Asked
		}
	}

	return all
}

// merge adds the days of another replica. It keeps the later one of two days that share a slot.
func (p *serverReplica) merge(o *serverReplica) {
	for i, t := range o.Days {
		into := &p.Days[i]

		switch {
		case t.Day > into.Day:
			*into = t
		case t.Day == into.Day:
			into.Held += t.Held
			into.Asked += t.Asked
		}
	}
}

// holdServers counts the time since the last Snapshot for the servers of all pods that hold a device. If a
// pod is new on its device, the exporter was away, or did not see what held it: that time counts, too, if
// the pod was known before.
func (a *Advisor) holdServers(passed passedTime) {
	for _, d := range a.order {
		if d.workload == nil || d.workload.Reserve == nil || d.holder.UID == "" || !d.seen.Equal(a.now) {
			continue
		}

		r := d.workload.Reserve
		held := passed.held

		if d.since.Equal(a.now) {
			held = 0
			if p := r.find(d.holder.UID); p != nil {
				held = max(0, float64(a.now.Unix()-p.Last))
			}
		}

		r.hold(d.holder.UID, held, a.now)
	}
}

// hold counts seconds for which a pod has held its device. It does not before the first answer.
func (r *reserve) hold(uid string, seconds float64, now time.Time) {
	if r.Since == 0 {
		return
	}

	p := r.replica(uid, now)
	p.Last = now.Unix()
	p.today(now).Held += float32(seconds)
}

// find returns the replica of a pod, or nil.
func (r *reserve) find(uid string) *serverReplica {
	at := slices.IndexFunc(r.Replicas, func(p serverReplica) bool { return p.UID == uid })
	if at < 0 {
		return nil
	}

	return &r.Replicas[at]
}

// replica returns the replica of a pod, and adds it if it is new. It drops those that were not seen for
// keptDays. If there are too many, it makes one of the two that have gone first.
func (r *reserve) replica(uid string, now time.Time) *serverReplica {
	if p := r.find(uid); p != nil {
		return p
	}

	r.Replicas = slices.DeleteFunc(r.Replicas, func(p serverReplica) bool {
		return now.Unix()-p.Last > int64((keptDays * 24 * time.Hour).Seconds())
	})

	if len(r.Replicas) >= maxPods {
		slices.SortStableFunc(r.Replicas, func(a, b serverReplica) int { return cmp.Compare(a.Last, b.Last) })
		r.Replicas[1].merge(&r.Replicas[0])
		r.Replicas = slices.Delete(r.Replicas, 0, 1)
	}

	r.Replicas = append(r.Replicas, serverReplica{UID: uid, Last: now.Unix()})

	return &r.Replicas[len(r.Replicas)-1]
}

// silence returns the share of the time that a replica held its device for which its server did not say how
// much of its cache is used: of the most silent replica, or of all together if that is more. A replica
// that is younger than minHours may be silent for as long as one of that age, since it has to load its
// model. The result is 1 if we have not counted that time.
func (r *reserve) silence(now time.Time, minHours float64) float64 {
	if r.Since == 0 {
		return 1
	}

	var all serverTime

	most := 0.

	for i := range r.Replicas {
		t := r.Replicas[i].sums(now)
		all.Held += t.Held
		all.Asked += t.Asked
		most = max(most, silentShare(float64(t.Held)/3600, float64(t.Asked)/3600, minHours))
	}

	return max(most, silentShare(float64(all.Held)/3600, float64(all.Asked)/3600, minHours))
}

// silentShare returns the share of the held hours in which a server was not known. Fewer than minHours count
// as that many.
func silentShare(held, asked, minHours float64) float64 {
	silent := max(0, held-asked)
	if silent == 0 {
		return 0
	}

	return silent / max(held, minHours)
}

// shift adds a duration to all times of a server, and a number of days to its days.
func (r *reserve) shift(by time.Duration, days int32) {
	if r == nil {
		return
	}

	shiftSeconds(by, &r.Last, &r.Since, &r.Until)

	shiftDays(&r.Days, days, func(d *reserveDay) *int32 { return &d.Day })

	for i := range r.Replicas {
		shiftDays(&r.Replicas[i].Days, days, func(t *serverTime) *int32 { return &t.Day })
	}
}

// shiftReplicas adds a duration to the times at which replicas held their devices last.
func (r *reserve) shiftReplicas(by time.Duration) {
	if r == nil {
		return
	}

	for i := range r.Replicas {
		shiftSeconds(by, &r.Replicas[i].Last)
	}
}

// startAnew drops what older versions have written: they did not count for how long a server was silent.
// The next answer is the first one.
func (r *reserve) startAnew() {
	if r != nil && r.Since == 0 {
		r.Days = [keptDays]reserveDay{}
		r.Replicas = nil
	}
}

// copy returns a copy that shares nothing with r; nil of nil.
func (r *reserve) copy() *reserve {
	c := copyOf(r)
	if c != nil {
		c.Replicas = slices.Clone(c.Replicas)
	}

	return c
}
