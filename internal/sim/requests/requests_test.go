package requests

import (
	"go/parser"
	"go/token"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// whole is a GPU on which no kind of the tests is slowed down.
var whole = Device{SMs: 132, Bandwidth: 1}

// one returns a load of one kind that no device slows down.
func one(a Arrivals, service float64, shape Shape) Load {
	return Load{Arrivals: a, Kinds: []Kind{{1, kernels(1, 0), Service{Mean: service, Shape: shape}}}}
}

func kernels(width, bandwidth float64) []Phase { return []Phase{{1, width, bandwidth}} }

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()

	if !(math.Abs(got-want) <= tolerance*want) {
		t.Errorf("%s: %v, want %v within %v %%", what, got, want, 100*tolerance)
	}
}

// TestQueuesOfTheory: mean waits are those of Pollaczek and Khinchine, and the sojourn of an M/M/1
// queue is exponential.
func TestQueuesOfTheory(t *testing.T) {
	t.Parallel()

	const service, time = 0.1, 200_000.
	for _, load := range []float64{0.3, 0.6, 0.8} {
		arrivals := Poisson(load / service)

		variations := map[Shape]float64{Constant: 0, Exponential: 1}
		for shape, variation := range variations {
			r := Run(7, one(arrivals, service, shape), whole, time, time)
			wait := load * service * (1 + variation) / (2 * (1 - load))
			near(t, "mean", Summarize(r).Mean, service+wait, 0.02)
			near(t, "busy", r.Busy, load, 0.01)
			near(t, "throughput", r.Throughput, load/service, 0.01)
		}

		r := Summarize(Run(7, one(arrivals, service, Exponential), whole, time, time))

		mean := service / (1 - load)
		for q, got := range map[float64]float64{0.5: r.P50, 0.95: r.P95, 0.99: r.P99} {
			near(t, "quantile of the sojourn", got, -mean*math.Log(1-q), 0.04)
		}

		l := one(arrivals, service, LogNormal)
		l.Kinds[0].Service.Sigma = 0.8
		near(t, "mean, log-normal", Summarize(Run(7, l, whole, time, time)).Mean,
			service+load*service*math.Exp(0.64)/(2*(1-load)), 0.03)
	}
}

// TestMixturesOfTheory: two kinds of which a slice slows down one are an M/G/1 queue with the
// mixture's moments.
func TestMixturesOfTheory(t *testing.T) {
	t.Parallel()
	const rate, narrow, wide, time = 3., 0.1, 0.2, 300_000.

	l := Load{Arrivals: Poisson(rate), Kinds: []Kind{
		{3, kernels(30, 0), Service{Mean: narrow}},
		{1, []Phase{{0.5, 120, 0.2}, {0.5, 60, 0}}, Service{Mean: wide}},
	}}
	for slowed, on := range map[float64]Device{
		1: whole, 1.5: {SMs: 60, Bandwidth: 0.5}, 1.125 * 1.2: {SMs: 96, Bandwidth: 0.5, Loss: 0.2},
	} {
		first := narrow * (1 + on.Loss)
		mean := 0.75*first + 0.25*wide*slowed
		square := 0.75*first*first + 0.25*wide*wide*slowed*slowed
		r := Run(3, l, on, time, time)
		near(t, "mean", Summarize(r).Mean, mean+rate*square/(2*(1-rate*mean)), 0.02)
		near(t, "busy", r.Busy, rate*mean, 0.01)
	}

	if got := (Device{SMs: 132, Bandwidth: 0.125}).slowdown(l.Kinds[1].Phases[0]); math.Abs(got-0.2/(0.9*0.125)) > 1e-9 {
		t.Errorf("slowed down by the bandwidth: %v", got)
	}
}

// TestClosedLoops: throughput is bounded by the clients and by the device, and Little's law holds.
func TestClosedLoops(t *testing.T) {
	t.Parallel()

	const service, think, time = 0.1, 0.9, 50_000.
	for clients, want := range map[int]float64{1: 1 / (service + think), 40: 1 / service} {
		r := Run(5, one(Closed(clients, think), service, Constant), whole, time, time)
		near(t, "throughput", r.Throughput, want, 0.01)
	}

	for _, clients := range []int{2, 5, 12} {
		r := Run(5, one(Closed(clients, think), service, Exponential), whole, time, time)
		near(t, "clients, by Little's law", r.Throughput*(Summarize(r).Mean+think), float64(clients), 0.02)

		if most := min(float64(clients)/(service+think), 1/service); r.Throughput > 1.01*most {
			t.Errorf("%d clients: %v a second, at most %v are possible", clients, r.Throughput, most)
		}
	}
}

