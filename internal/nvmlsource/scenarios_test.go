package nvmlsource_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// Every shipped scenario is read without an error while nothing is wrong, and every GPU reports
// what all of them have.
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
					cmptest.Equal(t, "index", g.Index, i)
					cmptest.Equal(t, "errors", g.Errors, nil)
					cmptest.Equal(t, "there is memory in use", r.Memory.Used.Present(), true)
					withoutPower := g.Name == "NVIDIA B200" && g.MIG.Enabled.Or(false)
					cmptest.Equal(t, "there is power", r.PowerWatts.Present(), !withoutPower)
					cmptest.Equal(t, "there are processes", r.Processes.Present(), true)

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
		cmptest.Equal(t, "the GPU instance is up", gi.Up, true)
		cmptest.Equal(t, "it has SMs", gi.SMs.Present(), true)
		cmptest.Equal(t, "its memory in use is known", gi.Memory.Used.Present(), len(gi.ComputeInstances) > 0)

		if gi.Profile == "" {
			t.Errorf("%s: GPU instance %+v has no profile", g.UUID, gi)
		}

		if !ok || at.Start < end {
			t.Errorf("%s: GPU instance at %v, want it from slice %d on", g.UUID, gi.Placement, end)
		}

		end = at.End()

		processes += gi.Processes.Or(0)
		for _, ci := range gi.ComputeInstances {
			cmptest.Equal(t, "the compute instance is up", ci.Up, true)
			cmptest.Equal(t, "it has SMs", ci.SMs.Present(), true)
			cmptest.Equal(t, "it has a placement", ci.Placement.Present(), true)

			if ci.Profile == "" || ci.UUID == "" {
				t.Errorf("%s: compute instance %+v has no profile or no UUID", g.UUID, ci)
			}
		}
	}

	if list := g.Readings.Processes.Or(nil); len(g.Instances) > 0 && processes != len(list) {
		t.Errorf("%s: %d processes of instances, %d of the GPU", g.UUID, processes, len(list))
	}
}
