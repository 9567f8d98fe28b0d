package main

import "testing"

// TestSimulatedClockIsMarked: a clock that is not this machine's has a metric, and another clock
// has none.
func TestSimulatedClockIsMarked(t *testing.T) {
	for clock, want := range map[string]float64{"real": -1, "step": 1, "x60": 1} {
		p := launch(t, "--driver=sim", "--sim.clock="+clock)
		p.scrape().expect(t, clock, want, "mig_exporter_simulated_clock")
	}
}
