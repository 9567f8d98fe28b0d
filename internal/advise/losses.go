package advise

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A slice loses work in two ways. What it has no time for is not done: clients give up, or it is late
// for ever. That is counted minute by minute, since bursts of a few minutes can have most of the work
// of days and yet be less than a hundredth of the time. And clients that wait for their answers send
// fewer requests if those take longer, long before the slice is busy all the time.

const (
	// leastKept is the share of the work of the days that are kept for which a slice must have time:
	// a twentieth may be lost, and other days have more work than these.
	leastKept = 0.97
	// leastWaiting is the throughput that one client must keep that does nothing but wait and think.
	leastWaiting = 0.95
	// leastIfWaiting is the same where it is not known whether clients wait: most workloads have
	// others, or more than one, and those lose less.
	leastIfWaiting = 0.92
)

// lose adds the work of a minute, in busy seconds of the device, that keeps a slice busy for a share
// of the minute, above 1 if it falls behind.
func (s *queueSpan) lose(work, load float64) {
	s.Work += float32(work)
	if load > 1 {
		s.Lost += float32(work * (1 - 1/load))
	}
}

// kept returns the share of the work of the days that are kept for which a slice would have had
// time; 1 if none was counted.
func (u *queueUse) kept(now time.Time) float64 {
	var work, lost float64

	for _, s := range u.Spans {
		if int32(s.Number) > spanOf(now)-keptSpans {
			work += float64(s.Work)
			lost += float64(s.Lost)
		}
	}

	if work == 0 {
		return 1
	}

	return 1 - lost/work
}

// throughputIn returns what a profile that stretches kernels by p95 leaves of the throughput of a
// workload, as far as it is known: of the work of all days, and of one client that waits for its
// answers in the busiest hour. Where the service time of requests is known, their clients do not
// wait. Strictly, all kernels of that hour may have been stretched by most.
func (e *Evidence) throughputIn(p *gpu.Profile, p95 Stretch, strict bool) (kept, waiting float64) {
	if e.queueOf == nil {
		return 1, 1
	}

	use := e.queueOf(p.SMs, p.MemorySlices)
	if use == nil {
		return 1, 1
	}

	h := use.busiest(e.now)
	load := float64(h.Load)

	if strict {
		load = max(load, float64(h.Busy)*p95.High)
	}

	waiting = 1
	if !e.requests.service.Present() {
		waiting = throughputOfOne(float64(h.Busy), load)
	}

	return use.kept(e.now), waiting
}

// leastWaiting returns the throughput that one client must keep. An annotation says that none waits
// for a single request: that counts, except strictly. Where it is not known whether clients wait, a
// higher limit than the default says that they may wait for longer.
func (r requests) leastWaiting(l limits) float64 {
	switch {
	case l.strict || r.closed && !r.said:
		return leastWaiting
	case r.said || l.stretch > DefaultOptions().MaxStretch:
		return 0
	}

	return leastIfWaiting
}

// throughputOfOne returns the throughput of one client in a slice, relative to the device that it
// kept busy for a share of the time: it thinks for as long as before, and its requests take as much
// longer as they need of the slice.
func throughputOfOne(busy, load float64) float64 { return 1 / (1 + max(0, load-busy)) }

// loses reports whether a slice that has stretched kernels on average so far takes more of the
// throughput of one client that waits for its answers than such a client may lose: by the last hour,
// in which less work was done than in the busiest one on the whole GPU, and about as much would have
// been without the loss. If as much was done, none is lost; if much less, it may be a quiet hour.
func (d *device) loses(mean float64, r requests, l limits) bool {
	busy := float64(d.hour.latest().Busy)
	work := busy / mean // on the whole GPU
	kept := 1 - busy + work
	before := float64(d.workload.BeforeBusy) / wholeUnit
	least := leastWaiting

	switch {
	case r.service.Present() || work >= sameWork*before:
		return false
	case work < likeBusiest*before*kept:
		return false // a quiet hour: all of its clients would not have done as much on the whole GPU
	case !r.said:
		r.closed = false // what is busy for nine tenths of the time need not be
		least = r.leastWaiting(limits{stretch: l.stretch})
	}

	return kept < least
}

// sameWork is the share of the work of an hour from which on an hour has as much.
const sameWork = 0.97

// likeBusiest is the share of the work of the busiest hour from which on an hour is like it.
const likeBusiest = 0.85
