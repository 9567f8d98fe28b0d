package advise

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// A slice stretches the service of a request as it stretches kernels; the waiting of the request
// comes on top. With the load rho, of requests that come at random one waits for v/(2(1-rho))
// seconds on average, if v is the variance of the work that comes per second (Pollaczek and
// Khinchine; for other arrivals it is Kingman's approximation). In a slice that stretches kernels
// by k, v is k^2 times as large and the load k times. So the waits are known from busy time, and
// their ratio is k^2 (1-rho)/(1-k rho); the service takes k times as long. Only if we know the
// service time of a request, we know how much of its latency is service and how much is waiting.
//
// So much for waits between two polls. In longer bursts, requests wait for the backlog of the
// virtual queue, see backlog.go.

const (
	// mostLatency stands for a queue that grows without bound.
	mostLatency = 1000
	// closedFrom is the median busy share from which on we take a workload for a closed loop: its
	// next request comes when one is served. Requests that don't wait for others would pile up.
	closedFrom = 0.9
	// shortestService is the service time in seconds that we assume if the variance shows none.
	shortestService = 1e-3
	// fullLoad is the largest load for which we compute waits. Above it, the virtual queue shows
	// how long requests wait.
	fullLoad = 0.95
	// shortRun is how many seconds a device can be busy without a pause before we assume that
	// requests wait for long.
	shortRun = 5
	// figureMargin is by how much the measured latency exceeds a figure at most, in nine of ten
	// cases.
	figureMargin = 1.25
	// waitMargin is the share that decisions add to the expected wait: we know less of waits than
	// of service times.
	waitMargin = 0.5
	// figureBias is by how much figures without it were too large on average, on 250 simulated nodes:
	// the kernels of most workloads are more alike than likely takes them for.
	figureBias = 1.05
	// figureLoad is the load up to which a figure, or what is expected, says how long requests wait.
	// Above it a slice that stretches kernels has no reserve: we know to a tenth or two how far it
	// does, and with as much more its queue may grow without bound.
	figureLoad = 0.8
	// shortService is the longest service time in seconds whose variance polls of a second show.
	shortService = 0.25
	// quantile95 is the 95 % quantile of the standard normal distribution.
	quantile95 = 1.645
)

// requests holds what we know of the requests that a workload answers.
type requests struct {
	closed  bool                   // no client waits for a single one: throughput is what counts
	said    bool                   // closed by an annotation
	service gpu.Opt[time.Duration] // of one request, on the device that the workload has
}

// requestsOf returns what we know of the requests of a workload whose kernels are stretched on the
// device that it has. A job answers none.
func requestsOf(w *workload, e *Evidence, hints gpu.RightsizingHints, stretch float64) requests {
	closed := hints.Closed || w.Key.endsByItself() || e.BusyP50/stretch >= closedFrom
	open := hints.ServiceTime.Present()

	return requests{closed: closed && !open, said: hints.Closed && !open, service: hints.ServiceTime}
}

// lacksLatency reports whether a workload answers requests but no hour of it has shown how long
// they would wait: the exporter has begun, or was updated, less than an hour ago.
func (e *Evidence) lacksLatency(w *workload) bool {
	return !e.requests.closed && !e.stretchUnknown() && !w.hasHour()
}

