// Package requests simulates, event by event, requests that a GPU or a slice of one serves: when they arrive, how long
// they wait, and when the device is busy. Requests are of several kinds; a device with fewer SMs or less bandwidth than
// the kernels of a kind fill serves that kind more slowly. The same seed gives the same requests on every device.
//
// It is the second opinion on what the right-sizing advisor says of latency, and shares no code with it. All times are
// in seconds.
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
	// Batch is how many requests are served together: one after the other, first come, first served, if it is 0 or 1.
	// Otherwise those in the batch advance by steps of Step each, and a request that arrives joins the batch with the
	// next step if there is room (continuous batching). A step of n requests takes 1 + Growth x (n - 1) times as long as
	// one of a single request.
	Batch        int
	Step, Growth float64
}

// Kind is one kind of requests.
type Kind struct {
	Share     float64 // of the requests, relative to the other kinds
	Width     float64 // SMs that its kernels fill
	Bandwidth float64 // of the whole GPU's nominal bandwidth, 0 to reachable
	Service   Service // on the whole GPU, if nothing else is served
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

// slowdown returns how many times longer the device works on a request of a kind than the whole GPU.
func (d Device) slowdown(k *Kind) float64 {
	factor := 1.
	if d.SMs < k.Width {
		factor = k.Width / d.SMs
	}
	if can := reachable * d.Bandwidth; can < k.Bandwidth {
		factor = max(factor, k.Bandwidth/can)
	}
	return factor * (1 + d.Loss)
}

// Result is what became of the requests that arrived in a time. Latency is the time from arrival to answer.
type Result struct {
	Requests            int // that arrived; all of them are answered in the end
	Mean                float64
	P50, P95, P99       float64 // of latency
	Throughput          float64 // requests answered in the time, per second
	Busy                float64 // share of the time
	Intervals           []Interval
	latencies, finished []float64
}

// Interval is what a device does in an interval of the time. SMs at work and bandwidth drawn are means over the
// interval; bandwidth is of the whole GPU's.
type Interval struct {
	Busy, SMs, Bandwidth float64
}

// Run serves the requests that arrive in a time, from an idle device on, and returns the latencies and what the device
// does in intervals of a length. The time should be a multiple of that length.
func Run(seed uint64, load Load, on Device, time, interval float64) Result {
	s := &server{
		load: &load, interval: interval, time: time,
		kinds: rand.New(rand.NewPCG(seed, 1)), services: rand.New(rand.NewPCG(seed, 2)),
		source: load.Arrivals.source(seed, time),
	}
	s.result.Intervals = make([]Interval, int(math.Ceil(time/interval-1e-9)))
	for i := range load.Kinds {
		k := &load.Kinds[i]
		s.shares += k.Share
		slow := on.slowdown(k)
		// Kernels that are stretched by the SMs fill the device; by the bandwidth, fewer SMs are at work at a time.
		s.served = append(s.served, served{slow, min(on.SMs, k.Width*(1+on.Loss)/slow), k.Bandwidth / slow})
	}

	if load.Batch > 1 {
		s.serveBatches()
	} else {
		s.serveInTurn()
	}
	return s.result.sum(time, interval)
}

// sum computes what is asked of the latencies.
func (r *Result) sum(time, interval float64) Result {
	r.Requests = len(r.latencies)
	for _, at := range r.finished {
		if at <= time {
			r.Throughput += 1 / time
		}
	}
	for i := range r.Intervals {
		v := &r.Intervals[i]
		r.Busy += v.Busy / time
		length := min(interval, time-float64(i)*interval)
		v.Busy, v.SMs, v.Bandwidth = min(1, v.Busy/length), v.SMs/length, v.Bandwidth/length
	}

	slices.Sort(r.latencies)
	for _, l := range r.latencies {
		r.Mean += l / float64(r.Requests)
	}
	r.P50, r.P95, r.P99 = r.Quantile(0.5), r.Quantile(0.95), r.Quantile(0.99)
	return *r
}

// Quantile returns the smallest latency that a share q of the requests does not pass; 0 without requests.
func (r *Result) Quantile(q float64) float64 {
	if len(r.latencies) == 0 {
		return 0
	}
	at := int(math.Ceil(q*float64(len(r.latencies)))) - 1
	return r.latencies[min(max(at, 0), len(r.latencies)-1)]
}
