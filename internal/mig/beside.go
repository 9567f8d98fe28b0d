package mig

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// PlaceBeside finds placements for further instances, whose profiles are given by name, beside those
// that are placed. The result is in the order of the names; it is nil if they do not all fit.
func PlaceBeside(profiles []gpu.Profile, placed []Placed, names []string) []Placed {
	if len(names) == 0 {
		return []Placed{}
	}

	at := slices.IndexFunc(profiles, func(p gpu.Profile) bool { return p.Name == names[0] })
	if at < 0 {
		return nil
	}

	for _, place := range FreePlacements(profiles, placed, profiles[at]) {
		next := Placed{ProfileID: profiles[at].ID, Profile: names[0], Placement: place}
		if rest := PlaceBeside(profiles, append(slices.Clone(placed), next), names[1:]); rest != nil {
			return append([]Placed{next}, rest...)
		}
	}

	return nil
}
