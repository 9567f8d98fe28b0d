package poll

import "time"

// adjustForClockSetBack shifts all remembered times if the clock was set back, so that their ages are those of the last
// cycle; otherwise they would lie in the future and never expire. A clock that leaps forward makes everything older,
// which the next reading corrects. With time.Now neither happens, since it has a monotonic reading.
func (p *Poller) adjustForClockSetBack(now time.Time) {
	last := p.lastCycle
	p.lastCycle = now
	if last.IsZero() || !now.Before(last) {
		return
	}
	by := now.Sub(last)
	shiftTimes(by, &p.discovery.started, &p.driverAnsweredAt, &p.pods.call.started, &p.pods.success,
		&p.profiling.call.started, &p.profiling.success, &p.jobs.call.started, &p.jobs.success)
	for _, t := range p.gpus {
		shiftTimes(by, &t.firstSeen, &t.receivedAt, &t.read.started, &t.last.LastRead, &t.profiling.requestedAt,
			&t.lastReported, &t.lastReportedAll, &t.completeSince, &t.displacedSince, &t.energyReadAt)
		for _, h := range t.holdings.open {
			shiftTimes(by, &h.since, &h.countedSince)
		}
		for i := range t.last.Instances {
			gi := &t.last.Instances[i]
			shiftTimes(by, &gi.LastRead, &gi.Since)
			for c := range gi.ComputeInstances {
				shiftTimes(by, &gi.ComputeInstances[c].Since)
			}
		}
		for i := range t.layout.tree {
			node := &t.layout.tree[i]
			shiftTimes(by, &node.since)
			for c := range node.computeInstances {
				shiftTimes(by, &node.computeInstances[c].since)
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
