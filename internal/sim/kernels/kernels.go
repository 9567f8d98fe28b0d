// Package kernels is the model of how fast a workload runs on a GPU or a slice of one. While the
// workload's kernels run, which they do for a share of the time, they fill a number of SMs (their
// width) and draw a share of the memory bandwidth. A device with fewer SMs or less bandwidth
// stretches the kernels by the larger of the two ratios (a roofline): kernels of 60 SMs run twice as
// long on 30. They then run for more of the time; when they run all of the time, throughput falls.
// Media engines work beside the kernels. If a device has fewer engines of a kind than the workload
// keeps busy, the whole workload slows down in proportion.
//
// The model is deterministic and consistent with published runs; it is no measurement.
package kernels

import "time"

// Reachable is the share of a memory's nominal bandwidth that kernels can reach (our choice, not
// measured).
const Reachable = 0.9

// Phase is one kind of kernels of a workload.
type Phase struct {
	// Share is the phase's share of the busy time on a device large enough. The shares of a
	// workload add up to 1.
	Share     float64
	Width     float64 // how many SMs the kernels fill
	Bandwidth float64 // the share of the GPU's nominal bandwidth that they draw, 0 to Reachable
}

// Demand is what a workload would do on a device large enough.
type Demand struct {
	Phases []Phase
	// Busy is the share of the time in which kernels run, 0-1. It is not used if Requests are given.
	Busy     float64
	Requests Requests
	Media    Engines // how many media engines it keeps busy
}

// Engines are numbers of media engines: encoders, decoders, JPEG and optical flow engines.
type Engines [4]float64

// throughput returns the share of a workload's work that gets done with these engines, 0-1: half of
// it if the workload wants two decoders and there is one.
func (e Engines) throughput(wanted Engines) float64 {
	done := 1.0

	for kind, available := range e {
		if wanted[kind] > available {
			done = min(done, available/wanted[kind])
		}
	}

	return done
}

// Requests say that a workload answers requests. Each needs the GPU for the time GPU, and the host
// for the time Host. With Concurrency above 0, that many clients each send the next request when the
// last was answered (a closed loop). Otherwise Rate requests arrive each second, and queue (an open
// load).
type Requests struct {
	Concurrency int
	Rate        float64
	GPU, Host   time.Duration
}

// Given reports whether the workload answers requests.
func (r Requests) Given() bool { return r.GPU > 0 && (r.Concurrency > 0 || r.Rate > 0) }

// Device is a whole GPU or a slice.
type Device struct {
	SMs       float64
	Bandwidth float64 // the device's share of the GPU's bandwidth, 0-1
	Engines   Engines
	// Loss says how much longer all kernels run than SMs and bandwidth explain: 0.1 for 10 %. No
	// metric shows the reason, such as a smaller share of the L2 cache or lower clocks.
	Loss float64
}

// Result is what a workload does on a device.
type Result struct {
	Busy      float64 // the share of the time in which kernels run, 0-1
	SMs       float64 // how many SMs work, mean over time
	Bandwidth float64 // the share of the GPU's nominal bandwidth that is drawn, mean over time
	Stretch   float64 // how many times as long kernels run as on a device large enough
	// Throughput is the work done, relative to a device large enough, 0-1.
	Throughput float64
	// PerSecond is how many requests are answered in a second, and Latency how long one takes; both
	// are 0 without requests. Latency is MaxLatency if requests of an open load arrive faster than
	// they are served.
	PerSecond float64
	Latency   time.Duration
}

// MaxLatency stands for a queue that grows without bound.
const MaxLatency = 24 * time.Hour

// stretchOn returns how many times as long a phase takes on a device as on one large enough.
func (p Phase) stretchOn(on Device) float64 {
	return max(1, p.Width/on.SMs, p.Bandwidth/(Reachable*on.Bandwidth)) * (1 + on.Loss)
}

// Run returns what a workload does on a device that it has to itself.
func Run(d Demand, on Device) Result {
	r := Result{}
	var width, bandwidth float64 // means over the busy time on the device

	for _, p := range d.Phases {
		stretch := p.stretchOn(on)
		r.Stretch += p.Share * stretch
		// A stretched kernel does the same work in more time: it fills the device, or draws its
		// share, for longer.
		width += p.Share * min(p.Width*(1+on.Loss), on.SMs*stretch)
		bandwidth += p.Share * p.Bandwidth
	}

	if r.Stretch == 0 { // there are no kernels: only media engines can slow it down
		r = Result{Stretch: 1, Throughput: 1}
		r.limit(on.Engines.throughput(d.Media), d.Requests)

		return r
	}

	wantedBusy := d.Busy // the busy time on a device large enough
	if d.Requests.Given() {
		wantedBusy = d.Requests.busy(1)
	}

	r.Throughput = 1
	r.Busy = wantedBusy * r.Stretch

	if d.Requests.Given() {
		r.Busy = d.Requests.busy(r.Stretch)
		r.PerSecond, r.Latency = d.Requests.serve(r.Stretch)

		if full, _ := d.Requests.serve(1); full > 0 {
			r.Throughput = r.PerSecond / full
		}
	} else if r.Busy > 1 {
		r.Throughput = 1 / r.Busy
		r.Busy = 1
	}

	done := r.Throughput * wantedBusy // the work done, as busy time of a device large enough
	r.SMs = done * width
	r.Bandwidth = done * bandwidth
	r.limit(on.Engines.throughput(d.Media), d.Requests)

	return r
}

