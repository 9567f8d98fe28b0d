package mig

import (
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// eachLayout calls visit with every set of instances of the profiles from an index on, added to
// those that are placed.
func eachLayout(profiles []gpu.Profile, placed []Placed, from int, visit func([]Placed)) {
	visit(placed)

	for i, p := range profiles[from:] {
		for _, at := range FreePlacements(profiles, placed, p) {
			// Instances of one profile are added from left to right, so that no set comes twice.
			if last := len(placed) - 1; last >= 0 && placed[last].Profile == p.Name &&
				placed[last].Placement.Start >= at.Start {
				continue
			}

			instance := Placed{ProfileID: p.ID, Profile: p.Name, Placement: at}
			eachLayout(profiles, append(slices.Clone(placed), instance), from+i, visit)
		}
	}
}

func namesOf(placed []Placed) string {
	var names []string
	for _, p := range placed {
		names = append(names, p.Profile)
	}

	return strings.Join(names, " ")
}

// wastedBy returns what the alert MigSlicesStranded computes from the metrics of a GPU: compute slices
// that are stranded by where the instances are, not by which they are.
func wastedBy(c gpu.Capacity) int {
	unusedCompute := c.Compute.Free + c.Compute.Stranded
	unusedMemory := c.Memory.Free + c.Memory.Stranded

	return c.Compute.Stranded - max(0, unusedCompute-unusedMemory)
}

// withoutMedia returns the profiles that may have a place of their own: those that differ by their
// media engines alone have the same.
func withoutMedia(m Model) []gpu.Profile {
	return slices.DeleteFunc(slices.Clone(m.Profiles), func(p gpu.Profile) bool {
		return strings.ContainsAny(p.Name, "+-")
	})
}

// TestStrandedByPlacement: for every layout of every model, wastedBy is the difference to the best
// placement of the same instances.
func TestStrandedByPlacement(t *testing.T) {
	for _, m := range modelsWithPlacements(t) {
		plain := withoutMedia(m)
		best := map[string]int{}
		eachLayout(plain, nil, 0, func(placed []Placed) {
			stranded := CapacityOf(m.Profiles, placed).Compute.Stranded
			name := namesOf(placed)

			least, known := best[name]
			if !known {
				least = stranded
			}

			best[name] = min(least, stranded)
		})

		wasteful := 0
		eachLayout(plain, nil, 0, func(placed []Placed) {
			c := CapacityOf(m.Profiles, placed)

			wasted := wastedBy(c)
			if want := c.Compute.Stranded - best[namesOf(placed)]; wasted != want {
				t.Errorf("%s, %v: %d compute slices wasted, want %d", m.Name, placed, wasted, want)
			}

			if wasted > 0 {
				wasteful++
			}
		})

		if m.ComputeSlices == 7 && wasteful == 0 {
			t.Errorf("%s: no placement wastes slices", m.Name)
		}
	}
}

// TestPlansWasteNothing: no layout that a plan makes on an empty GPU has the alert
// MigSlicesStranded, whose remedy is a plan.
func TestPlansWasteNothing(t *testing.T) {
	for _, m := range modelsWithPlacements(t) {
		planned := map[string]bool{}
		eachLayout(withoutMedia(m), nil, 0, func(placed []Placed) {
			name := namesOf(placed)
			if len(placed) == 0 || planned[name] {
				return
			}

			planned[name] = true

			after := planOnEmptyGPU(t, m, strings.Fields(name))
			if n := wastedBy(CapacityOf(m.Profiles, after)); n > 0 {
				t.Errorf("%s, %s: the plan places them at %v and wastes %d compute slices", m.Name, name, after, n)
			}
		})
	}
}

// planOnEmptyGPU returns where a plan places instances of these profiles on an empty GPU.
func planOnEmptyGPU(t *testing.T, m Model, profiles []string) []Placed {
	t.Helper()

	rule := Rule{GPUs: []string{"0"}, Enabled: true}
	for _, p := range profiles {
		rule.Want = append(rule.Want, Want{Profile: p, Count: 1})
	}

	plan, err := PlanNode(t.Context(), []GPULayout{unexplored(m).nodeGPU(0, nil)}, Spec{Rules: []Rule{rule}})
	if err != nil {
		t.Fatalf("%s %v: %v", m.Name, profiles, err)
	}

	var placed []Placed
	for _, a := range plan.GPUs[0].After {
		placed = append(placed, Placed{Profile: a.Profile, Placement: a.Placement})
	}

	return placed
}
