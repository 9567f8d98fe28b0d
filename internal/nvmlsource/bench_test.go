package nvmlsource_test

import (
	"testing"

	"github.com/go-kit/log"

	"github.com/mig-exporter/mig-exporter/internal/nvmlsource"
	"github.com/mig-exporter/mig-exporter/internal/sim"
	"github.com/mig-exporter/mig-exporter/internal/sim/simnvml"
)

// BenchmarkRead reads a GPU between two slow tiers; the simulated node's own work is part of it.
func BenchmarkRead(b *testing.B) {
	scenario, err := sim.Load("../../testdata/scenarios/dgx-a100-mixed.yaml")
	if err != nil {
		b.Fatal(err)
	}

	n, err := sim.New(scenario, sim.NewClock(sim.ClockStep))
	if err != nil {
		b.Fatal(err)
	}
	defer n.Close()
	s := nvmlsource.New(simnvml.New(n), nvmlsource.Options{Now: n.Now, Logger: log.NewNopLogger()})
	defer s.Close(b.Context())

	inventory, err := s.Discover()
	if err != nil {
		b.Fatal(err)
	}

	for _, c := range []struct {
		name  string
		index int
	}{{"whole", 0}, {"seven instances", 3}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()

			for b.Loop() {
				if _, err := s.Read(inventory.GPUs[c.index].UUID); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
