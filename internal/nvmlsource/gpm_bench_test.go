package nvmlsource_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/simnvml"
)

// profiledBench is the node of testdata/scenarios/h100-56.yaml, polled at 10 Hz.
type profiledBench struct {
	*sim.Node
	source *nvmlsource.Source
	took   time.Duration
	calls  uint64
}

func newProfiledBench(b *testing.B, gpm bool) *profiledBench {
	b.Helper()

	scenario, err := sim.Load("../../testdata/scenarios/h100-56.yaml")
	if err != nil {
		b.Fatal(err)
	}

	n, err := sim.New(scenario, sim.NewClock(sim.ClockStep))
	if err != nil {
		b.Fatal(err)
	}

	p := &profiledBench{Node: n,
		source: nvmlsource.New(simnvml.New(n), nvmlsource.Options{Now: n.Now, GPM: gpm, Logger: log.NewNopLogger()})}
	b.Cleanup(func() {
		if err := p.source.Close(b.Context()); err != nil && b.Context().Err() == nil {
			b.Error(err)
		}

		n.Close()
	})
	p.poll(b) // everything is asked for
	p.poll(b)
	p.took, p.calls = 0, p.source.DriverCalls()

	return p
}

// poll reads every GPU, a tenth of a second after the last time.
func (p *profiledBench) poll(b *testing.B) {
	b.Helper()

	if err := p.Advance(100 * time.Millisecond); err != nil {
		b.Fatal(err)
	}

	start := time.Now()

	inventory, err := p.source.Discover()
	if err != nil {
		b.Fatal(err)
	}

	for _, found := range inventory.GPUs {
		if _, err := p.source.Read(found.UUID); err != nil {
			b.Fatal(err)
		}
	}

	p.took += time.Since(start)
}

// BenchmarkGPM is what profiling adds to polls at 10 Hz of eight H100 in seven instances each: the
// difference between two nodes that are polled in turn, one with GPM and one without, as percent of
// one core.
func BenchmarkGPM(b *testing.B) {
	off := newProfiledBench(b, false)

	on := newProfiledBench(b, true)
	for b.Loop() {
		off.poll(b)
		on.poll(b)
	}

	polls := float64(b.N)
	core := func(took time.Duration) float64 { return 100 * took.Seconds() / polls / 0.1 }
	b.ReportMetric(core(off.took), "%core-off")
	b.ReportMetric(core(on.took), "%core-on")
	b.ReportMetric(core(on.took-off.took), "%core-gpm")
	b.ReportMetric(float64(on.source.DriverCalls()-on.calls)/polls, "calls-on/poll")
	b.ReportMetric(float64(off.source.DriverCalls()-off.calls)/polls, "calls-off/poll")
}

// TestGPMCalls holds the number in docs/performance.md: two calls for each GPU, GPU instance and
// compute instance, one to sample it and one for its metrics.
func TestGPMCalls(t *testing.T) {
	var calls [2]uint64

	for i, on := range []bool{false, true} {
		b := newBench(t, nil)
		b.source = nvmlsource.New(simnvml.New(b.Node),
			nvmlsource.Options{Now: b.Now, SlowEvery: slowTier, GPM: on, Logger: log.NewNopLogger()})
		t.Cleanup(func() { b.source.Close(t.Context()) })

		inventory, err := b.source.Discover()
		if err != nil {
			t.Fatal(err)
		}

		for range 3 {
			calls[i] = b.source.DriverCalls()
			if err := b.Advance(100 * time.Millisecond); err != nil {
				t.Fatal(err)
			}

			for _, found := range inventory.GPUs {
				if _, err := b.source.Read(found.UUID); err != nil {
					t.Fatal(err)
				}
			}

			calls[i] = b.source.DriverCalls() - calls[i]
		}
	}

	page, err := os.ReadFile(performancePage)
	if err != nil {
		t.Fatal(err)
	}

	if more, want := calls[1]-calls[0], 2*(8+56+56); more != uint64(want) ||
		!strings.Contains(string(page), fmt.Sprintf("GPM adds %d calls", want)) {
		t.Errorf("GPM adds %d calls to a poll; want %d, and %s to say so", more, want, performancePage)
	}
}
