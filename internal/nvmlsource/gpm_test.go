package nvmlsource_test

import (
	"testing"
	"time"

	"github.com/go-kit/log"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
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
	n.source = nvmlsource.New(n.spy, nvmlsource.Options{Now: n.Now, SlowEvery: 15 * time.Second, GPM: true,
		Logger: log.NewNopLogger()})
	t.Cleanup(func() {
		if err := n.source.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	})

	return n
}

// approx lets numbers differ by 1e-7.
func approx() cmp.Option { return cmpopts.EquateApprox(0, 1e-7) }

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
	whole := n.read(ids[0])
	split := n.read(ids[1])
	old := n.read(ids[2])
	cmptest.Equal(t, "source of a whole GPU", whole.ActivitySource, gpu.ActivityGPM)
	cmptest.Equal(t, "activity of a whole GPU", whole.Activity, gpu.Activity{
		GraphicsEngine: gpu.Some(1.0), SM: gpu.Some(0.5), SMOccupancy: gpu.Some(0.125), Tensor: gpu.Some(0.2),
		FP64: gpu.Some(0.01), FP32: gpu.Some(0.1), FP16: gpu.Some(0.05), DRAM: gpu.Some(0.25),
	}, approx())
	const mebi = 1 << 20
	cmptest.Equal(t, "traffic of a whole GPU", whole.Rates, gpu.LinkRates{
		PCIeReceive: gpu.Some(100.0 * mebi), PCIeTransmit: gpu.Some(100.0 * mebi), NVLinkReceive: gpu.Some(50.0 * mebi),
		NVLinkTransmit: gpu.Some(50.0 * mebi),
	}, approx())
	one := split.Instances[0]
	two := split.Instances[1]
	cmptest.Equal(t, "SM activity of a GPU instance", one.Activity.SM, gpu.Some(0.5), approx())
	cmptest.Equal(t, "DRAM activity of a GPU instance", one.Activity.DRAM, gpu.Some(0.1), approx())
	cmptest.Equal(t, "SM activity of its compute instance", one.ComputeInstances[0].Activity.SM, gpu.Some(0.5), approx())
	cmptest.Equal(t, "DRAM activity of its compute instance", one.ComputeInstances[0].Activity.DRAM, gpu.None[float64]())
	cmptest.Equal(t, "SM activity of two compute instances", two.Activity.SM, gpu.Some(10.0/60), approx())
	cmptest.Equal(t, "SM activity of the idle one", two.ComputeInstances[0].Activity.SM, gpu.Some(0.0), approx())
	cmptest.Equal(t, "SM activity of the other", two.ComputeInstances[1].Activity.SM, gpu.Some(10.0/40), approx())
	cmptest.Equal(t, "source of an A100", old.ActivitySource, gpu.ActivityUnknown)
	cmptest.Equal(t, "activity of an A100", old.Activity, gpu.Activity{})
	cmptest.Equal(t, "errors of an A100", old.Errors, nil)
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

// TestLayoutChangeBeginsNewWindows: nothing of the instances before is laid to those after,
// whatever their ids.
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

	n.AwaitHandled(t.Context()) // the event of it has been heard: it would begin new windows once more
	n.advance(time.Second)

	after := n.read(ids[1])
	for _, gi := range after.Instances {
		if gi.Activity != (gpu.Activity{}) {
			t.Errorf("instance %d right after a layout change: %+v", gi.ID, gi.Activity)
		}
	}

	n.advance(time.Second)
	after = n.read(ids[1])
	cmptest.Equal(t, "activity one poll later", after.Instances[0].Activity.SM, gpu.Some(0.5), approx())
	cmptest.Equal(t, "activity of the compute instance left", after.Instances[1].ComputeInstances[0].Activity.SM,
		gpu.Some(10.0/40), approx())
}

// TestProcessUse: how busy a process keeps the SMs is read for whole GPUs, if it is wanted.
func TestProcessUse(t *testing.T) {
	n := startNode(t, gpmScenario)
	if g := n.read(n.discover()[0]); g.Readings.Processes.Or(nil)[0].SM.Present() {
		t.Error("read although it is off")
	}

	n.source = nvmlsource.New(n.spy, nvmlsource.Options{Now: n.Now, ProcessUtilization: true, Logger: log.NewNopLogger()})
	t.Cleanup(func() { n.source.Close(t.Context()) })
	ids := n.discover()

	whole := n.read(ids[0]).Readings.Processes.Or(nil)
	if len(whole) != 1 {
		t.Fatalf("processes of a whole GPU: %+v", whole)
	}

	cmptest.Equal(t, "SM utilization of a process", whole[0].SM, gpu.Some(0.5), approx())

	split := n.read(ids[1])
	for _, p := range split.Readings.Processes.Or(nil) {
		if p.SM.Present() || len(split.Errors) > 0 {
			t.Errorf("under MIG: %+v, errors %v", p, split.Errors)
		}
	}
}
