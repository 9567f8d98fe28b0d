package kernels

import (
	"math"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

func wide(width float64) []Phase { return []Phase{{Share: 1, Width: width}} }

// TestPublishedInferenceServer: a Triton server on an A100-PCIE-40GB and on its 3g.20gb slice. One
// closed loop, of 24 ms on the GPU and 2 ms on the host, gives all twelve figures within 5 %.
func TestPublishedInferenceServer(t *testing.T) {
	whole := Device{SMs: 108, Bandwidth: 1}

	slice := Device{SMs: 42, Bandwidth: 0.5}
	for _, c := range []struct {
		on          Device
		concurrency int
		perSecond   float64
		latency     float64 // ms
	}{
		{whole, 1, 38.8, 26}, {whole, 2, 41.8, 48}, {whole, 3, 41.8, 72},
		{slice, 1, 19.6, 52}, {slice, 2, 20.4, 99}, {slice, 3, 20.2, 149},
	} {
		r := Run(Demand{
			Phases:   []Phase{{Share: 1, Width: 40, Bandwidth: Reachable}},
			Requests: Requests{Concurrency: c.concurrency, GPU: 24 * time.Millisecond, Host: 2 * time.Millisecond},
		}, c.on)
		if math.Abs(r.PerSecond/c.perSecond-1) > 0.05 {
			t.Errorf("%+v, concurrency %d: %.1f inferences/s, want %.1f", c.on, c.concurrency, r.PerSecond, c.perSecond)
		}

		if ms := r.Latency.Seconds() * 1000; math.Abs(ms/c.latency-1) > 0.05 {
			t.Errorf("%+v, concurrency %d: %.1f ms, want %.0f", c.on, c.concurrency, ms, c.latency)
		}
	}
}

func TestRun(t *testing.T) {
	for _, c := range []struct {
		about  string
		demand Demand
		on     Device
		want   Result
	}{
		{
			"narrow kernels lose nothing in a slice", Demand{Phases: wide(10), Busy: 0.8}, Device{SMs: 16, Bandwidth: 0.125},
			Result{Busy: 0.8, SMs: 8, Stretch: 1, Throughput: 1},
		},
		{
			"rare and wide ones take longer", Demand{Phases: wide(132), Busy: 0.1}, Device{SMs: 33, Bandwidth: 0.25},
			Result{Busy: 0.4, SMs: 13.2, Stretch: 4, Throughput: 1},
		},
		{
			"frequent and wide ones do less", Demand{Phases: wide(132), Busy: 0.5}, Device{SMs: 33, Bandwidth: 0.25},
			Result{Busy: 1, SMs: 33, Stretch: 4, Throughput: 0.5},
		},
		{
			"a mix is stretched by its wide part", Demand{Phases: []Phase{{Share: 0.5, Width: 132}, {Share: 0.5, Width: 4}},
				Busy: 0.5},
			Device{SMs: 60, Bandwidth: 0.5}, Result{Busy: 0.8, SMs: 34, Stretch: 1.6, Throughput: 1},
		},
		{
			"bandwidth", Demand{Phases: []Phase{{Share: 1, Width: 4, Bandwidth: 0.9}}, Busy: 0.5},
			Device{SMs: 60, Bandwidth: 0.5},
			Result{Busy: 1, SMs: 2, Bandwidth: 0.45, Stretch: 2, Throughput: 1},
		},
		{
			"a hidden loss", Demand{Phases: wide(10), Busy: 0.5}, Device{SMs: 16, Bandwidth: 0.125, Loss: 0.2},
			Result{Busy: 0.6, SMs: 6, Stretch: 1.2, Throughput: 1},
		},
		{"nothing to do", Demand{}, Device{SMs: 16, Bandwidth: 0.125}, Result{Stretch: 1, Throughput: 1}},
	} {
		got := Run(c.demand, c.on)
		for name, v := range map[string][2]float64{
			"busy": {got.Busy, c.want.Busy}, "SMs": {got.SMs, c.want.SMs}, "bandwidth": {got.Bandwidth, c.want.Bandwidth},
			"stretch": {got.Stretch, c.want.Stretch}, "throughput": {got.Throughput, c.want.Throughput},
		} {
			if math.Abs(v[0]-v[1]) > 1e-9 {
				t.Errorf("%s: %s %v, want %v", c.about, name, v[0], v[1])
			}
		}
	}
}

// TestOpenLoad: requests queue as the device fills up, and for ever if they come faster than they
// are served.
func TestOpenLoad(t *testing.T) {
	load := Demand{Phases: wide(64), Requests: Requests{Rate: 5, GPU: 50 * time.Millisecond}}
	last := time.Duration(0)

	for _, sms := range []float64{64, 32, 20, 17} {
		r := Run(load, Device{SMs: sms, Bandwidth: 1})
		if r.Latency <= last || r.Throughput != 1 {
			t.Errorf("%v SMs: latency %v after %v, throughput %v", sms, r.Latency, last, r.Throughput)
		}

		last = r.Latency
	}

	r := Run(load, Device{SMs: 8, Bandwidth: 1})
	cmptest.Equal(t, "overloaded: busy", r.Busy, 1)
	cmptest.Equal(t, "overloaded: latency", r.Latency, MaxLatency)

	if math.Abs(r.Throughput-0.5) > 1e-9 {
		t.Errorf("overloaded: throughput %g, want 0.5", r.Throughput)
	}
}

// TestShare: MPS runs narrow workloads beside each other; time-slicing runs one at a time.
func TestShare(t *testing.T) {
	two := []Demand{{Phases: wide(40), Busy: 0.8}, {Phases: wide(60), Busy: 0.8}}

	on := Device{SMs: 132, Bandwidth: 1}
	for i, r := range Share(two, on, true) {
		if r.Throughput != 1 {
			t.Errorf("MPS, workload %d: throughput %v, want 1", i, r.Throughput)
		}
	}

	for i, r := range Share(two, on, false) {
		if math.Abs(r.Throughput-1/1.6) > 1e-9 || math.Abs(r.Busy-0.5) > 1e-9 {
			t.Errorf("time-slicing, workload %d: throughput %v, busy %v, want 0.625 and 0.5", i, r.Throughput, r.Busy)
		}
	}
}

// TestMediaEngines: a workload that keeps five of seven decoders busy does 3/5 of its work with
// three, and its kernels run for as much less of the time.
func TestMediaEngines(t *testing.T) {
	decodes := Demand{Phases: wide(10), Busy: 0.2, Media: Engines{1: 5}}
	closed := decodes
	closed.Requests = Requests{Concurrency: 2, GPU: 10 * time.Millisecond}
	open := decodes
	open.Requests = Requests{Rate: 20, GPU: 10 * time.Millisecond}

	onlyDecodes := Demand{Media: Engines{1: 5}}
	for _, c := range []struct {
		about  string
		demand Demand
		have   float64
		want   Result
	}{
		{"enough", decodes, 7, Result{Throughput: 1, Busy: 0.2, SMs: 2}},
		{"just enough", decodes, 5, Result{Throughput: 1, Busy: 0.2, SMs: 2}},
		{"three", decodes, 3, Result{Throughput: 0.6, Busy: 0.12, SMs: 1.2}},
		{"no kernels", onlyDecodes, 3, Result{Throughput: 0.6}},
		{"a closed loop", closed, 3, Result{Throughput: 0.6, Busy: 0.6, SMs: 6, PerSecond: 60, Latency: 33_333_333}},
		{"an open load", open, 3, Result{Throughput: 0.6, Busy: 0.12, SMs: 1.2, PerSecond: 12, Latency: MaxLatency}},
	} {
		got := Run(c.demand, Device{SMs: 16, Bandwidth: 1, Engines: Engines{1: c.have}})
		for name, v := range map[string][2]float64{
			"throughput": {got.Throughput, c.want.Throughput}, "busy": {got.Busy, c.want.Busy}, "SMs": {got.SMs, c.want.SMs},
			"per second": {got.PerSecond, c.want.PerSecond}, "stretch": {got.Stretch, 1},
		} {
			if c.want.PerSecond == 0 && name == "per second" {
				continue
			}

			if math.Abs(v[0]-v[1]) > 1e-9 {
				t.Errorf("%s: %s %v, want %v", c.about, name, v[0], v[1])
			}
		}

		if c.want.Latency > 0 && (got.Latency-c.want.Latency).Abs() > time.Microsecond {
			t.Errorf("%s: latency %v, want %v", c.about, got.Latency, c.want.Latency)
		}
	}

	cmptest.Equal(t, "none", Run(decodes, Device{SMs: 16, Bandwidth: 1}).Throughput < 1e-6, true)
}

// TestSharedMediaEngines: two that decode share the decoders; one that does not keeps its pace.
func TestSharedMediaEngines(t *testing.T) {
	on := Device{SMs: 16, Bandwidth: 1, Engines: Engines{1: 2}}
	demands := []Demand{{Busy: 0.1, Phases: wide(4), Media: Engines{1: 2}}, {Busy: 0.1, Phases: wide(4), Media: Engines{1: 1}},
		{Busy: 0.1, Phases: wide(4)}}

	sharing := make([]*Result, len(demands))
	for i, d := range demands {
		r := Run(d, on)
		sharing[i] = &r
	}

	ContendForEngines(sharing, demands, on.Engines)

	for i, want := range []float64{2. / 3, 2. / 3, 1} {
		if got := sharing[i].Throughput; math.Abs(got-want) > 1e-9 {
			t.Errorf("workload %d: throughput %v, want %v", i, got, want)
		}
	}
}
