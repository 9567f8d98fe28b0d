package truth

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/sim/kernels"
	"github.com/mig-exporter/mig-exporter/internal/sim/requests"
)

// How requests arrive, by name.
const (
	arrivePoisson = "poisson" // at the rate of each minute
	arriveBursty  = "bursty"  // in bursts of seconds
	arriveTrace   = "trace"   // at a rate of each ten seconds, as traces have it
	arriveClosed  = "closed"  // clients wait for their answers
)

func arrivalNames() []string { return []string{arrivePoisson, arriveBursty, arriveTrace, arriveClosed} }

// serving is how a workload answers requests.
type serving struct {
	arrivals string
	service  requests.Service
	// known: its pods carry the service time, or that single requests do not count, as an
	// annotation.
	known bool
	// each: a request has kernels of one phase of the workload, and its service time is that of the
	// workload times the phase's in spread. Otherwise each request goes through all phases.
	each   bool
	spread func(phase int) float64
	batch  int
	growth float64
	burst  requests.Burst
	// clients of a closed loop
	clients int
}

const (
	// maxOffered is the load of an open loop that its GPU is there for.
	maxOffered  = 0.9
	pollSeconds = 1 // as the exporter polls
	polls       = 60 / pollSeconds
	// traceRates is how often a minute the rate of trace-like arrivals changes.
	traceRates = 6
)

// servingKinds are those that answer requests.
func servingKinds() []string {
	return []string{"rare-wide", "image-fleet", "daily", "weekly", "bursty", "phases", "growing-load", "growing-memory",
		"leaking", "pcie-bound", "voice", "balanced", "mixture", "server",
		"answering-server"}
}

// addServing draws how a workload answers requests. It takes its random numbers from a source of
// its own.
func (w *workload) addServing() {
	if !slices.Contains(servingKinds(), w.kind) {
		return
	}

	r := rand.New(rand.NewPCG(w.seed, 0x5e47e))
	v := &serving{
		arrivals: arrivalNames()[r.IntN(4)], known: r.IntN(2) == 0, each: r.IntN(2) == 0,
		spread: func(int) float64 { return 1 },
	}
	v.service = requests.Service{
		Mean: 0.008 * math.Pow(600, r.Float64()), Shape: requests.Shape(r.IntN(3)), Sigma: between(r, 0.3, 1),
	}

	if w.kind == "mixture" { // short and narrow ones, and some that are long and wide
		v.each = true
		long := between(r, 3, 20)
		v.spread = func(phase int) float64 { return [2]float64{long, 1}[phase%2] }
	}

	if v.service.Mean > 0.1 && r.IntN(2) == 0 {
		v.batch, v.growth = 2<<r.IntN(5), between(r, 0.02, 0.3)
	}

	switch v.arrivals {
	case arriveBursty:
		v.burst = requests.Burst{Factor: between(r, 2, 8), Within: between(r, 1, 30), Between: between(r, 10, 120)}
	case arriveClosed:
		v.clients = 1 + r.IntN(16)
	}

	w.serves = v
}

// open reports whether a workload answers requests that come whatever becomes of earlier ones.
func (w *workload) open() bool { return w.serves != nil && w.serves.clients == 0 }

// hints are what the annotations of a workload's pods say.
func (w *workload) hints() gpu.RightsizingHints {
	hints := w.requestHints()
	if w.says != nil && w.says.annotated {
		hints.ModelMemory = gpu.Some(uint64(w.says.weights * gib))
	}

	return hints
}

// requestHints are what they say of requests.
func (w *workload) requestHints() gpu.RightsizingHints {
	v := w.serves
	switch {
	case w.overlaps:
		return gpu.RightsizingHints{Closed: true}
	case v == nil || !v.known:
		return gpu.RightsizingHints{}
	case v.clients > 0:
		return gpu.RightsizingHints{Closed: true}
	}

	mean := v.meanService(w.requestKinds(0))

	return gpu.RightsizingHints{ServiceTime: gpu.Some(time.Duration(mean * float64(time.Second)))}
}

