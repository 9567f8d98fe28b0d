package advise

import (
	"math"
	"time"
)

// A single wrong time would move all evidence at once. So we believe a clock that is ahead by more than
// farAhead only once it has been there for clockDoubt. After a restart we believe it at once, as the
// exporter may not have run for so long.
const (
	farAhead   = 24 * time.Hour
	clockDoubt = 10 * time.Minute
)

// doubtsClock reports whether a time is too far ahead of the last one to be believed yet.
func (a *Advisor) doubtsClock(now time.Time) bool {
	if a.now.IsZero() || a.restored || now.Sub(a.now) <= farAhead {
		a.ahead = time.Time{}
		return false
	}

	if a.ahead.IsZero() || now.Before(a.ahead) {
		a.ahead = now
	}

	return now.Sub(a.ahead) < clockDoubt
}

// followClock shifts all remembered times if the clock was set back, or was set far ahead and is believed.
// Their ages stay what they were: nothing lies in the future, and nothing ages by a time that has not
// passed. Once the clock is right again, everything is where it was.
//
// After a restart we cannot tell a clock that was set ahead from a long pause. So pods that run on have
// a gap: they may have held their devices all that time.
func (a *Advisor) followClock(now time.Time) {
	if a.now.IsZero() || !now.Before(a.now) && now.Sub(a.now) <= farAhead {
		return
	}

	by := now.Sub(a.now)
	gap := a.restored && by > 0

	for _, d := range a.order {
		d.ends = d.ends.shifted(by)
		shiftTimes(
			by,
			&d.seen,
			&d.since,
			&d.came,
			&d.idle,
			&d.memoryRead,
			&d.up,
			&d.empty,
			&d.start.began,
			&d.start.grown,
			&d.start.earlier.began,
			&d.server.at,
			&d.server.full,
		)
		d.start.loading.shift(by)
		d.traffic = traffic{}
	}

	for i := range a.down {
		if !gap {
			a.down[i].shift(by)
		}
	}

	// Days shift by whole days. We keep the rest for the next change of the clock.
	a.unshifted += by
	days := int32(math.Round(a.unshifted.Hours() / 24))
	a.unshifted -= time.Duration(days) * 24 * time.Hour

	for _, w := range a.workloads {
		w.shift(by, days)

		if !gap {
			w.shiftPods(by)
		}
	}

	a.now = now
	a.ahead = time.Time{}
}

// shift adds a duration to all times of a workload except the times of its pods, and a number of
// days to its days.
func (w *workload) shift(by time.Duration, days int32) {
	shiftTimes(by, &w.First, &w.Last, &w.Reference)
	shiftSeconds(by, &w.NVLink, &w.Graphics, &w.InStep)

	for kind, day := range w.UnreadDays {
		if day != 0 {
			w.UnreadDays[kind] = uint16(int32(day) + days)
		}
	}

	for kind := range w.Media {
		shiftSeconds(by, &w.Media[kind])
	}

	for i := range w.Engines {
		w.Engines[i].shift(by, days, &w.Days)
	}

	for i := range w.Queues {
		w.Queues[i].shift(days)
	}

	w.Reserve.shift(by, days)

	shiftDays(&w.Days, days, func(d *daySums) *int32 { return &d.Day })
}

// shiftDays adds a number to the days of an array, and puts each into its slot. day returns which day it
// is; the zero value of a day is none.
func shiftDays[T comparable](list *[keptDays]T, by int32, day func(*T) *int32) {
	var none T

	days := *list
	*list = [keptDays]T{}

	for _, d := range days {
		if d != none {
			*day(&d) += by
			list[slotOf(*day(&d))] = d
		}
	}
}

// shiftPods adds a duration to the times of a workload's pods and their servers.
func (w *workload) shiftPods(by time.Duration) {
	for i := range w.Pods {
		shiftSeconds(by, &w.Pods[i].Last, &w.Pods[i].Idle)
	}

	w.Reserve.shiftReplicas(by)
}

// shiftTimes adds by to all times that are not zero.
func shiftTimes(by time.Duration, times ...*time.Time) {
	for _, t := range times {
		if !t.IsZero() {
			*t = t.Add(by)
		}
	}
}

// shiftSeconds adds by to all times in Unix seconds that are not 0. It rounds down, so that none gets
// into the future.
func shiftSeconds(by time.Duration, times ...*int64) {
	for _, t := range times {
		if *t != 0 {
			*t += int64(math.Floor(by.Seconds()))
		}
	}
}