// endsByItself reports whether a workload is a job, whose pods end when their work is done.
func (k Key) endsByItself() bool {
	kind, _, _ := strings.Cut(k.Owner, "/")
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

	l := Latency{
		Low:  min(median.Low, p95.Low),
		High: h.mostStretched(max(p95.High, float64(h.Slow))),
		Load: float64(h.spellLoad()),
	}

	likely := float64(h.Load / h.Busy) // in that hour, which may have other kernels than the others
	slow := max(likely, median.likely(), p95.Low)
	l.Expected = h.stretched(slow, h.expectedService(), 1, backlogOfDecision)

	if service, ok := e.requests.service.Get(); ok {
		figure := h.stretchedBy(likely, service.Seconds(), backlogOfFigure) / figureBias
		l.Figure = min(max(figure, l.Low), l.High)
		l.Expected = h.stretchedBy(slow, service.Seconds(), backlogOfDecision)

		// Requests of other kinds than most may be the ones that a slice stretches most, and all
		// others wait for them.
		worst := h
		worst.Load = max(h.Load, h.Busy*float32(p95.High))
		l.worst = worst.stretchedBy(p95.High, service.Seconds(), backlogOfDecision)
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
	switch {
	case l == Latency{}:
		return 0, false
	case strict && l.Figure > 0:
		return min(max(figureMargin*l.Expected, l.worst), l.High), true
	case strict:
		return l.High, true
	}

	return l.Expected, true
}

// variance returns the variance of the work per second: from poll to poll or from minute to minute,
// whichever is larger.
func (h *queueHour) variance() float64 { return float64(max(h.PollVariance, h.MinuteVariance)) }

// expectedService returns the service time of requests that come at random and take exponentially
// spread times.
func (h *queueHour) expectedService() float64 {
	return max(h.variance()/(2*float64(h.Busy)), shortestService)
}

// stretchedBy returns by how much a slice stretches the latency of requests whose service time in
// seconds we know. What their work varies by beyond that of single requests comes from their
// arrivals.
func (h *queueHour) stretchedBy(k, service, backlog float64) float64 {
	known := h.of(service)
	spread := known.variance()/(float64(known.Busy)*service) - 1

	return known.stretched(k, service, min(max(spread, 0), 1), backlog)
}

// of returns the hour as it counts for requests of a service time in seconds: polls show the
// variance of short requests, and minutes then vary by the arrivals alone.
func (h queueHour) of(service float64) queueHour {
	if h.PollVariance > 0 && service <= shortService {
		h.MinuteVariance = 0
	}

	return h
}

// stretched returns the p95 of latency in a slice as a multiple of the p95 on the device, for
// requests of a service time in seconds and its squared coefficient of variation, with a share of
// the virtual backlog.
func (h *queueHour) stretched(k, service, spread, backlog float64) float64 {
	mean := float64(h.Load / h.Busy)

	// While the device is busy all the time we cannot see what waits: the requests may have come all
	// at once, or each when it could be served.
	hidden := h.hidden(service)
	behind := max(0, float64(h.Wait)-(mean-1)*service/2) // others, and not the request itself
	whole := max(h.longestIn(1, 1, service, spread), service+hidden)
	slice := max(h.longestIn(k, mean, service, spread), k*(service+hidden)+behind*backlog)

	return min(slice/whole, mostLatency)
}

// The share of the virtual backlog that counts. Its growth within a spell is already in the waits of
// that spell, and it is smaller if kernels stretch less than is likely. So a figure, which shall be
// right, takes a quarter; a decision, which shall be safe, takes all.
const (
	backlogOfFigure   = 0.25
	backlogOfDecision = 1
)

// longestIn returns the p95 of the latency of requests that take k times as long as on the device,
// while all work takes mean times as long. Each fifth of the work comes in spells of its own busy
// time.
func (h *queueHour) longestIn(k, mean, service, spread float64) float64 {
	var parts [5]gamma

	rough := 1.
	if mean > 1 {
		rough = max(1, float64(h.Rough))
	}

	steady := h.Fifths == [4]uint8{} || h.Fifths[0] == fifthUnit
	varies := h.variance() / float64(h.Busy)

	for i, rho := range h.shares() {
		load := mean * rho
		// at least the variance of arrivals at random
		v := mean * mean * rough * rho * max(varies, service*(1+spread))
		wait := waitIn(load, v, steady)
		parts[i] = gammaOf(k*service, spread, wait, min(load, fullLoad))
	}

	low, high := 0., 0.
	for i := range parts {
		high = max(high, parts[i].quantile95())
	}

	// Bisect for the latency that 95 % of all requests don't exceed. Each part counts a fifth. 40
	// halvings leave a trillionth of the range.
	for range 40 {
		middle := (low + high) / 2
		above := 0.

		for i := range parts {
			above += parts[i].above(middle) / 5
		}

		if above > 0.05 {
			low = middle
		} else {
			high = middle
		}
	}

	return high
}

// waitIn returns the mean wait in seconds under a load, for work of a variance per second. In a
// spell a queue grows from its beginning, and a request comes in the middle of it: it does not get
// as long as under the same load for ever.
func waitIn(load, variance float64, steady bool) float64 {
	const age = spellSeconds / 2

	if steady {
		return waitAt(load, variance)
	}

	wait := math.Sqrt(2*variance*age/math.Pi) + max(0, load-1)*age
	if load < 1 {
		wait = min(wait, variance/(2*(1-load)))
	}

	return wait
}

// hidden returns how long requests of a service time in seconds may have waited while the device
// was busy all the time: a quarter of the longest run, less one request and shortRun.
func (h *queueHour) hidden(service float64) float64 {
	return max(0, float64(h.Run)-service-shortRun) / 4
}

// mostStretched returns the ratio of waits if kernels are stretched by at most k. No latency grows
// by more.
func (h *queueHour) mostStretched(k float64) float64 {
	rho := float64(h.Met)
	most := float64(mostLatency)

	if k*rho < 1 {
		most = min(most, k*k*(1-rho)/(1-k*rho))
	}

	if h.Wait > 0 {
		service := max(float64(h.PollVariance)/(2*float64(h.Busy)), shortestService)
		whole := longest(service, 1, waitAt(rho, 2*rho*service), rho)
		most = max(most, float64(h.Wait)/whole)
	}

	return min(max(most, k), mostLatency)
}

// slowedBy returns by how much the latency of requests is stretched at p95 in a slice that
// stretches kernels by k, in the last hour; 1 if unknown.
func (d *device) slowedBy(k float64, r requests) float64 {
	h := d.hour.latest()
	if h.Busy == 0 || k <= unchangedStretch {
		return 1
	}

	service := h.expectedService()
	spread := 1. // in the slice

	if known, ok := r.service.Get(); ok {
		service = k * known.Seconds()
		h = h.of(service)
		spread = min(max(h.variance()/(float64(h.Busy)*service)-1, 0), 1)
	}

	hidden := h.hidden(service)
	slice := max(h.longestIn(1, 1, service, spread), service+hidden)
	whole := max(h.longestIn(1/k, 1/k, service, spread), service/k+d.workload.hiddenBefore(service/k, hidden/k))

	return min(slice/whole, mostLatency)
}

// hiddenBefore returns how long requests may have waited on the whole GPU while it was busy all the
// time, as far as that is known: not for longer than the work of the slice would take there.
func (w *workload) hiddenBefore(service, most float64) float64 {
	if w.BeforeRun == 0 {
		return most
	}

	before := queueHour{Run: float32(w.BeforeRun)}

	return min(before.hidden(service), most)
}

// meanStretch returns how far a slice has stretched kernels on average in the last hour, if they
// are those that ran on the whole GPU: the same work takes the same time of SMs and moves the same
// bytes, over a longer time. It is 1 if unknown. One kernel can differ from another, so
// if both are measured the smaller stretch counts.
func (d *device) meanStretch(of, whole capacity) float64 {
	now := d.hour.latestKernels()
	mean := d.workload.BeforeMean
	then := Kernels{float64(mean[0]) / wholeUnit, float64(mean[1]) / wholeUnit}

	if now.Width == 0 || then.Width == 0 || whole.sms == 0 || whole.memorySlices == 0 || of.sms == 0 {
		return 1
	}

	stretch := then.Width / (now.Width * float64(of.sms) / float64(whole.sms))
	if drawn := now.Bandwidth * float64(of.memorySlices) / float64(whole.memorySlices); drawn > 0 &&
		then.Bandwidth > minBandwidth {
		stretch = min(stretch, then.Bandwidth/drawn)
	}

	return max(1, stretch)
}

// stretchedLatency returns by how much the mean latency of requests is stretched that come at
// random and take exponentially spread times, in a slice that is busy for a share of the time and
// stretches kernels.
func stretchedLatency(stretch, busy float64) float64 {
	if busy >= 1 {
		return mostLatency
	}

	return min((stretch-busy)/(1-busy), mostLatency)
}

// waitAt returns the mean wait in seconds under a load up to fullLoad, for work of a variance per
// second.
func waitAt(load, variance float64) float64 {
	load = min(load, fullLoad)
	return variance / (2 * (1 - load))
}

// longest returns the p95 of the sum of a service time, of which the mean and the squared
// coefficient of variation are given, and a wait, which a share load of the requests have, spread
// exponentially.
func longest(service, spread, wait, load float64) float64 {
	g := gammaOf(service, spread, wait, load)
	return g.quantile95()
}

// gamma is a gamma distribution. By Wilson and Hilferty, the cube root of a value is nearly
// normally distributed.
type gamma struct {
	mean    float64
	inverse float64 // 1 / (9 x shape): the variance of that normal distribution
}

// gammaOf returns the gamma distribution with the mean and the variance of the sum of a service
// time and a wait, see longest.
func gammaOf(service, spread, wait, load float64) gamma {
	mean := service + wait
	variance := spread*service*service + wait*wait*(2/max(load, 1e-6)-1)

	return gamma{mean, variance / (9 * mean * mean)}
}

func (g *gamma) quantile95() float64 {
	root := max(1-g.inverse+quantile95*math.Sqrt(g.inverse), 0)
	return g.mean * root * root * root
}

// above returns the share that is above a value.
func (g *gamma) above(v float64) float64 {
	deviation := (math.Cbrt(v/g.mean) - 1 + g.inverse) / math.Sqrt(max(g.inverse, 1e-12))
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
	case l.High >= mostLatency:
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

	return json.Marshal(
		plain{Low: round3(l.Low), Expected: round3(l.Expected), High: round3(l.High),
			Figure: round3(l.Figure), Load: round3(l.Load)},
	)
}
