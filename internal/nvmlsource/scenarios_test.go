package nvmlsource_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Every shipped scenario is read without an error while nothing is wrong, and every GPU tells what all of them have.
func TestShippedScenarios(t *testing.T) {
	paths, err := filepath.Glob("../../testdata/scenarios/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, path := range paths {
		if filepath.Base(path) == "chaos.yaml" {
			continue // everything is wrong there
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			scenario, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			n := startNode(t, string(scenario))
			for range 3 {
				for i, id := range n.discover() {
					g := n.read(id)
					r := g.Readings
					if g.Index != i || len(g.Errors) != 0 || !r.Memory.Used.Present() || !r.PowerWatts.Present() || !r.Processes.Present() {
						t.Errorf("GPU %d: errors %v, readings %+v", i, g.Errors, r)
					}
					if r.Utilization.Present() == g.MIG.Enabled.Or(false) {
						t.Errorf("GPU %d: utilization %v with MIG %v", i, r.Utilization, g.MIG.Enabled)
					}
					checkInstances(t, &g)
				}
				n.advance(20 * time.Second)
			}
		})
	}
}

func checkInstances(t *testing.T, g *gpu.GPU) {
	t.Helper()
	processes := 0
	end := 0
	for _, gi := range g.Instances {
		at, ok := gi.Placement.Get()
		if !gi.Up || gi.Profile == "" || !gi.SMs.Present() || !ok || at.Start < end || gi.Memory.Used.Present() != (len(gi.ComputeInstances) > 0) {
			t.Errorf("%s: GPU instance %+v", g.UUID, gi)
		}
		end = at.End()
		processes += gi.Processes.Or(0)
		for _, ci := range gi.ComputeInstances {
			if !ci.Up || ci.Profile == "" || !ci.SMs.Present() || !ci.Placement.Present() || ci.UUID == "" {
				t.Errorf("%s: compute instance %+v", g.UUID, ci)
			}
		}
	}
	if list := g.Readings.Processes.Or(nil); len(g.Instances) > 0 && processes != len(list) {
		t.Errorf("%s: %d processes of instances, %d of the GPU", g.UUID, processes, len(list))
	}
}
