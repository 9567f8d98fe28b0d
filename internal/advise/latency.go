package advise

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A slice that stretches kernels by k also stretches the service of requests by k. Waiting grows by
// more. At a load of rho, requests that come at random wait for v/(2(1-rho)) seconds on average, where
// v is the variance of the work that comes per second (Pollaczek and Khinchine; for other arrivals it
// is Kingman's approximation). In the slice, v is k^2 times as large and the load k times. So waits
// grow by k^2 (1-rho)/(1-k rho): at a load of 0.4, a k of 1.5 makes them 3.4 times as long.
//
// Busy time shows rho and v, and so the waits. How much of a request's latency is service and how
// much is waiting we know only if an annotation says how long the service takes.
//
// This holds for waits between two polls. In longer bursts, requests wait for the backlog of the
// virtual queue, see backlog.go.

const (
	// mostLatency stands for a queue that grows without bound.
	mostLatency = 1000
	// closedFrom is the median busy share from which on we take a workload for a closed loop, whose
	// next request comes when one is served. At such a load, other requests would pile up.
	closedFrom = 0.9
	// shortestService is the service time in seconds that we assume if the variance shows none.
	shortestService = 1e-3
	// fullLoad is the largest load for which we compute waits. Above it, the virtual queue shows
	// how long requests wait.
	fullLoad = 0.95
	// shortRun is how many seconds a device can be busy without a pause before we assume that
	// requests wait for long.
	shortRun = 5
	// figureMargin covers the error of Latency.Figure: nine of ten measured latencies are at most
	// that many times as long.
	figureMargin = 1.25
	// waitMargin is the share of the expected wait that decisions add: we know less of waits than
	// of service times.
	waitMargin = 0.5
	// figureBias is how many times too large Latency.Figure would be without it, on average over 250
	// simulated nodes: the kernels of most workloads are more alike than Stretch.likely assumes.
	figureBias = 1.05
	// figureLoad is the load up to which we trust our expectation of how long requests wait. We know
	// the stretch of kernels to a tenth or two. Above this load, as much more could let the queue of
	// the slice grow without bound.
	figureLoad = 0.8
	// shortService is the longest service time in seconds whose variance polls of a second show.
	shortService = 0.25
	// quantile95 is the 95 % quantile of the standard normal distribution.
	quantile95 = 1.645
)

// requests holds what we know of the requests that a workload answers.
type requests struct {
	closed    bool                   // no client waits for a single one: throughput counts
	annotated bool                   // an annotation says so
	service   gpu.Opt[time.Duration] // of one request, on the current device
}

// requestsOf returns what we know of the requests of a workload, whose kernels the current device
// stretches. A job answers none.
func requestsOf(w *workload, e *Evidence, hints gpu.RightsizingHints, stretch float64) requests {
	// With a service time, the operator says that clients wait for single requests.
	if hints.ServiceTime.Present() {
		return requests{service: hints.ServiceTime}
	}

	return requests{
		closed:    hints.Closed || w.Key.endsByItself() || e.BusyP50/stretch >= closedFrom,
		annotated: hints.Closed,
	}
}

// lacksLatency reports whether a workload answers requests, but we have not seen an hour of it that
// shows how long they would wait. So it is in the first hour after the exporter was installed, or
// updated from a version that did not know latency.
func (e *Evidence) lacksLatency(w *workload) bool {
	return !e.requests.closed && !e.stretchUnknown() && !w.hasHour()
}

// endsByItself reports whether a workload is a job, whose pods end when their work is done.
func (k Key) endsByItself() bool { return EndsByItself(k.Owner) }

// EndsByItself reports whether an owner is a job, "Job/resnet" or "batch/4711", whose pods end when their
// work is done.
func EndsByItself(owner string) bool {
	kind, _, _ := strings.Cut(owner, "/")
	return kind == "batch" || strings.HasSuffix(kind, "Job")
}

