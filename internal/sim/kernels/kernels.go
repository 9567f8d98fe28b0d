// Package kernels is the model of what a workload does on a GPU or a slice of one. Its kernels fill
// a number of SMs, the width, and draw a share of the memory bandwidth while they run, for a part
// of the time. A device with fewer SMs or less bandwidth stretches them by the larger of the two
// ratios (a roofline), so they run for more of the time; beyond all of the time, throughput falls.
// Media engines work beside the kernels: where a device has fewer of a kind than the workload keeps
// busy, it does its work as slowly as they do theirs.
//
// The model is deterministic and consistent with published runs; it is no measurement.
package kernels

import "time"

// Reachable is the share of a memory's nominal bandwidth that kernels reach.
const Reachable = 0.9

// Phase is one kind of kernels of a workload.
type Phase struct {
	Share     float64 // of the busy time, on a device large enough; the shares of a workload add up to 1
	Width     float64 // SMs
	Bandwidth float64 // of the GPU's nominal bandwidth, 0 to Reachable
}

// Demand is what a workload would do on a device large enough.
type Demand struct {
	Phases []Phase
	// Busy is how much of the time kernels run, 0-1. It is not used if Requests are given.
	Busy     float64
	Requests Requests
	Media    Engines // those that it keeps busy
}

// Engines are numbers of media engines: encoders, decoders, JPEG and optical flow engines.
type Engines [4]float64

// throughput returns how much of the work of a demand engines do, 0-1.
func (e Engines) throughput(wanted Engines) float64 {
	done := 1.0

	for kind, have := range e {
		if wanted[kind] > have {
			done = min(done, have/wanted[kind])
		}
	}

	return done
}

// Requests are a load in requests of which each needs the GPU for a time, and the host for another.
// Concurrency above 0 is a closed loop: so many clients that each send the next request when the
// last was answered. Otherwise Rate arrive each second, and queue.
type Requests struct {
	Concurrency int
	Rate        float64
	GPU, Host   time.Duration
}

// Given reports whether there is a load in requests.
func (r Requests) Given() bool { return r.GPU > 0 && (r.Concurrency > 0 || r.Rate > 0) }

// Device is a whole GPU or a slice.
type Device struct {
	SMs       float64
	Bandwidth float64 // its share of the GPU's, 0-1
	Engines   Engines
	// Loss lengthens all kernels by a share: what no metric shows, such as a smaller share of the
	// L2 cache, or lower clocks.
	Loss float64
}

// Result is what a workload does on a device.
type Result struct {
	Busy      float64 // share of the time in which kernels run, 0-1
	SMs       float64 // SMs at work, mean over time
	Bandwidth float64 // of the GPU's nominal bandwidth, mean over time
	Stretch   float64 // of the busy time, 1 on a device large enough
	// Throughput is the work done, relative to a device large enough, 0-1.
	Throughput float64
	// PerSecond and Latency are those of requests; 0 without. Latency is MaxLatency if an open load
	// comes faster than it is served.
	PerSecond float64
	Latency   time.Duration
}

// MaxLatency stands for a queue that grows without bound.
const MaxLatency = 24 * time.Hour

// stretchOf returns how many times longer a phase runs on a device.
func (p Phase) stretchOf(on Device) float64 {
	return max(1, p.Width/on.SMs, p.Bandwidth/(Reachable*on.Bandwidth)) * (1 + on.Loss)
}

// Run returns what a workload does on a device that it has to itself.
func Run(d Demand, on Device) Result {
	r := Result{}
	var width, bandwidth float64 // means over the busy time on the device

	for _, p := range d.Phases {
		stretch := p.stretchOf(on)
		r.Stretch += p.Share * stretch
		// A stretched kernel does the same work in more time: it fills the device, or draws its
		// share, for longer.
		width += p.Share * min(p.Width*(1+on.Loss), on.SMs*stretch)
		bandwidth += p.Share * p.Bandwidth
	}

	if r.Stretch == 0 {
		r = Result{Stretch: 1, Throughput: 1}
		r.limit(on.Engines.throughput(d.Media), d.Requests)

		return r
	}

	demand := d.Busy
	if d.Requests.Given() {
		demand = d.Requests.busy(1)
	}

	r.Throughput = 1
	r.Busy = demand * r.Stretch

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

	done := r.Throughput * demand // as busy time of a device large enough
	r.SMs = done * width
	r.Bandwidth = done * bandwidth
	r.limit(on.Engines.throughput(d.Media), d.Requests)

	return r
}

