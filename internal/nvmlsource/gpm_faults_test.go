package nvmlsource_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim/simnvml"
)

// TestMetricsThatAreNoNumbers: what is no number or below nothing is dropped and counted, of each
// entity; what is above 1 passes; a metric that is not offered is absent and no error.
func TestMetricsThatAreNoNumbers(t *testing.T) {
	n := profiledNode(t, gpmScenario)
	n.spy.metrics = map[uint32]nvmlsource.GPMMetric{
		uint32(nvml.GPM_METRIC_SM_UTIL):                 {Value: math.NaN()},
		uint32(nvml.GPM_METRIC_SM_OCCUPANCY):            {Value: math.Inf(1)},
		uint32(nvml.GPM_METRIC_ANY_TENSOR_UTIL):         {Value: -0.1},
		uint32(nvml.GPM_METRIC_FP64_UTIL):               {Value: 250},
		uint32(nvml.GPM_METRIC_FP32_UTIL):               {Value: 3, Return: nvml.ERROR_NOT_SUPPORTED},
		uint32(nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC): {Value: math.Inf(-1)},
	}
	ids := n.discover()

	g := n.poll(ids[1])
	for _, a := range []gpu.Activity{g.Activity, g.Instances[0].Activity, g.Instances[1].ComputeInstances[0].Activity} {
		want := gpu.Activity{GraphicsEngine: a.GraphicsEngine, FP64: gpu.Some(2.5), FP16: a.FP16, DRAM: a.DRAM}
		cmptest.Equal(t, "activity", a, want, approx())
		cmptest.Equal(t, "there is activity of FP16", a.FP16.Present(), true)
	}

	cmptest.Equal(t, "dropped values", g.InvalidActivity, 3*6+1)
	cmptest.Equal(t, "rate of NVLink", g.Rates.NVLinkReceive, gpu.None[float64]())
	cmptest.Equal(t, "errors", g.Errors, nil)
	n.advance(time.Millisecond)

	if again := n.read(ids[1]); again.InvalidActivity != 0 {
		t.Errorf("counted again without a new window: %d", again.InvalidActivity)
	}
}

// TestGPMRefusals: each costs the entities that it is about, and their activity alone.
func TestGPMRefusals(t *testing.T) {
	for _, c := range []struct {
		call                   string
		ret                    nvml.Return
		gpu, instance, compute bool // which entities have activity
		errs                   int  // on instance and compute instance
	}{
		{"GpmMigSampleGet", nvml.ERROR_NO_PERMISSION, true, false, true, 1},
		{"GpmMigSampleGet", nvml.ERROR_NOT_FOUND, true, false, true, 1},
		{"MIG.GpmSampleGet", nvml.ERROR_INVALID_ARGUMENT, true, true, false, 1},
		{"MIG.GpmSampleGet", nvml.ERROR_NOT_SUPPORTED, true, true, false, 0},
		{"GpmSampleGet", nvml.ERROR_UNKNOWN, false, true, true, 0},
		{"GpmSampleAlloc", nvml.ERROR_MEMORY, false, false, false, 2},
		{"GpmMetricsGet", nvml.ERROR_UNKNOWN, false, false, false, 2},
	} {
		n := profiledNode(t, gpmScenario)
		n.spy.set(c.call, c.ret)
		g := n.poll(n.discover()[1])
		gi := g.Instances[0]
		ci := gi.ComputeInstances[0]
		refused := fmt.Sprintf("%s returns %d: ", c.call, c.ret)
		cmptest.Equal(t, refused+"the GPU has activity", g.Activity.SM.Present(), c.gpu)
		cmptest.Equal(t, refused+"the GPU instance has activity", gi.Activity.SM.Present(), c.instance)
		cmptest.Equal(t, refused+"the compute instance has activity", ci.Activity.SM.Present(), c.compute)

		if got := len(gi.Errors) + len(ci.Errors); got != c.errs || (len(g.Errors) > 0) == c.gpu {
			t.Errorf("%s %d: errors %v, %v, %v", c.call, c.ret, g.Errors, gi.Errors, ci.Errors)
		}

		n.spy.set(c.call, nvml.SUCCESS)
		n.advance(time.Minute)

		if c.ret != nvml.ERROR_NOT_SUPPORTED {
			if back := n.poll(n.discover()[1]).Instances[0]; !back.Activity.SM.Present() ||
				!back.ComputeInstances[0].Activity.SM.Present() {
				t.Errorf("%s %d, and well again: %+v", c.call, c.ret, back)
			}
		}
	}
}