// limit lowers the throughput to that of the media engines for which the kernels wait. The kernels
// then run for less of the time.
func (r *Result) limit(throughput float64, q Requests) {
	if throughput >= r.Throughput {
		return
	}

	r.slowDown(r.Throughput / max(throughput, smallestThroughput))

	if !q.Given() {
		return
	}

	r.Latency = MaxLatency // requests of an open load arrive faster than they are served
	if q.Concurrency > 0 && r.PerSecond > 0 {
		r.Latency = min(MaxLatency, seconds(float64(q.Concurrency)/r.PerSecond))
	}
}

// smallestThroughput is the throughput of a workload that waits for engines that its device does not
// have. It is above 0, so that we can divide by it.
const smallestThroughput = 1e-9

// slowDown spreads the same work over a time that is longer by a factor.
func (r *Result) slowDown(factor float64) {
	r.Throughput /= factor
	r.PerSecond /= factor
	r.Busy /= factor
	r.SMs /= factor
	r.Bandwidth /= factor
}

// ContendForEngines slows down workloads that share the media engines of a device, if together they
// want to keep more engines busy than there are. They share the engines of a kind in proportion to
// what they want: if two want 1 and 3 decoders and there are 2, they get 0.5 and 1.5.
func ContendForEngines(sharing []*Result, demands []Demand, available Engines) {
	var used Engines

	for i, r := range sharing {
		for kind, wanted := range demands[i].Media {
			used[kind] += wanted * r.Throughput
		}
	}

	for i, r := range sharing {
		worst := 1.0

		for kind, wanted := range demands[i].Media {
			if wanted > 0 && available[kind] > 0 {
				worst = max(worst, used[kind]/available[kind])
			}
		}

		if worst > 1+tolerance {
			r.limit(r.Throughput/worst, demands[i].Requests)
		}
	}
}

// tolerance is by how much sums of floating-point numbers may be off.
const tolerance = 1e-9

// busy returns the share of the time in which the device works on requests, if each needs the GPU
// stretch times as long as on a device large enough.
func (r Requests) busy(stretch float64) float64 {
	perSecond, _ := r.serve(stretch)
	return min(1, perSecond*r.GPU.Seconds()*stretch)
}

// serve returns how many requests are answered in a second and how long each takes, if the device
// serves one after the other and each needs the GPU stretch times as long as on a device large
// enough. All requests take the same time, so an open load is an M/D/1 queue.
func (r Requests) serve(stretch float64) (perSecond float64, latency time.Duration) {
	service := r.GPU.Seconds() * stretch
	host := r.Host.Seconds()

	if r.Concurrency > 0 {
		perSecond = min(float64(r.Concurrency)/(service+host), 1/service)
		return perSecond, seconds(float64(r.Concurrency) / perSecond)
	}

	utilization := r.Rate * service
	if utilization >= 1 {
		return 1 / service, MaxLatency
	}

	wait := utilization * service / (2 * (1 - utilization)) // the mean wait in an M/D/1 queue

	return r.Rate, min(MaxLatency, seconds(service+host+wait))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Share returns what each workload does if all run on one device.
func Share(demands []Demand, on Device, mps bool) []Result {
	results := make([]Result, len(demands))
	sharing := make([]*Result, len(demands))

	for i, d := range demands {
		results[i] = Run(d, on)
		sharing[i] = &results[i]
	}

	Contend(sharing, on, mps)

	return results
}

// Contend takes the results of workloads that each had a device to itself, and changes them to what
// the workloads do if they share it. With MPS they run beside each other, and all slow down if
// together they want more SMs or bandwidth than there are. With time-slicing one runs at a time.
func Contend(sharing []*Result, on Device, mps bool) {
	var busy, sms, bandwidth float64
	for _, r := range sharing {
		busy += r.Busy
		sms += r.SMs
		bandwidth += r.Bandwidth
	}

	factor := max(1, busy)
	if mps {
		factor = max(1, sms/on.SMs, bandwidth/(Reachable*on.Bandwidth))
	}

	if factor == 1 {
		return
	}

	for _, r := range sharing {
		alone := r.Busy
		r.slowDown(factor)
		r.Stretch *= factor
		r.Latency = time.Duration(min(float64(MaxLatency), float64(r.Latency)*factor))

		// With MPS kernels do not wait for their turn: they run, for longer.
		if mps {
			r.Busy = min(1, alone*factor)
		}
	}
}