// limit lowers the throughput to that of the engines for which the kernels wait. The kernels then
// run for less of the time.
func (r *Result) limit(throughput float64, q Requests) {
	if throughput >= r.Throughput {
		return
	}

	r.slow(r.Throughput / max(throughput, smallestThroughput))

	if !q.Given() {
		return
	}

	r.Latency = MaxLatency // requests of an open load come faster than they are served
	if q.Concurrency > 0 && r.PerSecond > 0 {
		r.Latency = min(MaxLatency, seconds(float64(q.Concurrency)/r.PerSecond))
	}
}

// smallestThroughput is that of a workload that waits for what its device does not have.
const smallestThroughput = 1e-9

// slow does the same work in a time that is longer by a factor.
func (r *Result) slow(by float64) {
	r.Throughput /= by
	r.PerSecond /= by
	r.Busy /= by
	r.SMs /= by
	r.Bandwidth /= by
}

// ContendForEngines slows down workloads that share the media engines of a device, if they keep
// more of them busy together than there are. The workloads share the engines of a kind in
// proportion to what they want: if two want 1 and 3 decoders and there are 2, they get 0.5 and 1.5.
func ContendForEngines(sharing []*Result, demands []Demand, have Engines) {
	var used Engines

	for i, r := range sharing {
		for kind, wanted := range demands[i].Media {
			used[kind] += wanted * r.Throughput
		}
	}

	for i, r := range sharing {
		worst := 1.0

		for kind, wanted := range demands[i].Media {
			if wanted > 0 && have[kind] > 0 {
				worst = max(worst, used[kind]/have[kind])
			}
		}

		if worst > 1+tolerance {
			r.limit(r.Throughput/worst, demands[i].Requests)
		}
	}
}

// tolerance is for sums of floating point.
const tolerance = 1e-9

// busy returns how much of the time the device works on requests that need it stretch times as
// long.
func (r Requests) busy(stretch float64) float64 {
	perSecond, _ := r.serve(stretch)
	return min(1, perSecond*r.GPU.Seconds()*stretch)
}

// serve returns the requests answered in a second and how long each takes, if the device serves one
// after the other. Service times do not vary: a closed loop is bounded by its clients or by the
// device; an open one waits for half of what a random arrival finds.
func (r Requests) serve(stretch float64) (perSecond float64, latency time.Duration) {
	service := r.GPU.Seconds() * stretch
	host := r.Host.Seconds()

	if r.Concurrency > 0 {
		perSecond = min(float64(r.Concurrency)/(service+host), 1/service)
		return perSecond, seconds(float64(r.Concurrency) / perSecond)
	}

	use := r.Rate * service
	if use >= 1 {
		return 1 / service, MaxLatency
	}

	wait := use * service / (2 * (1 - use)) // of an M/D/1 queue

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

// Contend turns what workloads would do if each had a device to itself into what they do together.
// By MPS they run beside each other, and slow down together if they want more SMs or bandwidth than
// there are; by time-slicing one runs at a time.
func Contend(sharing []*Result, on Device, mps bool) {
	var busy, sms, bandwidth float64
	for _, r := range sharing {
		busy += r.Busy
		sms += r.SMs
		bandwidth += r.Bandwidth
	}

	slower := max(1, busy)
	if mps {
		slower = max(1, sms/on.SMs, bandwidth/(Reachable*on.Bandwidth))
	}

	if slower == 1 {
		return
	}

	for _, r := range sharing {
		alone := r.Busy
		r.slow(slower)
		r.Stretch *= slower
		r.Latency = time.Duration(min(float64(MaxLatency), float64(r.Latency)*slower))

		if mps {
			r.Busy = min(1, alone*slower)
		}
	}
}
