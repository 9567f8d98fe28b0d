package sim

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

const countersScenario = `
version: 1
node: {kubernetes: false}
gpus:
  - {model: H100-80GB}
  - {model: H100-80GB, mig: true, layout: ["4g.40gb@0", "3g.40gb@4"]}
workloads:
  - {name: half, memory: 1GiB, sm: 66, dram: 0.5, tensor: 0.4, fp16: 0.1, occupancy: 0.25}
  - {name: slice, memory: 1GiB, sm: 32, dram: 0.2}
processes:
  - {device: 0, workload: half}
  - {device: 1/4g.40gb@0, workload: slice}
`

// over is the mean activity over a time.
func over(t *testing.T, n *Node, by time.Duration, read func() (Counters, error)) Activity {
	t.Helper()

	before, err := read()
	if err != nil {
		t.Fatal(err)
	}

	advance(t, n, by)

	after, err := read()
	if err != nil {
		t.Fatal(err)
	}

	if got := after.Time.Sub(before.Time); got != by {
		t.Fatalf("the clock of the counters went on by %v, want %v", got, by)
	}

	return Activity{}.plus(after.Activity.plus(before.Activity, -1), 1/by.Seconds())
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestCountersAreActivityOverTime(t *testing.T) {
	n := start(t, countersScenario)
	whole := over(t, n, 1500*time.Millisecond, func() (Counters, error) { return n.GPUCounters(0) })
	want := Activity{Graphics: 1, SM: 0.5, Occupancy: 0.125, Tensor: 0.2, FP32: 0.1, FP16: 0.05, DRAM: 0.25}
	cmptest.Equal(t, "a whole GPU", whole, want, cmpopts.EquateApprox(0, 1e-9))
	id := state(t, n, 1).Instances[0].ID

	slice := over(t, n, 300*time.Millisecond, func() (Counters, error) { return n.InstanceCounters(1, id) })
	if !near(slice.SM, 0.5) || !near(slice.DRAM, 0.1) {
		t.Errorf("a GPU instance of 64 SMs with 32 at work %+v", slice)
	}

	compute := over(t, n, 300*time.Millisecond, func() (Counters, error) { return n.ComputeCounters(1, id, 0) })
	if !near(compute.SM, 0.5) || compute.DRAM != 0 {
		t.Errorf("its compute instance %+v; want no memory activity", compute)
	}

	onGPU := over(t, n, 2*time.Second, func() (Counters, error) { return n.GPUCounters(1) })
	if !near(onGPU.SM, 32.0/132) {
		t.Errorf("the GPU %+v", onGPU)
	}

	if _, err := n.InstanceCounters(1, 13); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("an instance that is not there: %v", err)
	}

	if _, err := n.ComputeCounters(1, id, 3); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("a compute instance that is not there: %v", err)
	}
}

// An operation that fails leaves the counters as they were.
func TestCountersAfterAFailedOperation(t *testing.T) {
	n := start(t, countersScenario)
	advance(t, n, 10*time.Second)

	if made, err := n.CreateGPUInstance(1, 5, gpu.Some(4)); err == nil {
		t.Fatalf("made %d where no 4g fits", made)
	}

	busy := state(t, n, 1).Instances[0].ID
	for _, want := range []float64{5, 6} {
		if c, err := n.InstanceCounters(1, busy); err != nil || !near(c.Activity.SM, want) {
			t.Errorf("counters %+v, %v; want %g s of SMs at work", c, err, want)
		}

		advance(t, n, 2*time.Second)
	}
}

