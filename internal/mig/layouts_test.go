package mig

import (
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The numbers of maximal layouts, those that nothing can be added to, once counted by
// FreePlacements and once naively.
func TestNumberOfMaximalLayouts(t *testing.T) {
	for _, c := range []struct {
		model    string
		profiles []string // all where empty
		want     int
	}{
		{"A100-40GB", []string{"1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"}, 19},
		{"A100-40GB", nil, 239},
		{"A100-80GB", nil, 239},
		{"H100-80GB", nil, 239},
		{"H100-94GB", nil, 239},
		{"H200-141GB", nil, 239},
		{"A30-24GB", []string{"1g.6gb", "2g.12gb", "4g.24gb"}, 5},
		{"A30-24GB", nil, 17},
		{"RTX PRO 6000", nil, 302},
		{"RTX PRO 6000 by placement alone", nil, 458},
	} {
		name, byPlacement := strings.CutSuffix(c.model, " by placement alone")

		m := model(t, name)
		if byPlacement {
			m = withoutEngines(m)
		}

		if len(c.profiles) > 0 {
			m.Profiles = slices.DeleteFunc(m.Profiles, func(p gpu.Profile) bool { return !slices.Contains(c.profiles, p.Name) })
		}

		if got := countMaximal(m.Profiles, nil, 0); got != c.want {
			t.Errorf("%s %q: %d maximal layouts, want %d", c.model, c.profiles, got, c.want)
		}

		g := newNaiveGPU(m)
		naive := 0

		for _, layout := range g.reachable {
			if g.maximal(layout) {
				naive++
			}
		}

		if naive != c.want {
			t.Errorf("%s %q: naively %d maximal layouts, want %d", c.model, c.profiles, naive, c.want)
		}
	}
}

// withoutEngines is the model as a driver describes it that does not report engines.
func withoutEngines(m Model) Model {
	m.Profiles = slices.Clone(m.Profiles)
	for i := range m.Profiles {
		m.Profiles[i].Engines = gpu.None[gpu.Engines]()
	}

	return m
}

// countMaximal counts the maximal layouts that contain the placed instances. Beyond those it takes
// instances from left to right only, so that it meets every layout once.
func countMaximal(profiles []gpu.Profile, placed []Placed, from int) int {
	n := 0
	maximal := true

	for _, p := range profiles {
		for _, placement := range FreePlacements(profiles, placed, p) {
			maximal = false

			if placement.Start >= from {
				more := append(placed[:len(placed):len(placed)], Placed{ProfileID: p.ID, Profile: p.Name, Placement: placement})
				n += countMaximal(profiles, more, placement.End())
			}
		}
	}

	if maximal {
		n++
	}

	return n
}
