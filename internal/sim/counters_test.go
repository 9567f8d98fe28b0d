package sim

import (
	"errors"
	"math"
	"testing"
	"time"

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
	whole := over(t, n, 1500*time.Millisecond, func() (Counters, error) { return n.BoardCounters(0) })
	want := Activity{Graphics: 0.75, SM: 0.5, Occupancy: 0.125, Tensor: 0.2, FP32: 0.1, FP16: 0.05, DRAM: 0.25}
	if d := whole.plus(want, -1); !near(d.Graphics, 0) || !near(d.SM, 0) || !near(d.Occupancy, 0) || !near(d.Tensor, 0) ||
		!near(d.FP32, 0) || !near(d.FP16, 0) || !near(d.FP64, 0) || !near(d.DRAM, 0) {
		t.Errorf("a whole GPU %+v, want %+v", whole, want)
	}
	id := state(t, n, 1).Instances[0].ID
	slice := over(t, n, 300*time.Millisecond, func() (Counters, error) { return n.InstanceCounters(1, id) })
	if !near(slice.SM, 0.5) || !near(slice.DRAM, 0.1) {
		t.Errorf("a GPU instance of 64 SMs with 32 at work %+v", slice)
	}
	compute := over(t, n, 300*time.Millisecond, func() (Counters, error) { return n.ComputeCounters(1, id, 0) })
	if !near(compute.SM, 0.5) || compute.DRAM != 0 {
		t.Errorf("its compute instance %+v; want no memory activity", compute)
	}
	board := over(t, n, 2*time.Second, func() (Counters, error) { return n.BoardCounters(1) })
	if !near(board.SM, 32.0/132) {
		t.Errorf("the board %+v", board)
	}
	if _, err := n.InstanceCounters(1, 13); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("an instance that is not there: %v", err)
	}
	if _, err := n.ComputeCounters(1, id, 3); !errors.Is(err, gpu.ErrNotFound) {
		t.Errorf("a compute instance that is not there: %v", err)
	}
}

// TestCountersOfANewInstanceBeginAtZero: a window over a re-cut makes no sense, as on a real GPU.
func TestCountersOfANewInstanceBeginAtZero(t *testing.T) {
	n := start(t, countersScenario)
	advance(t, n, 10*time.Second)
	id := state(t, n, 1).Instances[1].ID
	for _, undo := range []error{n.DestroyComputeInstance(1, id, 0), n.DestroyGPUInstance(1, id)} {
		if undo != nil {
			t.Fatal(undo)
		}
	}
	made, err := n.CreateGPUInstance(1, 5, gpu.Some(4))
	if err == nil {
		t.Fatalf("made %d where no 4g fits", made)
	}
	busy := state(t, n, 1).Instances[0].ID
	if c, err := n.InstanceCounters(1, busy); err != nil || !near(c.Activity.SM, 5) {
		t.Errorf("after an operation that failed the counters are %+v, %v; want 10 s at 0.5", c, err)
	}
	advance(t, n, 2*time.Second)
	if c, err := n.InstanceCounters(1, busy); err != nil || !near(c.Activity.SM, 6) {
		t.Errorf("counters %+v, %v; want 12 s at 0.5", c, err)
	}
	made, err = n.CreateGPUInstance(1, 19, gpu.None[int]())
	if err != nil {
		t.Fatal(err)
	}
	if c, err := n.InstanceCounters(1, made); err != nil || c.Activity != (Activity{}) {
		t.Errorf("a new instance has counted %+v, %v", c, err)
	}
}
