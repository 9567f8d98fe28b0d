package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// The simulated driver and the geometry that capacity and plans come from are written apart. On
// every model, whatever was created and destroyed before, they agree on where one more instance
// fits and on how many fit.
func TestDriverAndGeometryAgree(t *testing.T) {
	for _, b := range gpuModels() {
		t.Run(b.key, func(t *testing.T) {
			n := start(t, "version: 1\ngpus: [{model: \""+b.key+"\", mig: true}]\n")
			random := rand.New(rand.NewPCG(8, 1))

			for range 200 {
				s := state(t, n, 0)
				if len(s.Instances) > 0 && random.IntN(3) == 0 {
					if err := n.DestroyGPUInstance(0, s.Instances[random.IntN(len(s.Instances))].ID); err != nil {
						t.Fatal(err)
					}

					continue
				}

				var placed []mig.Placed
				for _, i := range s.Instances {
					placed = append(placed, mig.Placed{ProfileID: i.Profile.ID, Profile: i.Profile.Name, Placement: i.Placement})
				}

				k := random.IntN(len(s.Profiles))

				f := s.Profiles[k]
				if count, err := n.Remaining(0, f.ID); err != nil ||
					count != mig.CapacityOf(s.Profiles, placed).Profiles[k].Available {
					t.Fatalf("%s beside %+v: %d more, %v; capacity %+v", f.Name, placed, count, err,
						mig.CapacityOf(s.Profiles, placed).Profiles[k])
				}

				p := f.Placements[random.IntN(len(f.Placements))]

				fits := slices.Contains(mig.FreePlacements(s.Profiles, placed, f), p)
				if _, err := n.CreateGPUInstance(0, f.ID, gpu.Some(p.Start)); fits != (err == nil) {
					t.Fatalf("%s@%s beside %+v: %v; by the geometry it fits: %v", f.Name, p, placed, err, fits)
				}
			}
		})
	}
}

// A plan for one instance on an empty GPU has it where the driver puts it, if the driver's order is
// known.
func TestDriverAndPlansPreferTheSamePlacement(t *testing.T) {
	for _, b := range gpuModels() {
		document := "version: 1\ngpus: [{model: \"" + b.key + "\", mig: true}]\n"

		model := start(t, document).gpus[0].mig
		for _, f := range model.Profiles {
			known := model.AxisUnits == 8 && (f.ComputeSlices > 1 || f.MemorySlices == 1)
			if !known {
				continue
			}

			n := start(t, document)

			placements, err := create(t, n, f.ID)
			if err != nil {
				t.Fatal(err)
			}

			empty := mig.GPULayout{Facts: gpu.Facts{UUID: "GPU-0", Profiles: model.Profiles}, MIG: gpu.Some(true),
				Pending: gpu.Some(true)}
			rule := mig.Rule{GPUs: []string{"0"}, Enabled: true, Want: []mig.Want{{Profile: fmt.Sprint(f.ID), Count: 1}}}

			plan, err := mig.PlanNode(t.Context(), []mig.GPULayout{empty}, mig.Spec{Rules: []mig.Rule{rule}})
			if err != nil || plan.Steps[0].Placement.String() != placements[0] {
				t.Errorf("%s %s: %+v, %v; the driver has it at %s", b.key, f.Name, plan.Steps, err, placements[0])
			}
		}
	}
}
