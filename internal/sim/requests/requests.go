// Package requests simulates, event by event, requests that a GPU or a slice of one serves: when
// they arrive, how long they wait, and when the device is busy. Requests are of several kinds; a
// device with fewer SMs or less bandwidth than the kernels of a kind fill serves that kind more
// slowly. The same seed gives the same requests on every device.
//
// It is the second opinion on what the right-sizing advisor says of latency, and shares no code
// with it. All times are in seconds.
package requests

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Load is what is asked of a device.
type Load struct {
	Arrivals Arrivals
	// Kinds are those of the requests; each request draws one by Share.
	Kinds []Kind
	// Batch is how many requests are served together: one after the other, first come, first
	// served, if it is 0 or 1. Otherwise those in the batch advance by steps of Step each, and a
	// request that arrives joins the batch with the next step if there is room (continuous
	// batching). A step of n requests takes 1 + Growth x (n - 1) times as long as one of a single
	// request.
	Batch        int
	Step, Growth float64
}

// Kind is one kind of requests.
type Kind struct {
	Share   float64 // of the requests, relative to the other kinds
	Phases  []Phase // that each of its requests goes through
	Service Service // on the whole GPU, if nothing else is served
}

// Phase is a part of a request in which its kernels are alike.
type Phase struct {
	Share     float64 // of the service time on the whole GPU; those of a kind add up to 1
	Width     float64 // SMs that its kernels fill
	Bandwidth float64 // of the whole GPU's nominal bandwidth, 0 to reachable
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
	Sigma float64 // of the logarithm, for LogNormal
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

// Device is what serves.
type Device struct {
	SMs       float64
	Bandwidth float64 // share of the whole GPU's, 0-1
	Loss      float64 // lengthens all kernels by a share
}

// reachable is the share of nominal bandwidth that kernels can draw.
const reachable = 0.9

// slowdown returns how many times longer the device works on a phase than the whole GPU.
func (d Device) slowdown(p Phase) float64 {
	factor := 1.
	if d.SMs < p.Width {
		factor = p.Width / d.SMs
	}

	if can := reachable * d.Bandwidth; can < p.Bandwidth {
		factor = max(factor, p.Bandwidth/can)
	}

	return factor * (1 + d.Loss)
}

// serve returns what the device does for requests of a kind. Kernels that are stretched for want of
// SMs fill the device; of those that are stretched for want of bandwidth, fewer SMs are at work at
// a time.
func (d Device) serve(k *Kind) served {
	var s served

	for _, p := range k.Phases {
		slow := d.slowdown(p)
		s.slow += p.Share * slow
		s.sms += p.Share * min(d.SMs*slow, p.Width*(1+d.Loss))
		s.bandwidth += p.Share * p.Bandwidth
	}

	if s.slow > 0 {
		s.sms /= s.slow
		s.bandwidth /= s.slow
	}

	return s
}

// Result is what became of the requests that arrived in a time.
type Result struct {
	// Latencies are the times from arrival to answer of all requests, in the order of their
	// answers: those that wait at the end of the time are served after it.
	Latencies  []float64
	Throughput float64 // requests answered in the time, per second
	Busy       float64 // share of the time
	Intervals  []Interval
}

// Interval is what a device does in an interval of the time. SMs at work and bandwidth drawn are
// means over the interval; bandwidth is of the whole GPU's.
type Interval struct {
	Busy, SMs, Bandwidth float64
}

// Run serves the requests that arrive in a time, from an idle device on, and returns the latencies
// and what the device does in intervals of a length. The time should be a multiple of that length.
func Run(seed uint64, load Load, on Device, time, interval float64) Result {
	s := &server{
		load: &load, interval: interval, time: time,
		kinds: rand.New(rand.NewPCG(seed, 1)), services: rand.New(rand.NewPCG(seed, 2)),
		source: load.Arrivals.source(seed, time),
	}

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

// Summary are the mean and quantiles of latencies.
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

	// The smallest latency that a share of the requests does not pass.
	quantile := func(q float64) float64 { return all[int(math.Ceil(q*float64(len(all))))-1] }

	return Summary{sum / float64(len(all)), quantile(0.5), quantile(0.95), quantile(0.99)}
}
