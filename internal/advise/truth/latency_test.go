package truth

import (
	"cmp"
	"math"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
	"github.com/mig-exporter/mig-exporter/internal/sim/requests"
)

const (
	// judgedHours are the busiest ones of a week, in which requests are compared.
	judgedHours = 4
	// minRequests are those from which on a p95 is one.
	minRequests = 100
)

// judged are the requests of a workload in the busiest hours of a week on its whole GPU.
type judged struct {
	hours    []int
	whole    []*servedHour
	answered float64
	latency  quantiles
}

// quantiles are those of latency, in seconds, or of two latencies as a ratio.
type quantiles struct{ p90, p95, p99 float64 }

// waits is how the requests of a workload fare in a slice, in the hours that are judged.
type waits struct {
	known         bool    // false if there were too few requests
	latency, load float64 // p95 relative to the whole GPU; busy time in the slice
	throughput    float64 // relative to the whole GPU
	// beside are p90 and p99 of latency, relative to the whole GPU; p95 is latency.
	beside quantiles
	// bad is the first minute of the first hour that passed a limit, if all of them together do; -1
	// otherwise.
	bad int
}

// judge returns the requests of a workload in the busiest hours of the week before or after the
// move.
func (s *subject) judge(n *node, week int) *judged {
	if s.judged[week] != nil {
		return s.judged[week]
	}

	from := [2]int{observedMinutes - weekMinutes, observedMinutes}[week]
	busy := map[int]float64{}
	var hours []int

	for minute := from; minute < from+weekMinutes; minute++ {
		running, _ := s.work.runs(minute)
		if !running {
			continue
		}

		if hours == nil || hours[len(hours)-1] != minute/60 {
			hours = append(hours, minute/60)
		}

		busy[minute/60] += s.work.demand(minute).Busy
	}

	slices.SortStableFunc(hours, func(a, b int) int { return cmp.Compare(busy[b], busy[a]) })
	hours = hours[:min(judgedHours, len(hours))]
	slices.Sort(hours)

	j := &judged{hours: hours}
	s.judged[week] = j
	var all []requests.Result

	for _, hour := range hours {
		served := s.work.serve(hour, requestsDevice(n.wholeDevice()))
		j.whole, all = append(j.whole, served), append(all, served.results...)
		j.answered += served.answered()
	}

	j.latency = quantilesOf(all)

	return j
}

// waitsIn returns how the requests fare on a device.
func (j *judged) waitsIn(w *workload, on kernels.Device) waits {
	v := waits{bad: -1, throughput: 1, latency: 1}
	if j.answered < minRequests {
		return v
	}

	var served []*servedHour
	var all []requests.Result
	done := 0.

	for _, hour := range j.hours {
		got := w.serve(hour, requestsDevice(on))

		served, all, done = append(served, got), append(all, got.results...), done+got.answered()
		for _, p := range got.polls {
			v.load += p.Busy / float64(len(got.polls)*len(j.hours))
		}
	}

	v.known = true
	v.beside = quantilesOf(all).dividedBy(j.latency)
	v.latency = v.beside.p95
	v.throughput = done / j.answered

	if !v.regret(w) {
		return v
	}

	for i, got := range served {
		whole := j.whole[i]
		if w.serves.exceeds(quantilesOf(got.results).p95, quantilesOf(whole.results).p95, got.answered(), whole.answered()) {
			v.bad = j.hours[i] * 60
			break
		}
	}

	return v
}

// quantilesOf returns the quantiles of the latencies of all requests.
func quantilesOf(results []requests.Result) quantiles {
	var all []float64
	for i := range results {
		all = append(all, results[i].Latencies...)
	}

	if len(all) == 0 {
		return quantiles{}
	}

	slices.Sort(all)

	// The smallest latency that a share q of the requests does not exceed.
	at := func(q float64) float64 { return all[int(math.Ceil(q*float64(len(all))))-1] }

	return quantiles{at(0.9), at(0.95), at(0.99)}
}

func (q quantiles) dividedBy(by quantiles) quantiles {
	return quantiles{q.p90 / by.p90, q.p95 / by.p95, q.p99 / by.p99}
}

// exceeds reports whether requests wait too long in a slice, or, if clients wait for them, come too
// seldom.
func (v *serving) exceeds(latency, before, answered, all float64) bool {
	if v.clients > 0 {
		return answered < minThroughput*all
	}

	return latency > maxStretch*resolution*before
}

// regret reports whether the requests of a workload fare worse than is promised.
func (v *waits) regret(w *workload) bool {
	return v.known && w.serves.exceeds(v.latency, 1, v.throughput, 1)
}

// passesAtP95Alone reports whether p95 of latency passes the limit by far, and neither p90 nor p99 does:
// one request of many is long, and p95 lies between the short and the long ones. No poll shows that, see
// TestPollsDoNotShowBetweenWhichRequestsP95Lies.
func (v *waits) passesAtP95Alone(w *workload) bool {
	return v.regret(w) && w.open() && w.serves.hasLong() && v.latency >= farAbove*v.beside.p99 &&
		max(v.beside.p90, v.beside.p99) <= maxStretch*resolution
}

// farAbove is how many times the stretch of p99 that of p95 is if p95 lies between two kinds of
// requests.
const farAbove = 1.2

// hasLong reports whether requests of one kind are longer than others.
func (v *serving) hasLong() bool { return v.each && v.spread(0) != v.spread(1) }

// Weeks that are judged, and what is hidden.
const (
	before = iota // the move
	after
	afterWithLoss
)

// waitsOf returns how the requests of a workload fare in a size; the zero value if it answers none,
// or can change.
func (s *subject) waitsOf(n *node, z *size, when int) *waits {
	if z.waits[when] != nil {
		return z.waits[when]
	}

	z.waits[when] = &waits{bad: -1}
	if s.work.serves == nil {
		return z.waits[when]
	}

	on := z.on
	if when == afterWithLoss {
		on = z.lossy
	}

	v := s.judge(n, min(when, after)).waitsIn(s.work, on)
	z.waits[when] = &v

	return &v
}

// regrets reports whether a workload passes a limit in a size in the week after the move: of its
// requests, or as the workload model has it minute by minute. Those whose clients wait for them are
// promised their throughput alone.
func (s *subject) regrets(n *node, z *size) bool {
	return z.real.regret(s.work.promised()) || s.waitsOf(n, z, after).regret(s.work)
}

// promised returns the stretch that a workload is promised at most.
func (w *workload) promised() float64 {
	if w.serves != nil && w.serves.clients > 0 {
		return noLimit
	}

	return maxStretch
}

// foreseeably reports whether a size would have done in the time that was observed, with no
// reserve. Clients that wait can be told from requests that come anyway only by an annotation.
func (s *subject) foreseeably(n *node, z *size) bool {
	v := s.waitsOf(n, z, before)
	if w := s.work; w.serves != nil && w.serves.known {
		return z.foreseen.does(w.promised()) && !v.regret(w)
	}

	return z.foreseen.does(maxStretch) && !(v.known && v.latency > maxStretch*resolution)
}

// noLimit is a stretch that no profile reaches.
const noLimit = 1e9