// TestBatches: a lone request takes its service time, a full batch has the throughput of its steps,
// and a batch whose steps do not grow serves all at the speed of one.
func TestBatches(t *testing.T) {
	t.Parallel()
	l := one(Poisson(0.01), 0.5, Constant)
	l.Batch = 8
	l.Step = 0.05
	l.Growth = 0.25
	near(t, "lone request", Summarize(Run(1, l, whole, 50_000, 50_000)).P50, 0.5, 0.001)

	l.Arrivals = Closed(32, 0)
	perSecond := 8 / (0.5 * (1 + 0.25*7))
	r := Run(1, l, whole, 2_000, 2_000)
	near(t, "throughput of full batches", r.Throughput, perSecond, 0.01)
	near(t, "latency of full batches", Summarize(r).Mean, 32/perSecond, 0.02)

	l.Arrivals = Poisson(20)
	l.Batch = 1000
	l.Growth = 0
	r = Run(1, l, whole, 10_000, 10_000)
	near(t, "without growth", Summarize(r).P95, 0.55, 0.1) // up to one step until it joins
	l.Kinds[0].Phases = kernels(120, 0)
	r = Run(1, l, Device{SMs: 60, Bandwidth: 1}, 10_000, 10_000)
	near(t, "in a slice", Summarize(r).P95, 2*0.55, 0.1)
}

// TestArrivals: bursts and traces keep their mean rates; bursts make waits longer; a trace has its
// rate in each bin.
func TestArrivals(t *testing.T) {
	t.Parallel()
	const service, rate, time = 0.05, 8., 200_000.
	steady := Run(2, one(Poisson(rate), service, Constant), whole, time, time)
	bursty := Poisson(rate)
	bursty.Burst = Burst{Factor: 6, Within: 5, Between: 40}
	r := Run(2, one(bursty, service, Constant), whole, time, time)
	near(t, "rate with bursts", float64(len(r.Latencies))/time, rate, 0.02)

	if with, without := Summarize(r).P95, Summarize(steady).P95; with < 2*without {
		t.Errorf("p95 with bursts is %v, and %v without: expected twice as much", with, without)
	}

	r = Run(2, one(Trace([]float64{2, 0, 10}, 60), service, Constant), whole, 180_000, 60)

	var by [3]float64
	for i, v := range r.Intervals {
		by[i%3] += v.Busy / 1000
	}

	near(t, "first bin", by[0], 2*service, 0.02)
	near(t, "last bin", by[2], 10*service, 0.02)

	if by[1] > 0.001 {
		t.Errorf("busy %v of the time without arrivals", by[1])
	}
}

// TestIntervals: what intervals have adds up, SMs and bandwidth are those of the kernels, and never
// more than the device has.
func TestIntervals(t *testing.T) {
	t.Parallel()
	l := one(Poisson(2), 0.2, Exponential)
	l.Kinds[0].Phases = kernels(120, 0.3)

	const time = 10_000.
	for _, on := range []Device{whole, {SMs: 60, Bandwidth: 0.5}, {SMs: 60, Bandwidth: 1. / 6}} {
		r := Run(9, l, on, time, 5)
		var sum Interval

		for _, v := range r.Intervals {
			if v.Busy > 1 || v.SMs > on.SMs*v.Busy+1e-9 || v.Bandwidth > reachable*on.Bandwidth*v.Busy+1e-9 {
				t.Fatalf("%+v on %+v", v, on)
			}

			sum.Busy = sum.Busy + v.Busy*5/time
			sum.SMs = sum.SMs + v.SMs*5/time
			sum.Bandwidth = sum.Bandwidth + v.Bandwidth*5/time
		}

		near(t, "busy", sum.Busy, r.Busy, 1e-9)
		near(t, "work of the SMs", sum.SMs, 2*0.2*120, 0.03) // the same on all devices
		near(t, "bytes moved", sum.Bandwidth, 2*0.2*0.3, 0.03)
	}
}

// TestSeeds: the same seed gives the same result, another one another, and devices are given the
// same requests.
func TestSeeds(t *testing.T) {
	t.Parallel()
	l := one(Poisson(5), 0.1, Exponential)

	a := Run(1, l, whole, 1000, 10)
	b := Run(1, l, whole, 1000, 10)
	c := Run(2, l, whole, 1000, 10)

	if !reflect.DeepEqual(a, b) {
		t.Error("the same seed gives another result")
	}

	if reflect.DeepEqual(a, c) {
		t.Error("another seed gives the same result")
	}

	l.Kinds[0].Phases = kernels(132, 0)

	d := Run(1, l, Device{SMs: 66, Bandwidth: 1}, 1000, 10)
	if len(d.Latencies) != len(a.Latencies) || slices.Min(d.Latencies) < 2*slices.Min(a.Latencies)-1e-9 {
		t.Errorf("in a slice %d requests, the quickest in %v; on the whole GPU %d and %v",
			len(d.Latencies), slices.Min(d.Latencies), len(a.Latencies), slices.Min(a.Latencies))
	}

	none := Run(1, one(Poisson(0), 0.1, Constant), whole, 100, 10)
	if none.Latencies != nil || Summarize(none, none) != (Summary{}) || none.Busy != 0 {
		t.Errorf("no arrivals: %+v", none)
	}
}

// TestImportsNothingOfTheProject: it is a second opinion on what other packages compute.
func TestImportsNothingOfTheProject(t *testing.T) {
	t.Parallel()

	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}

	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}

		for _, i := range f.Imports {
			if strings.Contains(i.Path.Value, "/mig-exporter/") {
				t.Errorf("%s imports %s", name, i.Path.Value)
			}
		}
	}
}
