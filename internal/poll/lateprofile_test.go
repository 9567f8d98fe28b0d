package poll

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestLastCompleteAnswerStays: a profiler that was stopped for a moment reports nothing or a part
// when it goes on. Its last complete answer stays for as long as if it did not answer.
func TestLastCompleteAnswerStays(t *testing.T) {
	for _, lesser := range []reportingProfiler{{blank: true}, {without: uuidA}, {withoutInstances: true}} {
		n, stop := startFallback(t)
		for range 3 {
			n.pollSecond()
		}

		lesser.now = n.clock.Now

		*n.profiler = lesser
		for second := 1; second <= 2; second++ {
			a, _ := n.pollSecond()
			if got := findGPU(t, n.Current(), uuidA).Instances[0].Activity.SM; a != gpu.ActivityDCGM || got != gpu.Some(0.25) {
				t.Errorf("%+v, second %d: by %q, SM activity %v", lesser, second, a, got)
			}
		}

		n.pollSecond()

		if got := findGPU(t, n.Current(), uuidA).Instances[0].Activity.SM; got == gpu.Some(0.25) {
			t.Errorf("%+v: the answer stays for too long", lesser)
		}

		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

// TestLayoutChangeEndsTheLastAnswer: the last complete answer is of a layout that is gone. What the
// profiler has of the new one, such as the GPU's link rates, is served at once, not when the old
// answer is stale.
func TestLayoutChangeEndsTheLastAnswer(t *testing.T) {
	start := newClock().now
	tracked := newTrackedGPU(uuidA, start, &Options{StaleAfter: time.Minute})
	tracked.last = migGPU()
	tracked.last.MIG.LayoutGeneration = 1
	complete := gpu.Profiling{LayoutGeneration: 1, Time: start, Instances: map[gpu.InstanceID]gpu.Activity{
		1: {GraphicsEngine: gpu.Some(0.5)}, 2: {GraphicsEngine: gpu.Some(0.5)},
	}}
	tracked.recordProfiling(complete, true, start, start)
	cmptest.Equal(t, "complete before", tracked.profiling.complete, true)

	tracked.last.MIG.LayoutGeneration = 2
	rates := gpu.LinkRates{PCIeTransmit: gpu.Some(1e9)}
	later := start.Add(time.Second)
	tracked.recordProfiling(gpu.Profiling{LayoutGeneration: 2, Time: later, Rates: rates}, true, later, later)
	cmptest.Equal(t, "rates after", tracked.profiling.Rates, rates)
}

// TestPauseEndsTheLastAnswer: values from before a pause of profiling are not served in it.
func TestPauseEndsTheLastAnswer(t *testing.T) {
	n, stop := startFallback(t)
	defer stop()
	activity := func() gpu.Activity { return findGPU(t, n.Current(), uuidA).Instances[0].Activity }
	n.pollSecond()
	cmptest.Equal(t, "SM activity before", activity().SM, gpu.Some(0.25))

	*n.profiler = reportingProfiler{paused: true}
	n.pollSecond()
	cmptest.Equal(t, "activity while paused", activity(), gpu.Activity{})
}

// TestAnswerThatComesLate: a call that hung and then returned everything is one complete answer,
// not one for as long as it hung.
func TestAnswerThatComesLate(t *testing.T) {
	start := newClock().now
	tracked := newTrackedGPU(uuidA, start, &Options{StaleAfter: 3 * time.Second})
	answer := gpu.Profiling{Source: gpu.ActivityDCGM, Time: start, GPU: gpu.Activity{GraphicsEngine: gpu.Some(0.5)}}
	back := start.Add(30 * time.Second)
	tracked.recordProfiling(answer, true, start, back)

	cmptest.Equal(t, "complete since", tracked.completeSince, back)
	cmptest.Equal(t, "reported last", tracked.lastReported, start)
}
