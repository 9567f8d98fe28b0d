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

// wastedBy returns what the alert MigSlicesStranded computes from the metrics of a GPU: slices that
// are stranded by where the instances are, not by which they are.
func wastedBy(c gpu.Capacity) (compute, memory int) {
	unusedCompute := c.Compute.Free + c.Compute.Stranded
	unusedMemory := c.Memory.Free + c.Memory.Stranded

	compute = c.Compute.Stranded - max(0, unusedCompute-unusedMemory)
	if unusedCompute > 0 {
		memory = c.Memory.Stranded
	}

	return compute, memory
}

// TestStrandedByPlacement: for every layout of every model, wastedBy is the difference to the best
// placement of the same instances.
func TestStrandedByPlacement(t *testing.T) {
	for _, m := range modelsWithPlacements(t) {
		plain := slices.DeleteFunc(slices.Clone(m.Profiles), func(p gpu.Profile) bool {
			return strings.ContainsAny(p.Name, "+-") // the same places, with and without media engines
		})

		type stranded struct{ compute, memory int }
		best := map[string]stranded{}
		eachLayout(plain, nil, 0, func(placed []Placed) {
			c := CapacityOf(m.Profiles, placed)
			name := namesOf(placed)

			least, known := best[name]
			if !known {
				least = stranded{c.Compute.Stranded, c.Memory.Stranded}
			}

			best[name] = stranded{min(least.compute, c.Compute.Stranded), min(least.memory, c.Memory.Stranded)}
		})

		wasteful := 0
		eachLayout(plain, nil, 0, func(placed []Placed) {
			c := CapacityOf(m.Profiles, placed)
			least := best[namesOf(placed)]

			compute, memory := wastedBy(c)
			if compute != c.Compute.Stranded-least.compute || memory != c.Memory.Stranded-least.memory {
				t.Errorf("%s, %v: %d compute and %d memory slices wasted, want %d and %d", m.Name, placed, compute, memory,
					c.Compute.Stranded-least.compute, c.Memory.Stranded-least.memory)
			}

			if compute+memory > 0 {
				wasteful++
			}
		})

		if m.ComputeSlices == 7 && wasteful == 0 {
			t.Errorf("%s: no placement wastes slices", m.Name)
		}
	}
}
