package sim

import (
	"math"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

func TestEightBusyH100DrawNoMoreThanTheyMay(t *testing.T) {
	n := start(t, `
version: 1
node: {kubernetes: false}
gpus: [{model: H100-80GB, count: 8}]
workloads: [{name: train, memory: 70GiB, sm: 132, dram: 0.8, tensor: 0.9}]
processes: [{gpu: 0, workload: train}, {gpu: 1, workload: train}]
`)
	s := state(t, n, 0)
	cmptest.Equal(t, "power under full load", s.Watts, 700)
	cmptest.Equal(t, "clock event reasons", s.ClockEvents, reasonPowerCap)

	if s.SMMHz >= 1980 || s.SMMHz < 990 {
		t.Errorf("clock of %d MHz, want 990 to 1979", s.SMMHz)
	}

	idle := state(t, n, 7)
	cmptest.Equal(t, "power of an idle GPU", idle.Watts, 70)
	cmptest.Equal(t, "its clock event reasons", idle.ClockEvents, reasonIdle)
	cmptest.Equal(t, "its SM clock", idle.SMMHz, 345)
	cmptest.Equal(t, "its PCIe generation", idle.PCI.Generation, 1)
}

func TestOutOfMemory(t *testing.T) {
	n := start(t, `
version: 1
node: {kubernetes: false}
gpus: [{model: A100-40GB, mig: true, layout: [{gi: "3g.20gb@0", ci: [1c, 2c]}]}]
workloads: [{name: old, memory: 12GiB}, {name: new, memory: {steps: [{at: 0s, value: 1GiB}, {at: 1m, value: 9GiB}]}}]
processes: [{device: 0/3g.20gb@0/0, workload: old}, {device: 0/3g.20gb@0/1, workload: new}]
`)
	if got := len(state(t, n, 0).Processes); got != 2 {
		t.Fatalf("%d processes", got)
	}

	advance(t, n, time.Minute)

	s := state(t, n, 0)
	if len(s.Processes) != 1 || s.Processes[0].MemoryBytes != 12<<30 {
		t.Errorf("processes %+v: the one that found too little must be gone", s.Processes)
	}

	if want := uint64(12<<30 + 5<<20); s.Instances[0].MemoryUsed != want {
		t.Errorf("%d bytes used, want %d", s.Instances[0].MemoryUsed, want)
	}

	if !recorded(n, "out of memory on GPU 0: it wants 9216 MiB") {
		t.Errorf("records: %v", n.Records())
	}
}

// Energy is the integral of power, however the clock is moved and however often it is read.
func TestEnergyIsTheIntegralOfPower(t *testing.T) {
	const text = `
version: 1
node: {kubernetes: false}
gpus: [{model: A30}]
workloads: [{name: w, memory: 1GiB, sm: {steps: [{at: 0s, value: 50}, {at: 10s, value: 5}], repeat: 20s}}]
processes: [{gpu: 0, workload: w, at: 2500ms, for: 45s}]
`
	coarse := start(t, text)
	fine := start(t, text)
	advance(t, coarse, time.Minute)

	sum := 0.0

	before := state(t, fine, 0)
	for range 240 {
		advance(t, fine, 250*time.Millisecond)
		sum += before.Watts / 4
		before = state(t, fine, 0)
	}

	if a, b := state(t, coarse, 0).Joules, before.Joules; a != b {
		t.Errorf("%v J in one step, %v in small ones", a, b)
	}

	if math.Abs(sum-before.Joules) > 1e-6*sum {
		t.Errorf("power adds up to %g J, energy is %g", sum, before.Joules)
	}
}

func TestTemperatureFollowsPowerSlowly(t *testing.T) {
	n := start(t, `
version: 1
node: {kubernetes: false}
gpus: [{model: A100-40GB}]
workloads: [{name: w, memory: 1GiB, sm: 108, dram: 0.9, tensor: 0.9}]
processes: [{gpu: 0, workload: w, at: 1s, for: 10m}]
`)
	var celsius []int

	for _, by := range []time.Duration{time.Second, 20 * time.Second, 5 * time.Minute, 20 * time.Minute} {
		advance(t, n, by)
		celsius = append(celsius, state(t, n, 0).Celsius)
	}

	if !(celsius[0] < celsius[1] && celsius[1] < celsius[2] && celsius[3] == celsius[0]) || celsius[2] < 70 {
		t.Errorf("%v C at rest, after 20 seconds, after minutes of full load, at rest again; want a rise to 70, and the first",
			celsius)
	}
}