// predictLatency returns what a profile does to the latency of requests if it stretches their
// kernels by median and by p95. It returns the zero value if the workload answers no requests, or
// if no hour of it was observed.
func (e *Evidence) predictLatency(p *gpu.Profile, median, p95 Stretch) Latency {
	if e.requests.closed || e.stretchUnknown() || e.queueOf == nil {
		return Latency{}
	}

	use := e.queueOf(p.SMs, p.MemorySlices)
	if use == nil {
		return Latency{}
	}

	h := use.busiest(e.now)
	if h.Busy == 0 {
		return Latency{}
	}

	// The interval: requests that hardly wait, to requests that mostly wait.
	l := Latency{
		Low:  min(median.Low, p95.Low),
		High: h.maxLatencyRatio(max(p95.High, float64(h.Slow))),
		Load: float64(h.spellLoad()),
	}

	// The busiest hour may have other kernels than other hours: decisions take the wider ones.
	likely := float64(h.Load / h.Busy)
	slow := max(likely, median.likely(), p95.Low)
	l.Expected = h.latencyRatio(slow, h.expectedService(), 1, backlogOfDecision)

	if service, ok := e.requests.service.Get(); ok {
		figure := h.latencyRatioFor(likely, service.Seconds(), backlogOfFigure) / figureBias
		l.Figure = min(max(figure, l.Low), l.High)
		l.Expected = h.latencyRatioFor(slow, service.Seconds(), backlogOfDecision)

		// The slice may stretch requests of a rare kind most, and all others wait for them.
		worst := h
		worst.Load = max(h.Load, h.Busy*float32(p95.High))
		l.worst = worst.latencyRatioFor(p95.High, service.Seconds(), backlogOfDecision)
	}

	l.Expected += waitMargin * max(0, l.Expected-slow)
	l.Expected = min(max(l.Expected, l.Low, float64(h.Slow)), l.High)

	if l.Load >= 1 || l.Load > figureLoad && p95.Expected > unchangedStretch {
		l.Expected = l.High // it falls behind, or may
	}

	return l
}

// deciding returns the ratio that decisions use; false if nothing is known.
func (l Latency) deciding(strict bool) (ratio float64, known bool) {
	if l == (Latency{}) {
		return 0, false
	}

	if !strict {
		return l.Expected, true
	}

	if l.Figure > 0 {
		return min(max(figureMargin*l.Expected, l.worst), l.High), true
	}

	return l.High, true
}

// variance returns the variance of the work per second: from poll to poll or from minute to minute,
// whichever is larger.
func (h *queueHour) variance() float64 { return float64(max(h.PollVariance, h.MinuteVariance)) }

// expectedService returns the mean service time in seconds that requests must have to cause the
// variance of the hour, if they come at random and their service times spread exponentially.
func (h *queueHour) expectedService() float64 {
	return max(h.variance()/(2*float64(h.Busy)), shortestService)
}

// latencyRatioFor is latencyRatio for requests whose service time in seconds we know. The variance of
// their work then shows how far service times spread: from 0, all alike, to 1, exponentially.
func (h *queueHour) latencyRatioFor(k, service, backlog float64) float64 {
	known := h.forService(service)
	spread := known.variance()/(float64(known.Busy)*service) - 1

	return known.latencyRatio(k, service, min(max(spread, 0), 1), backlog)
}

// forService returns the hour with the variance that counts for requests of a service time in
// seconds. Polls show the variance of short requests; minutes then vary by their arrivals alone.
func (h queueHour) forService(service float64) queueHour {
	if h.PollVariance > 0 && service <= shortService {
		h.MinuteVariance = 0
	}

	return h
}

// latencyRatio returns the p95 of latency in a slice that stretches kernels by k, as a multiple of the
// p95 on the device. Requests have a mean service time in seconds; spread is the squared coefficient
// of variation of service times, and backlog the share of the virtual backlog that counts.
func (h *queueHour) latencyRatio(k, service, spread, backlog float64) float64 {
	mean := float64(h.Load / h.Busy)

	// While the device is busy all the time we cannot see what waits: the requests may have come all
	// at once, or each when it could be served.
	hidden := h.hiddenWait(service)

	// A request also finds half of its own stretch in the backlog, which is no waiting.
	behind := max(0, float64(h.Wait)-(mean-1)*service/2)

	whole := max(h.latencyP95(1, 1, service, spread), service+hidden)
	slice := max(h.latencyP95(k, mean, service, spread), k*(service+hidden)+behind*backlog)

	return min(slice/whole, mostLatency)
}

// The share of the virtual backlog that counts. The waits of a spell already contain how the backlog
// grows in it, and the backlog is smaller if kernels are stretched less than is likely. So
// Latency.Figure, which should be right, takes a quarter; a decision, which should be safe, takes all.
const (
	backlogOfFigure   = 0.25
	backlogOfDecision = 1
)

