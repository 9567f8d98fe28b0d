package poll

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// adjustForClockSetBack shifts all remembered times if the clock was set back, so that their ages
// are the same as in the last cycle; otherwise they would lie in the future and never expire. If
// the clock leaps forward, everything seems older until the next reading. With time.Now, which has
// a monotonic reading, neither happens.
func (p *Poller) adjustForClockSetBack(now time.Time) {
	last := p.lastCycle
	p.lastCycle = now

	if last.IsZero() || !now.Before(last) {
		return
	}

	by := now.Sub(last)
	shiftTimes(
		by,
		&p.discovery.started,
		&p.driverAnsweredAt,
		&p.pods.call.started,
		&p.pods.success,
		&p.profiling.call.started,
		&p.profiling.success,
		&p.jobs.call.started,
		&p.jobs.success,
		&p.jobs.readAt,
	)

	for _, t := range p.gpus {
		shiftTimes(
			by,
			&t.firstSeen,
			&t.receivedAt,
			&t.read.started,
			&t.progressedAt,
			&t.last.LastRead,
			&t.profiling.requestedAt,
			&t.lastReported,
			&t.lastReportedAll,
			&t.completeSince,
			&t.displacedSince,
			&t.energyReadAt,
		)

		for _, h := range t.exclusive.open {
			shiftTimes(by, &h.since, &h.countedSince)
		}

		for _, list := range [][]gpu.GPUInstance{t.last.Instances, t.layout.instances} {
			for i := range list {
				gi := &list[i]
				shiftTimes(by, &gi.LastRead, &gi.Since)

				for c := range gi.ComputeInstances {
					shiftTimes(by, &gi.ComputeInstances[c].Since)
				}
			}
		}
	}

	for _, t := range p.missing {
		shiftTimes(by, &t.firstSeen)
	}
}

// shiftTimes adds by to all times that are not zero.
func shiftTimes(by time.Duration, times ...*time.Time) {
	for _, t := range times {
		if !t.IsZero() {
			*t = t.Add(by)
		}
	}
}