// No pair of samples of one entity runs backwards, whatever happened between them: NVIDIA's DCGM
// core keeps the last sample of an id, and reported negative ratios of an instance whose counters
// started again under the id of another.
func TestCountersNeverDecrease(t *testing.T) {
	n := start(t, countersScenario+`  - {device: 1/3g.40gb@4, workload: slice}
faults:
  - {kind: external-reconfigure, gpu: 1, at: 20s, layout: ["3g.40gb@0", "3g.40gb@4"]}
  - {kind: reboot, at: 30s}
`)
	ids := []gpu.InstanceID{1, 2}
	last := map[CountersOf]Counters{}
	check := func(when string) {
		t.Helper()

		reads := []func() (Counters, error){func() (Counters, error) { return n.GPUCounters(1) }}
		for _, id := range ids {
			reads = append(reads, func() (Counters, error) { return n.InstanceCounters(1, id) },
				func() (Counters, error) { return n.ComputeCounters(1, id, 0) })
		}

		for _, read := range reads {
			c, err := read()
			if err != nil {
				continue // not there at the moment
			}

			if before, ok := last[c.Of]; ok && c.Time.After(before.Time) {
				for _, metric := range []uint32{1, 2, 3, 5, 10, 11, 12, 13, 20, 21, 60, 61} {
					if v, has := GPM(before, c, metric); has && (v < 0 || metric < 20 && v > 100) {
						t.Errorf("%s: metric %d of %+v is %g, want 0 or more, and 100 at most below 20", when, metric, c.Of, v)
					}
				}
			}

			last[c.Of] = c
		}
	}
	check("at the start")
	advance(t, n, 15*time.Second)
	check("at work")
	advance(t, n, 6*time.Second)
	check("over a layout change")

	if len(last) != 5 || last[CountersOf{GPU: 1, Instance: gpu.Some(gpu.InstanceID(2))}].Activity.SM <= 0 {
		t.Fatalf("counters of %d entities: %+v", len(last), last)
	}

	id := ids[0]
	for _, err := range []error{n.DestroyComputeInstance(1, id, 0), n.DestroyGPUInstance(1, id)} {
		if err != nil {
			t.Fatal(err)
		}
	}

	made, err := n.CreateGPUInstance(1, 5, gpu.Some(0))
	if err != nil || made != id {
		t.Fatalf("GPU instance %d, %v; want the id %d again", made, err, id)
	}

	if _, err := n.CreateComputeInstance(1, id, 4); err != nil {
		t.Fatal(err)
	}

	advance(t, n, time.Second)
	check("over a destroyed and created instance")
	advance(t, n, 10*time.Second)
	check("over a reboot")
}

// What a scenario says of a workload's traffic is what every counter has, in both directions.
func TestTrafficIsAsTheScenarioSays(t *testing.T) {
	n := start(t, `
version: 1
node: {kubernetes: false}
gpus: [{model: H100-80GB, count: 2}]
workloads: [{name: w, width: 10, busy: 0.5, pcie: 24MiB, nvlink: 64MiB}]
processes: [{gpu: 0, workload: w}, {gpu: 0, workload: w}]
`)

	before, err := n.GPUCounters(0)
	if err != nil {
		t.Fatal(err)
	}

	advance(t, n, 10*time.Second)

	after, err := n.GPUCounters(0)
	if err != nil {
		t.Fatal(err)
	}

	for metric, want := range map[uint32]float64{20: 48, 21: 48, 60: 128, 61: 128} {
		if v, has := GPM(before, after, metric); !has || v != want {
			t.Errorf("metric %d is %g MiB/s, %v; want %g", metric, v, has, want)
		}
	}

	s := state(t, n, 0)
	cmptest.Equal(t, "bytes over PCIe", s.PCIeBytes, 480<<20)
	cmptest.Equal(t, "bytes per second over PCIe", s.PCIeRate, 48<<20)
	cmptest.Equal(t, "bytes over NVLink", s.NVLinkBytes, 1280<<20)

	if s := state(t, n, 1); s.PCIeRate != idlePCIe || s.NVLinkBytes != 0 {
		t.Errorf("an idle GPU: PCIe %g bytes per second, NVLink %d bytes", s.PCIeRate, s.NVLinkBytes)
	}
}