// requestKinds returns the kinds of requests in a state of a workload.
func (w *workload) requestKinds(state int) []requests.Kind {
	var kinds []requests.Kind

	all := requests.Kind{Share: 1, Service: w.serves.service}
	for i, p := range w.states[state] {
		one := requests.Phase{Share: 1, Width: p.Width, Bandwidth: p.Bandwidth}
		service := w.serves.service
		service.Mean *= w.serves.spread(i)
		kinds = append(kinds, requests.Kind{
			Share: p.Share / service.Mean, Phases: []requests.Phase{one}, Service: service,
		})
		one.Share = p.Share
		all.Phases = append(all.Phases, one)
	}

	if w.serves.each {
		return kinds
	}

	return []requests.Kind{all}
}

// meanService returns the mean service time of requests on the whole GPU.
func (v *serving) meanService(kinds []requests.Kind) float64 {
	sum := 0.
	shares := 0.

	for i := range kinds {
		sum = sum + kinds[i].Share*kinds[i].Service.Mean
		shares = shares + kinds[i].Share
	}

	return sum / shares
}

// servedHour is what became of the requests of an hour.
type servedHour struct {
	results []requests.Result // of successive parts of the hour
	polls   [60 * polls]requests.Interval
}

func (h *servedHour) answered() float64 {
	sum := 0.
	for i := range h.results {
		sum += h.results[i].Throughput * float64(len(h.results[i].Intervals)) * pollSeconds
	}

	return sum
}

// serve simulates the requests of an hour on a device; without result if none can come. An hour
// begins with an idle device, and so does a part of it with other kernels.
func (w *workload) serve(hour int, on requests.Device) *servedHour {
	h := &servedHour{}

	for from := hour * 60; from < hour*60+60; {
		running, number := w.runs(from)

		until := from + 1

		state := w.stateOf(from)
		for until < hour*60+60 && w.stateOf(until) == state {
			if now, of := w.runs(until); now != running || of != number {
				break
			}

			until++
		}

		if running {
			r := requests.Run(w.seed+uint64(w.replica)<<32+uint64(from), w.load(from, until, state), on,
				float64(until-from)*60, pollSeconds)
			copy(h.polls[(from-hour*60)*polls:], r.Intervals)
			h.results = append(h.results, r)
		}

		from = until
	}

	return h
}

// load returns the requests of some minutes with kernels of one state.
func (w *workload) load(from, until, state int) requests.Load {
	v := w.serves
	l := requests.Load{Kinds: w.requestKinds(state)}
	mean := v.meanService(l.Kinds)

	l.Batch = v.batch
	l.Growth = v.growth
	l.Step = mean / 16

	if v.clients > 0 {
		busy := 0.
		for minute := from; minute < until; minute++ {
			busy += w.demand(minute).Busy / float64(until-from)
		}

		l.Arrivals = requests.Closed(v.clients, max(0, mean*(float64(v.clients)/max(busy, 1e-6)-1)))

		return l
	}

	var rates []float64

	for minute := from; minute < until; minute++ {
		rate := w.demand(minute).Busy / mean
		if v.arrivals != arriveTrace {
			rates = append(rates, rate)
			continue
		}

		for k := range traceRates { // a log-normal factor of mean 1
			normal := math.Sqrt2 * math.Erfinv(2*w.random(minute*traceRates+k, 11)-1)
			rates = append(rates, rate*math.Exp(0.7*normal-0.7*0.7/2))
		}
	}

	l.Arrivals = requests.Trace(rates, 60*float64(until-from)/float64(len(rates)))
	l.Arrivals.Burst = v.burst

	return l
}

// requestsDevice returns a device as the simulation of requests has it.
func requestsDevice(on kernels.Device) requests.Device {
	return requests.Device{SMs: on.SMs, Bandwidth: on.Bandwidth, Loss: on.Loss}
}