// TestDeniedInstancesAreToldOnce: that a right is lacking is a line in the log, not one of every
// poll.
func TestDeniedInstancesAreToldOnce(t *testing.T) {
	n := startNode(t, gpmScenario)
	n.source = nvmlsource.New(n.spy,
		nvmlsource.Options{Now: n.Now, GPM: true, Logger: log.NewLogfmtLogger(log.NewSyncWriter(n.logged))})
	t.Cleanup(func() { n.source.Close(t.Context()) })
	n.spy.set("GpmMigSampleGet", nvml.ERROR_NO_PERMISSION)

	id := n.discover()[1]
	for range 40 {
		n.poll(id)
	}

	if said := strings.Count(n.logged.String(), "activity"); said != 1 {
		t.Errorf("said %d times:\n%s", said, n.logged)
	}
}

// TestLibraryWithoutGPM: if the function is missing, nothing of GPM is called again, nor anything
// else of it at all.
func TestLibraryWithoutGPM(t *testing.T) {
	n := profiledNode(t, gpmScenario)
	n.spy.set("GpmQueryDeviceSupport", nvml.ERROR_FUNCTION_NOT_FOUND)
	id := n.discover()[1]
	n.poll(id)
	g := n.poll(id)

	taken := n.spy.taken()
	if taken["GpmQueryDeviceSupport"] != 1 ||
		taken["GpmSampleAlloc"]+taken["GpmSampleGet"]+taken["GpmMigSampleGet"]+taken["MIG.GpmSampleGet"] > 0 {
		t.Errorf("calls %v", taken)
	}

	if g.ActivitySource != gpu.ActivityUnknown || len(g.Errors) > 0 {
		t.Errorf("source %q, errors %v", g.ActivitySource, g.Errors)
	}
}

// TestSamplesOfLostGPUs: a GPU that is lost and found again needs no samples beyond those that it
// had.
func TestSamplesOfLostGPUs(t *testing.T) {
	n := profiledNode(t, gpmScenario)
	ids := n.discover()
	n.poll(ids[1])

	made := n.spy.taken()["GpmSampleAlloc"]
	for range 20 {
		n.spy.set("GetMemoryInfo", nvml.ERROR_GPU_IS_LOST)
		n.advance(time.Second)

		if _, err := n.source.Read(ids[1]); !errors.Is(err, gpu.ErrLost) {
			t.Fatal(err)
		}

		n.spy.set("GetMemoryInfo", nvml.SUCCESS)
		n.discover()

		if g := n.poll(ids[1]); !g.Instances[0].Activity.SM.Present() {
			t.Fatalf("found again: %+v", g.Instances[0])
		}
	}

	if more := n.spy.taken()["GpmSampleAlloc"]; more > 0 {
		t.Errorf("%d samples, then %d more", made, more)
	}

	must(t, n.source.Close(t.Context()))

	if taken := n.spy.taken(); taken["GpmSampleFree"] != made || taken["Shutdown"] != 1 {
		t.Errorf("%d samples made; at the end %v", made, taken)
	}
}

// A GPU allocates the samples that it needs, whichever other GPU has put its own back before: which
// of two that are read at the same time comes first must not show in the calls of the driver.
func TestSamplesAreOfOneGPU(t *testing.T) {
	n := profiledNode(t, gpmScenario)
	ids := n.discover()
	n.poll(ids[0])
	n.spy.taken()
	n.poll(ids[1])
	alone := n.spy.taken()["GpmSampleAlloc"]

	n = profiledNode(t, gpmScenario)
	ids = n.discover()
	n.poll(ids[0])
	n.spy.set("GetMemoryInfo", nvml.ERROR_GPU_IS_LOST)

	if _, err := n.source.Read(ids[0]); !errors.Is(err, gpu.ErrLost) {
		t.Fatal(err)
	}

	n.spy.set("GetMemoryInfo", nvml.SUCCESS)
	n.discover() // puts the samples of the lost GPU back
	n.spy.taken()
	n.poll(ids[1])

	cmptest.Equal(t, "samples allocated beside a GPU that has spare ones", n.spy.taken()["GpmSampleAlloc"], alone)
}

