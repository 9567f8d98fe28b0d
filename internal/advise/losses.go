package advise

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A slice loses work in two ways:
//
//   - It has no time for the work: clients give up, or the work is late for ever. We count that minute
//     by minute, since bursts of a few minutes can have most of the work of days and yet take less than
//     a hundredth of the time.
//   - Clients that wait for their answers send fewer requests if those take longer, long before the
//     slice is busy all the time.

const (
	// leastKept is the share of the work of the kept days that a slice must have time for. Losing a
	// twentieth would be bearable, but other days may have more work than these.
	leastKept = 0.97
	// leastWaiting is the throughput that a single client must keep, which sends its next request
	// some time after the answer to the last one.
	leastWaiting = 0.95
	// leastIfWaiting is the same if we do not know whether clients wait: most workloads have clients
	// that do not, or several, and these lose less.
	leastIfWaiting = 0.92
)

// addWork adds the work of a minute, in busy seconds of the device, which would keep a slice busy for a
// share of the minute. A slice with a load of 1.25 loses a fifth of it.
func (s *queueSpan) addWork(work, load float64) {
	s.Work += float32(work)
	if load > 1 {
		s.Lost += float32(work * (1 - 1/load))
	}
}

// kept returns the share of the work of the kept days that a slice would have had time for; 1 if none
// was counted.
func (u *queueUse) kept(now time.Time) float64 {
	var work, lost float64

	for i := range u.Spans {
		if s := &u.Spans[i]; s.isKept(now) {
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
// workload: kept is the share of all work, waiting the throughput of a single client in the busiest
// hour that waits for its answers. Both are 1 if unknown. A job is such a client itself, if it does its
// next step after the last one; it has no hours, and its mean counts.
func (e *Evidence) throughputIn(p *gpu.Profile, p95 Stretch, strict bool) (kept, waiting float64) {
	var use *queueUse
	if e.queueOf != nil {
		use = e.queueOf(p.SMs, p.MemorySlices)
	}

	if use == nil && e.requests.closed && !e.stretchUnknown() {
		return 1, throughputOfOne(e.BusyMean, e.BusyMean*p95.deciding(strict))
	}

	if use == nil {
		return 1, 1
	}

	h := use.busiest(e.now)
	load := float64(h.Load)

	// Strictly, that hour may have had the kernels that the slice stretches most.
	if strict {
		load = max(load, float64(h.Busy)*p95.High)
	}

	// With a service time, the operator says that clients do not wait for each other's answers.
	waiting = 1
	if !e.requests.service.Present() {
		waiting = throughputOfOne(float64(h.Busy), load)
	}

	return use.kept(e.now), waiting
}

// leastWaiting returns the throughput that a single client must keep.
func (r requests) leastWaiting(l limits) float64 {
	switch {
	case l.strict || r.closed && !r.annotated:
		return leastWaiting
	case r.annotated:
		return 0 // it says that no client waits for a single request
	case l.stretch > DefaultOptions().MaxStretch:
		return 0 // a higher limit says that clients may wait for longer
	}

	return leastIfWaiting
}

// throughputOfOne returns the throughput of a single client in a slice, relative to the device that it
// kept busy for a share of the time. Between its requests it pauses for as long as before. For
// example, if it kept the device busy for 30 % of the time and a slice takes 1.5 times as long, it has
// 1 / (1 + 0.15) = 87 % of its throughput.
func throughputOfOne(busy, load float64) float64 { return 1 / (1 + max(0, load-busy)) }

// loses reports whether a slice whose kernels are stretched by mean takes more of a single client's
// throughput than it may lose. It judges by the last hour: if as much work was done as in the busiest
// hour on the whole GPU, nothing is lost. If it was much less, it may have been a quiet hour. In
// between, the slice may be the reason.
func (d *device) loses(mean float64, r requests, l limits) bool {
	busy := float64(d.hour.latest().Busy)
	work := busy / mean // the busy time that it would have taken on the whole GPU
	kept := 1 - busy + work
	busiest := float64(d.workload.BeforeBusy) / wholeUnit

	if r.service.Present() || work >= sameWork*busiest {
		return false
	}

	// On the whole GPU, the clients of a quiet hour would not have done as much either.
	if work < likeBusiest*busiest*kept {
		return false
	}

	least := leastWaiting

	// A slice that is busy for nine tenths of the time need not have a closed loop: it may be slow.
	if !r.annotated {
		r.closed = false
		least = r.leastWaiting(limits{stretch: l.stretch})
	}

	return kept < least
}

// An hour has as much work as another one from sameWork of it on, and is like the busiest hour from
// likeBusiest of its work on.
const (
	sameWork    = 0.97
	likeBusiest = 0.85
)