// latencyP95 returns the p95 of the latency of requests that take k times as long as on the device,
// while all work takes mean times as long. See latencyRatio for service and spread. Each fifth of the
// work comes in spells of its own busy time, and has a latency of its own.
func (h *queueHour) latencyP95(k, mean, service, spread float64) float64 {
	var parts [5]gamma

	rough := 1. // on the device itself, which stretches nothing
	if mean > 1 {
		rough = max(1, float64(h.Rough))
	}

	steady := h.Fifths == [4]uint8{} || h.Fifths[0] == fifthUnit // all spells are alike
	perWork := h.variance() / float64(h.Busy)
	atRandom := service * (1 + spread) // of arrivals at random, which vary least

	for i, rho := range h.spellShares() {
		load := mean * rho
		variance := mean * mean * rough * rho * max(perWork, atRandom)
		wait := spellWait(load, variance, steady)
		parts[i] = gammaOf(k*service, spread, wait, min(load, fullLoad))
	}

	// Bisect for the latency that 95 % of all requests don't exceed. Each part counts a fifth. 40
	// halvings leave a trillionth of the range.
	low, high := 0., 0.
	for i := range parts {
		high = max(high, parts[i].quantile95())
	}

	for range 40 {
		middle := (low + high) / 2
		above := 0.

		for i := range parts {
			above += parts[i].shareAbove(middle) / 5
		}

		if above > 0.05 {
			low = middle
		} else {
			high = middle
		}
	}

	return high
}

// spellWait returns the mean wait in seconds under a load, for work of a variance per second. The
// queue grows from the beginning of a spell, and we take the requests to come in the middle of it: it
// does not get as long as if the load stayed the same, which is what steady says.
func spellWait(load, variance float64, steady bool) float64 {
	const age = spellSeconds / 2

	if steady {
		return steadyWait(load, variance)
	}

	// Random work moves the queue as a random walk: after some time it is as long as the mean of the
	// walk's absolute value, and longer by what does not fit.
	wait := math.Sqrt(2*variance*age/math.Pi) + max(0, load-1)*age
	if load < 1 {
		wait = min(wait, variance/(2*(1-load)))
	}

	return wait
}

// hiddenWait returns how long requests of a service time in seconds may have waited while the device
// was busy without a pause. We cannot see it, and assume a quarter of the run, less one request and
// shortRun: between none, if each request came when it could be served, and half, if all came at once.
func (h *queueHour) hiddenWait(service float64) float64 {
	return max(0, float64(h.Run)-service-shortRun) / 4
}

// maxLatencyRatio returns by how much waits grow if kernels are stretched by at most k. No latency
// grows by more, since service grows by less.
func (h *queueHour) maxLatencyRatio(k float64) float64 {
	rho := float64(h.Met)
	most := float64(mostLatency)

	if k*rho < 1 {
		most = min(most, k*k*(1-rho)/(1-k*rho))
	}

	if h.Wait > 0 {
		service := max(float64(h.PollVariance)/(2*float64(h.Busy)), shortestService)
		whole := gammaOf(service, 1, steadyWait(rho, 2*rho*service), rho)
		most = max(most, float64(h.Wait)/whole.quantile95())
	}

	return min(max(most, k), mostLatency)
}

// p95Ratio returns by how much a slice that stretches kernels by k has stretched the latency of
// requests in the last hour, at p95; 1 if unknown. It is latencyRatio the other way round: we see the
// slice, and work out the whole GPU.
func (d *device) p95Ratio(k float64, r requests) float64 {
	h := d.hour.latest()
	if h.Busy == 0 || k <= unchangedStretch {
		return 1
	}

	service := h.expectedService()
	spread := 1. // in the slice

	if known, ok := r.service.Get(); ok {
		service = k * known.Seconds()
		h = h.forService(service)
		spread = min(max(h.variance()/(float64(h.Busy)*service)-1, 0), 1)
	}

	hidden := h.hiddenWait(service)
	slice := max(h.latencyP95(1, 1, service, spread), service+hidden)
	hiddenBefore := d.workload.hiddenWaitBefore(service/k, hidden/k)
	whole := max(h.latencyP95(1/k, 1/k, service, spread), service/k+hiddenBefore)

	return min(slice/whole, mostLatency)
}

