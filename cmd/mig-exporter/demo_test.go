package main

import "testing"

// TestBuiltInScenario: --driver=sim needs no file, and the log says what is served and how to
// choose another node.
func TestBuiltInScenario(t *testing.T) {
	t.Parallel()
	p := launch(t, "--driver=sim", "--sim.clock=step")
	p.advance(0)

	if found := p.scrape().of("nvidia_mig_gpu_instance_info"); len(found) == 0 {
		t.Error("the built-in node has no GPU instances")
	}

	p.waitFor(`scenario="dgx-a100-mixed, which is built in; another one: --sim.scenario=FILE"`)
}
