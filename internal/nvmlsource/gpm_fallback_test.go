package nvmlsource_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
)

// TestGPMWhileItIsNeeded: a GPU is asked for activity while that is wanted of it, and of no other.
// What it is asked for later begins with a window of its own: none reaches over the time in
// between.
func TestGPMWhileItIsNeeded(t *testing.T) {
	n := startNode(t, gpmScenario)
	wanted := false
	n.source = nvmlsource.New(n.spy,
		nvmlsource.Options{Now: n.Now, Logger: log.NewNopLogger()})
	t.Cleanup(func() {
		if err := n.source.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	ids := n.discover()

	expect := func(when string, source gpu.ActivitySource, values bool) {
		t.Helper()
		n.advance(time.Second)
		n.cues.GPM = wanted
		g := n.read(ids[1])
		n.cues.GPM = false
		other := n.read(ids[0])
		cmptest.Equal(t, when+": source", g.ActivitySource, source)
		cmptest.Equal(t, when+": the GPU has activity", g.Activity.SM.Present(), values)
		cmptest.Equal(t, when+": the instance has activity", g.Instances[0].Activity.SM.Present(), values)
		cmptest.Equal(t, when+": errors", g.Errors, nil)

		if other.ActivitySource != gpu.ActivityUnknown || other.Activity != (gpu.Activity{}) {
			t.Errorf("%s: another GPU: %q, %+v", when, other.ActivitySource, other.Activity)
		}
	}
	for range 2 {
		expect("not wanted", gpu.ActivityUnknown, false)
		wanted = true
		expect("wanted, the first sample", gpu.ActivityGPM, false)
		expect("wanted", gpu.ActivityGPM, true)
		expect("wanted still", gpu.ActivityGPM, true)
		wanted = false
	}
}