// TestNoSampleIsFreedUnderACall: where sampling hangs, Close leaves the samples and NVML as they
// are.
func TestNoSampleIsFreedUnderACall(t *testing.T) {
	n := profiledNode(t, gpmScenario)
	ids := n.discover()
	n.poll(ids[0])
	hangs := make(chan struct{})
	returns := make(chan struct{})
	done := make(chan struct{})
	n.spy.do("GpmSampleGet", func() {
		close(hangs)
		<-returns
	})
	n.advance(time.Second)
	go func() {
		defer close(done)
		n.source.Read(ids[0])
	}()
	<-hangs

	if g := n.poll(ids[1]); !g.Instances[0].Activity.SM.Present() {
		t.Errorf("another GPU meanwhile: %+v", g.Instances[0])
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n.spy.taken()

	if err := n.source.Close(ctx); !errors.Is(err, gpu.ErrTimeout) {
		t.Errorf("close: %v", err)
	}

	if taken := n.spy.taken(); taken["GpmSampleFree"] > 0 || taken["Shutdown"] > 0 {
		t.Errorf("under the call: %v", taken)
	}

	close(returns)
	<-done
}

// TestModeChangeAsksAnew: with MIG switched off, windows start again and are of the whole GPU
// alone.
func TestModeChangeAsksAnew(t *testing.T) {
	n := profiledNode(t,
		"version: 1\nnode: {kubernetes: false}\ngpus:\n  - {model: H100-80GB, mig: true, layout: [\"4g.40gb@0\"]}\n")
	id := n.discover()[0]
	n.poll(id)
	i := n.read(id).Instances[0]
	must(t, n.DestroyComputeInstance(0, i.ID, i.ComputeInstances[0].ID))
	must(t, n.DestroyGPUInstance(0, i.ID))
	must(t, n.SetMIGMode(0, false))
	n.AwaitHandled(t.Context()) // the events have been heard: they would begin new windows once more
	n.spy.taken()
	n.advance(time.Second)

	if g := n.read(id); g.Activity != (gpu.Activity{}) || n.spy.taken()["GpmQueryDeviceSupport"] != 1 {
		t.Errorf("right after the change: %+v", g.Activity)
	}

	n.advance(time.Second)

	if g := n.read(id); !g.Activity.SM.Present() || n.spy.taken()["GpmMigSampleGet"] > 0 {
		t.Errorf("one poll later: %+v", g.Activity)
	}
}

// TestPollsByGPMAllocateNothingMore: after the first windows, a poll with activity allocates what
// one without does.
func TestPollsByGPMAllocateNothingMore(t *testing.T) {
	var allocs [2]float64

	for i, on := range []bool{false, true} {
		n := startNode(t, gpmScenario)
		n.source = nvmlsource.New(simnvml.New(n.Node),
			nvmlsource.Options{Now: n.Now, SlowEvery: time.Hour, GPM: on, Logger: log.NewNopLogger()})
		t.Cleanup(func() { n.source.Close(t.Context()) })

		id := n.discover()[1]
		for range 3 {
			n.poll(id)
		}

		allocs[i] = testing.AllocsPerRun(200, func() {
			n.advance(time.Second)
			n.read(id)
		})
	}

	const noise = 5 // of the simulation and the runtime; an allocation for each of the six windows would be more
	if allocs[1] > allocs[0]+noise {
		t.Errorf("%g allocations without GPM, %g with", allocs[0], allocs[1])
	}
}

// TestInstanceWithoutComputeInstance: the driver has no profiling counters of it. It is not asked
// for, so that nothing fails in each poll, and its activity is absent, not 0, until it gets a
// compute instance.
func TestInstanceWithoutComputeInstance(t *testing.T) {
	n := profiledNode(t, `
version: 1
node: {kubernetes: false}
gpus: [{model: H100-80GB, mig: true, layout: ["4g.40gb@0", {gi: "3g.40gb@4", ci: []}]}]
`)
	id := n.discover()[0]
	wantOrphan := func(when string, activity gpu.Activity) gpu.GPU {
		t.Helper()
		n.advance(time.Second)
		n.spy.taken()
		g := n.read(id)
		cmptest.Equal(t, when+": errors of the GPU", g.Errors, nil)

		for _, gi := range g.Instances {
			cmptest.Equal(t, when+": errors of "+gi.Profile, gi.Errors, nil)
			cmptest.Equal(t, when+": "+gi.Profile+" is up", gi.Up, true)
		}

		cmptest.Equal(t, when+": activity of the empty instance", g.Instances[1].Activity, activity)

		return g
	}

	n.read(id)
	g := wantOrphan("empty", gpu.Activity{})

	if sampled := n.spy.taken()["GpmMigSampleGet"]; sampled != 1 {
		t.Errorf("%d samples of GPU instances, want that of the one with a compute instance", sampled)
	}

	if g.Instances[0].Activity.SM != gpu.Some(0.0) {
		t.Errorf("the other has activity %v", g.Instances[0].Activity.SM)
	}

	created, err := n.CreateComputeInstance(0, g.Instances[1].ID, 3)
	if err != nil {
		t.Fatal(err)
	}

	for range 3 { // the change ends the windows, and again when the driver reports it
		n.advance(time.Second)
		g = n.read(id)
	}

	if got := g.Instances[1].Activity.SM; got != gpu.Some(0.0) {
		t.Errorf("after it got a compute instance: activity %v", got)
	}

	if err := n.DestroyComputeInstance(0, g.Instances[1].ID, created); err != nil {
		t.Fatal(err)
	}

	n.advance(time.Second)
	n.read(id)
	wantOrphan("empty again", gpu.Activity{})
}
