package nvmlsource_test

import (
	"math"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

const gpmScenario = `
version: 1
node: {kubernetes: false}
gpus:
  - {model: H100-80GB}
  - {model: H100-80GB, mig: true, layout: ["4g.40gb@0", {gi: "3g.40gb@4", ci: ["1c", "2c"]}]}
  - {model: A100-40GB}
workloads:
  - {name: half, memory: 1GiB, sm: 66, dram: 0.5, tensor: 0.4, fp64: 0.02, fp16: 0.1, occupancy: 0.25, pcie: 100MiB, nvlink: 50MiB}
  - {name: slice, memory: 1GiB, sm: 32, dram: 0.2}
  - {name: part, memory: 1GiB, sm: 10}
processes:
  - {device: 0, workload: half}
  - {device: 1/4g.40gb@0, workload: slice}
  - {device: 1/3g.40gb@4/1, workload: part}
  - {device: 2, workload: half}
`

// profiledNode is a node whose GPUs are asked by GPM.
func profiledNode(t *testing.T, scenario string) *node {
	n := startNode(t, scenario)
	n.source = nvmlsource.New(n.spy, nvmlsource.Options{Now: n.Now, SlowEvery: 15 * time.Second, GPM: true, Logger: log.NewNopLogger()})
	t.Cleanup(func() {
		if err := n.source.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})
	return n
}

func about(got gpu.Opt[float64], want float64) bool {
	v, ok := got.Get()
	return ok && math.Abs(v-want) < 1e-7
}

func TestActivityByGPM(t *testing.T) {
	n := profiledNode(t, gpmScenario)
	ids := n.discover()
	for _, id := range ids {
		g := n.read(id)
		if g.Activity != (gpu.Activity{}) || len(g.Errors) > 0 {
			t.Errorf("GPU %d before a window has passed: %+v, errors %v", g.Index, g.Activity, g.Errors)
		}
	}
	n.advance(time.Second)
	whole, cut, old := n.read(ids[0]), n.read(ids[1]), n.read(ids[2])
	a := whole.Activity
	if whole.ActivitySource != gpu.ActivityGPM || !about(a.GraphicsEngine, 0.75) || !about(a.SM, 0.5) || !about(a.SMOccupancy, 0.125) ||
		!about(a.Tensor, 0.2) || !about(a.FP64, 0.01) || !about(a.FP32, 0.1) || !about(a.FP16, 0.05) || !about(a.DRAM, 0.25) {
		t.Errorf("a whole GPU: source %q, %+v", whole.ActivitySource, a)
	}
	if r := whole.Rates; !about(r.PCIeReceive, 100<<20) || !about(r.PCIeTransmit, 100<<20) || !about(r.NVLinkReceive, 50<<20) || !about(r.NVLinkTransmit, 50<<20) {
		t.Errorf("traffic %+v", r)
	}
	if got := cut.Instances[0].Activity; !about(got.SM, 0.5) || !about(got.DRAM, 0.1) {
		t.Errorf("a GPU instance: %+v", got)
	}
	if got := cut.Instances[0].ComputeInstances[0].Activity; !about(got.SM, 0.5) || got.DRAM.Present() {
		t.Errorf("its compute instance, which has no memory of its own: %+v", got)
	}
	if got := cut.Instances[1]; !about(got.Activity.SM, 10.0/60) || !about(got.ComputeInstances[0].Activity.SM, 0) || !about(got.ComputeInstances[1].Activity.SM, 10.0/40) {
		t.Errorf("two compute instances: %+v in %+v", got.ComputeInstances, got.Activity)
	}
	if old.ActivitySource != gpu.ActivityUnknown || old.Activity != (gpu.Activity{}) || len(old.Errors) > 0 {
		t.Errorf("an A100: source %q, %+v, errors %v; want nothing", old.ActivitySource, old.Activity, old.Errors)
	}
}

// TestShortWindowsAreWaitedOut: a poll too soon after the last one keeps what that said.
func TestShortWindowsAreWaitedOut(t *testing.T) {
	n := profiledNode(t, gpmScenario)
	ids := n.discover()
	n.read(ids[1])
	n.advance(time.Second)
	first := n.read(ids[1])
	calls := n.source.DriverCalls()
	n.advance(99 * time.Millisecond)
	again := n.read(ids[1])
	if again.Instances[0].Activity != first.Instances[0].Activity || !again.Instances[0].Activity.SM.Present() {
		t.Errorf("after 99 ms: %+v, before %+v", again.Instances[0].Activity, first.Instances[0].Activity)
	}
	short := n.source.DriverCalls() - calls
	n.advance(time.Millisecond)
	n.read(ids[1])
	if long := n.source.DriverCalls() - calls - short; long <= short {
		t.Errorf("%d calls after 100 ms, %d after 99 ms: no sample was taken", long, short)
	}
}

// TestLayoutChangeBeginsNewWindows: nothing of the instances before is laid to those after, whatever their ids.
func TestLayoutChangeBeginsNewWindows(t *testing.T) {
	n := profiledNode(t, gpmScenario)
	ids := n.discover()
	n.read(ids[1])
	n.advance(time.Second)
	before := n.read(ids[1])
	free := before.Instances[1]
	for _, c := range free.ComputeInstances {
		if c.Processes.Or(0) == 0 {
			if err := n.DestroyComputeInstance(1, free.ID, c.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.Settle(t.Context()) // the event of it has been heard: it would begin new windows once more
	n.advance(time.Second)
	after := n.read(ids[1])
	for _, gi := range after.Instances {
		if gi.Activity != (gpu.Activity{}) {
			t.Errorf("instance %d right after a layout change: %+v", gi.ID, gi.Activity)
		}
	}
	n.advance(time.Second)
	if after = n.read(ids[1]); !about(after.Instances[0].Activity.SM, 0.5) || !about(after.Instances[1].ComputeInstances[0].Activity.SM, 10.0/40) {
		t.Errorf("one poll later: %+v, %+v", after.Instances[0].Activity, after.Instances[1].ComputeInstances)
	}
}

// TestProcessUse: how busy a process keeps the SMs is told of whole GPUs, to who wants it.
func TestProcessUse(t *testing.T) {
	n := startNode(t, gpmScenario)
	if g := n.read(n.discover()[0]); g.Readings.Processes.Or(nil)[0].SM.Present() {
		t.Error("read although it is off")
	}
	n.source = nvmlsource.New(n.spy, nvmlsource.Options{Now: n.Now, ProcessUtilization: true, Logger: log.NewNopLogger()})
	t.Cleanup(func() { n.source.Close(t.Context()) })
	ids := n.discover()
	if whole := n.read(ids[0]).Readings.Processes.Or(nil); len(whole) != 1 || !about(whole[0].SM, 0.5) {
		t.Errorf("a whole GPU: %+v", whole)
	}
	cut := n.read(ids[1])
	for _, p := range cut.Readings.Processes.Or(nil) {
		if p.SM.Present() || len(cut.Errors) > 0 {
			t.Errorf("under MIG: %+v, errors %v", p, cut.Errors)
		}
	}
}
