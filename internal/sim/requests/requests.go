// Package requests simulates, event by event, requests that a GPU or a slice of one serves: when
// they arrive, how long they wait, and when the device is busy. There are several kinds of requests.
// If a device has fewer SMs or less bandwidth than the kernels of a kind use, it serves that kind
// more slowly. The same seed gives the same requests on every device.
//
// Tests use it to check what the right-sizing advisor predicts for latency, so it shares no code
// with the advisor. All times are in seconds.
package requests

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Load is the requests that a device gets, and how it serves them.
type Load struct {
	Arrivals Arrivals
	// Kinds are the kinds of requests. Each request draws its kind, weighted by Kind.Share.
	Kinds []Kind
	// Batch is how many requests are served together. If it is 0 or 1, the device serves one request
	// after the other, first come, first served. Otherwise the requests in the batch advance together
	// in steps of Step seconds, and a request that arrives joins the batch with the next step if there
	// is room (continuous batching). A step of n requests takes 1 + Growth x (n - 1) times as long as
	// a step of one request.
	Batch        int
	Step, Growth float64
}

// Kind is one kind of requests.
type Kind struct {
	Share   float64 // how many of the requests are of this kind, relative to other kinds
	Phases  []Phase // each request goes through all of them
	Service Service // the time on the whole GPU, if that serves nothing else
}

// Phase is a part of a request with one sort of kernels.
type Phase struct {
	Share     float64 // of the service time on the whole GPU; the shares of a kind add up to 1
	Width     float64 // how many SMs the kernels fill
	Bandwidth float64 // the share of the whole GPU's nominal bandwidth that they draw, 0 to reachable
}

// Shape is how service times vary.
type Shape int

// The shapes. Constant is the zero value.
const (
	Constant Shape = iota
	Exponential
	LogNormal
)

// Service is the distribution of a service time.
type Service struct {
	Mean  float64
	Shape Shape
	Sigma float64 // for LogNormal: the standard deviation of the logarithm
}

func (s Service) draw(r *rand.Rand) float64 {
	switch s.Shape {
	case Exponential:
		return s.Mean * r.ExpFloat64()
	case LogNormal:
		return s.Mean * math.Exp(s.Sigma*r.NormFloat64()-s.Sigma*s.Sigma/2)
	default:
		return s.Mean
	}
}

// Device is the whole GPU or a slice of it.
type Device struct {
	SMs       float64
	Bandwidth float64 // the share of the whole GPU's bandwidth, 0-1
	Loss      float64 // how much longer all kernels take than SMs and bandwidth explain; 0.1: 10 %
}

// reachable is the share of nominal bandwidth that kernels can draw (our choice, as
// kernels.Reachable).
const reachable = 0.9

// slowdown returns how many times as long the device takes for a phase as the whole GPU.
func (d Device) slowdown(p Phase) float64 {
	factor := 1.
	if d.SMs < p.Width {
		factor = p.Width / d.SMs
	}

	if available := reachable * d.Bandwidth; available < p.Bandwidth {
		factor = max(factor, p.Bandwidth/available)
	}

	return factor * (1 + d.Loss)
}

// serve returns what the device does while it serves requests of a kind. Kernels that lack SMs fill
// the device for longer. Kernels that lack bandwidth do the same work in more time, so fewer SMs work
// at a time.
func (d Device) serve(k *Kind) served {
	var s served

	for _, p := range k.Phases {
		slowdown := d.slowdown(p)
		s.slowdown += p.Share * slowdown
		s.sms += p.Share * min(d.SMs*slowdown, p.Width*(1+d.Loss))
		s.bandwidth += p.Share * p.Bandwidth
	}

	// So far these are sums over time; we want means.
	if s.slowdown > 0 {
		s.sms /= s.slowdown
		s.bandwidth /= s.slowdown
	}

	return s
}

// Result is the result of Run.
type Result struct {
	// Latencies are the times from arrival to answer, in the order of the answers. Requests that wait
	// when the time of the run ends are still served.
	Latencies  []float64
	Throughput float64 // requests per second that were answered within the time of the run
	Busy       float64 // the share of the time in which the device is busy
	Intervals  []Interval
}

// Interval is what a device does in one interval: the share of it in which the device is busy, and
// means over it of how many SMs work and what share of the whole GPU's bandwidth is drawn.
type Interval struct {
	Busy, SMs, Bandwidth float64
}

// Run serves all requests that arrive within time, beginning with an idle device. The result says
// what the device does in each interval of that time, which should be a multiple of interval.
func Run(seed uint64, load Load, on Device, time, interval float64) Result {
	s := &server{
		load: &load, interval: interval, time: time,
		kinds: rand.New(rand.NewPCG(seed, 1)), services: rand.New(rand.NewPCG(seed, 2)),
		source: load.Arrivals.source(seed, time),
	}

	// 1e-9 forgives rounding errors: 60 / 0.1 must not make 601 intervals.
	s.result.Intervals = make([]Interval, int(math.Ceil(time/interval-1e-9)))
	for i := range load.Kinds {
		s.shares += load.Kinds[i].Share
		s.served = append(s.served, on.serve(&load.Kinds[i]))
	}

	if load.Batch > 1 {
		s.serveBatches()
	} else {
		s.serveInTurn()
	}

	// So far throughput is a number of answers, and the intervals have sums over time.
	r := &s.result

	r.Throughput /= time
	for i := range r.Intervals {
		v := &r.Intervals[i]
		r.Busy += v.Busy / time
		length := min(interval, time-float64(i)*interval)
		v.Busy = min(1, v.Busy/length)
		v.SMs /= length
		v.Bandwidth /= length
	}

	return s.result
}

// Summary has the mean and quantiles of latencies.
type Summary struct {
	Mean, P50, P95, P99 float64
}

// Summarize returns the mean and the quantiles of the latencies of several results; zeros without
// any.
func Summarize(results ...Result) Summary {
	var all []float64
	for i := range results {
		all = append(all, results[i].Latencies...)
	}

	if len(all) == 0 {
		return Summary{}
	}

	slices.Sort(all)

	sum := 0.
	for _, l := range all {
		sum += l
	}

	// quantile returns the smallest latency that a share q of the requests does not exceed.
	quantile := func(q float64) float64 { return all[int(math.Ceil(q*float64(len(all))))-1] }

	return Summary{sum / float64(len(all)), quantile(0.5), quantile(0.95), quantile(0.99)}
}
