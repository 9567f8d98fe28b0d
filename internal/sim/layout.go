package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// LayoutSpec is a GPU instance that exists from the start.
type LayoutSpec struct {
	profile   gpu.Profile
	placement gpu.Placement
	computes  []int // compute slices of each compute instance
}

// parsePlace reads PROFILE@START.
func parsePlace(text string) (profile string, start int, ok bool) {
	profile, digits, _ := strings.Cut(text, "@")
	number, ok := gpu.ParseDecimal(digits)

	return profile, int(number), ok
}

// findInstance finds the GPU instance that a text such as 3g.20gb@4 names among a model's profiles.
// If the text names none, expected says what would have been valid.
func findInstance(profiles []gpu.Profile, text string) (spec LayoutSpec, expected string) {
	name, start, isPlace := parsePlace(text)

	i := slices.IndexFunc(profiles, func(f gpu.Profile) bool { return f.Name == name })
	if i < 0 {
		return LayoutSpec{}, fmt.Sprintf(
			"one of the model's profiles (%s) and where it starts, such as %s@0",
			profileNames(profiles),
			profiles[0].Name,
		)
	}

	for _, placement := range profiles[i].Placements {
		if isPlace && placement.Start == start {
			return LayoutSpec{profile: profiles[i], placement: placement}, ""
		}
	}

	ordered := slices.Clone(profiles[i].Placements)
	slices.SortFunc(ordered, func(a, b gpu.Placement) int { return a.Start - b.Start })

	return LayoutSpec{}, fmt.Sprintf("%s at one of its placements, %s", name,
		joinNames(ordered, func(p gpu.Placement) string { return fmt.Sprintf("@%d", p.Start) }))
}

// profileNames lists the names of profiles for a message.
func profileNames(profiles []gpu.Profile) string {
	return joinNames(profiles, func(p gpu.Profile) string { return p.Name })
}

// parseComputeSize reads the size of a compute instance in a GPU instance of a profile: 2c is 2
// slices.
func parseComputeSize(text string, profile gpu.Profile) (size int, ok bool) {
	digits, isSize := strings.CutSuffix(text, "c")

	number, isNumber := gpu.ParseDecimal(digits)
	if !isSize || !isNumber || !slices.Contains(computeSizes(profile.ComputeSlices), int(number)) {
		return 0, false
	}

	return int(number), true
}

// addInstance adds an instance to a GPU whose layout is being checked. If the layout cannot have it,
// problem says why.
func (g *simGPU) addInstance(spec LayoutSpec) (problem string) {
	if i := g.occupant(spec.placement); i != nil {
		return fmt.Sprintf(
			"%s@%s overlaps %s@%s",
			spec.profile.Name,
			spec.placement,
			i.Profile.Name,
			i.Placement,
		)
	}

	if excess := g.excess(spec.profile); excess != "" {
		return "the layout has " + excess
	}

	g.instances = append(g.instances, &Instance{Profile: spec.profile, Placement: spec.placement})

	return ""
}