// hiddenWaitBefore is hiddenWait on the whole GPU, before the workload moved to its slice: not longer
// than most, which it also returns if nothing is known.
func (w *workload) hiddenWaitBefore(service, most float64) float64 {
	if w.BeforeRun == 0 {
		return most
	}

	before := queueHour{Run: float32(w.BeforeRun)}

	return min(before.hiddenWait(service), most)
}

// meanStretch returns how far a slice has stretched kernels on average in the last hour, if they are
// the same as on the whole GPU before: the same work then takes the same time of SMs and moves the
// same bytes, over a longer time. They may have changed, so the smaller of these two stretches counts
// if both are measured. It is 1 if unknown.
func (d *device) meanStretch(current, whole capacity) float64 {
	now := d.hour.latestKernels()
	mean := d.workload.BeforeMean
	then := Kernels{float64(mean[0]) / wholeUnit, float64(mean[1]) / wholeUnit}

	if now.Width == 0 || then.Width == 0 || current.sms == 0 || whole.sms == 0 || whole.memorySlices == 0 {
		return 1
	}

	// What they use of the slice, as shares of the whole GPU.
	width := now.Width * float64(current.sms) / float64(whole.sms)
	drawn := now.Bandwidth * float64(current.memorySlices) / float64(whole.memorySlices)

	stretch := then.Width / width
	if drawn > 0 && then.Bandwidth > minBandwidth {
		stretch = min(stretch, then.Bandwidth/drawn)
	}

	return max(1, stretch)
}

// meanLatencyRatio returns by how much a slice has stretched the mean latency of requests, if it has
// stretched kernels and was busy for a share of the time. Requests come at random, and their service
// times spread exponentially.
func meanLatencyRatio(stretch, busy float64) float64 {
	if busy >= 1 {
		return mostLatency
	}

	return min((stretch-busy)/(1-busy), mostLatency)
}

// steadyWait returns the mean wait in seconds under a load up to fullLoad, for work of a variance per
// second.
func steadyWait(load, variance float64) float64 {
	load = min(load, fullLoad)
	return variance / (2 * (1 - load))
}

// gamma is a gamma distribution. By Wilson and Hilferty, the cube root of a value, in units of the
// mean, is nearly normally distributed around 1 - variance.
type gamma struct {
	mean     float64
	variance float64 // of that normal distribution: 1 / (9 x shape)
}

// gammaOf returns the gamma distribution with the mean and the variance of a latency: the sum of a
// service time, with a mean and a squared coefficient of variation, and a wait with a mean. A share
// load of the requests wait at all, and their waits spread exponentially.
func gammaOf(service, spread, wait, load float64) gamma {
	mean := service + wait
	variance := spread*service*service + wait*wait*(2/max(load, 1e-6)-1)

	return gamma{mean, variance / (9 * mean * mean)}
}

// quantile95 returns the value that 95 % do not exceed.
func (g *gamma) quantile95() float64 {
	root := max(1-g.variance+quantile95*math.Sqrt(g.variance), 0)
	return g.mean * root * root * root
}

// shareAbove returns the share that is above a value.
func (g *gamma) shareAbove(v float64) float64 {
	deviation := (math.Cbrt(v/g.mean) - 1 + g.variance) / math.Sqrt(max(g.variance, 1e-12))
	return math.Erfc(deviation/math.Sqrt2) / 2
}

// describeTime returns what a slice does to the time that the workload takes.
func (p *Predicted) describeTime() string {
	kernels := fmt.Sprintf(
		"kernels take %.2f to %.2f times as long at p95",
		p.StretchP95.Low,
		p.StretchP95.High,
	)

	switch l := p.Latency; {
	case l == Latency{}:
		return kernels
	case l.Figure > 0:
		return fmt.Sprintf("%s, requests %.2f times, waiting included", kernels, l.Figure)
	case l.IsUnbounded():
		return fmt.Sprintf("%s, requests %.2f times or more, waiting included", kernels, l.Low)
	default:
		return fmt.Sprintf(
			"%s, requests %.2f to %.2f times, waiting included",
			kernels,
			l.Low,
			l.High,
		)
	}
}

// MarshalJSON rounds to three decimals, as for Stretch.
func (l Latency) MarshalJSON() ([]byte, error) {
	type plain Latency

	return json.Marshal(plain{
		Low:      round3(l.Low),
		Expected: round3(l.Expected),
		High:     round3(l.High),
		Figure:   round3(l.Figure),
		Load:     round3(l.Load),
	})
}
