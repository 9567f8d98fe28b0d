package poll

import "time"

// turnBack moves what the loop remembers of the past with a clock that was set back: everything is as old as it was at
// the last cycle, instead of lying in the future and never coming of age. A clock that leaps forward makes everything
// older, which mends itself with the next reading. (Where time.Now measures, neither is seen: it has a monotonic part.)
func (p *Poller) turnBack(now time.Time) {
	last := p.last
	p.last = now
	if last.IsZero() || !now.Before(last) {
		return
	}
	by := now.Sub(last)
	back(by, &p.discover.started, &p.driverSeen, &p.pods.list.started, &p.pods.success,
		&p.profiling.ask.started, &p.profiling.success, &p.jobs.list.started, &p.jobs.success)
	for _, t := range p.gpus {
		back(by, &t.since, &t.taken, &t.read.started, &t.last.LastRead, &t.profiled.asked, &t.reported, &t.reportedAll, &t.completeSince, &t.displaced, &t.boardAt)
		for _, h := range t.holdings.open {
			back(by, &h.since, &h.counted)
		}
		for i := range t.last.Instances {
			gi := &t.last.Instances[i]
			back(by, &gi.LastRead, &gi.Since)
			for c := range gi.ComputeInstances {
				back(by, &gi.ComputeInstances[c].Since)
			}
		}
		for i := range t.layout.tree {
			node := &t.layout.tree[i]
			back(by, &node.since)
			for c := range node.computes {
				back(by, &node.computes[c].since)
			}
		}
	}
	for _, t := range p.missing {
		back(by, &t.since)
	}
}

// back moves times, but for those that have not come yet.
func back(by time.Duration, times ...*time.Time) {
	for _, t := range times {
		if !t.IsZero() {
			*t = t.Add(by)
		}
	}
}
