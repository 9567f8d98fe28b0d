package poll

import (
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// TestLastCompleteAnswerStays: a profiler that was stopped for a moment reports nothing or a part when it goes on. Its
// last complete answer stays for as long as if it did not answer, and the driver is asked from then on.
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

// TestPauseEndsTheLastAnswer: values from before a pause of profiling are not served in it.
func TestPauseEndsTheLastAnswer(t *testing.T) {
	n, stop := startFallback(t)
	defer stop()
	n.pollSecond()
	*n.profiler = reportingProfiler{paused: true}
	n.pollSecond()
	got := findGPU(t, n.Current(), uuidA).Instances[0].Activity
	cmptest.Equal(t, "activity while paused", got, gpu.Activity{})
}

// TestAnswerThatComesLate: a call that hung and then returned everything is one complete answer, not one for as long as
// it hung.
func TestAnswerThatComesLate(t *testing.T) {
	asked := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	tracked := newTrackedGPU(uuidA, asked, &Options{StaleAfter: 3 * time.Second})
	answer := gpu.Profiling{Source: gpu.ActivityDCGM, Time: asked, GPU: gpu.Activity{GraphicsEngine: gpu.Some(0.5)}}
	back := asked.Add(30 * time.Second)
	tracked.recordProfiling(answer, true, asked, back)

	cmptest.Equal(t, "complete since", tracked.completeSince, back)
	cmptest.Equal(t, "reported last", tracked.lastReported, asked)
}
