package main

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestEnergyOverALostRight: while a process may not see GPU instances their energy counters do not
// start again.
func TestEnergyOverALostRight(t *testing.T) {
	scenario := write(t, "s.yaml", `version: 1
node: {hostname: n, driver: "580.95.05", kubernetes: false, privileged: true}
seed: 1
gpus: [{model: A100-40GB, mig: true, layout: ["3g.20gb@4", {gi: "1g.5gb@0", ci: []}]}]
faults: [{at: 10s, for: 30s, kind: no-permission}]
`)
	p := launch(t, "--driver=sim", "--sim.clock=step", "--sim.scenario="+scenario)
	energy := func() map[string]float64 {
		all := map[string]float64{}

		for line := range strings.Lines(string(p.get("/metrics").body)) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok &&
				strings.HasPrefix(name, "nvidia_mig_gpu_instance_energy") {
				all[name], _ = strconv.ParseFloat(value, 64)
			}
		}

		return all
	}

	for range 5 {
		p.advance(time.Second)
	}

	before := energy()
	if len(before) != 2 {
		t.Fatalf("energy of %v, want two instances", before)
	}

	for range 110 { // a right that was refused is tried once a minute
		p.advance(time.Second)
	}

	after := energy()
	for name, was := range before {
		if after[name] < was || was == 0 {
			t.Errorf("%s went from %v to %v", name, was, after[name])
		}
	}
}
