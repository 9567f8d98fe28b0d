package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// InstanceSpec is a GPU instance of a layout, with its compute instances.
type InstanceSpec struct {
	profile       gpu.Profile
	placement     gpu.Placement
	computeSlices []int // compute slices of each compute instance
}

// parsePlace reads PROFILE@START.
func parsePlace(text string) (profile string, start int, ok bool) {
	profile, digits, _ := strings.Cut(text, "@")
	number, ok := gpu.ParseDecimal(digits)

	return profile, int(number), ok
}

// parseInstance reads a GPU instance such as 3g.20gb@4, whose profile is one of a model's profiles.
// If the text is not valid, expected says what would have been valid.
func parseInstance(profiles []gpu.Profile, text string) (spec InstanceSpec, expected string) {
	name, start, isPlace := parsePlace(text)

	i := slices.IndexFunc(profiles, func(f gpu.Profile) bool { return f.Name == name })
	if i < 0 {
		return InstanceSpec{}, fmt.Sprintf(
			"one of the model's profiles (%s) and where it starts, such as %s@0",
			profileNames(profiles),
			profiles[0].Name,
		)
	}

	for _, placement := range profiles[i].Placements {
		if isPlace && placement.Start == start {
			return InstanceSpec{profile: profiles[i], placement: placement}, ""
		}
	}

	ordered := slices.Clone(profiles[i].Placements)
	slices.SortFunc(ordered, func(a, b gpu.Placement) int { return a.Start - b.Start })

	return InstanceSpec{}, fmt.Sprintf("%s at one of its placements, %s", name,
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

// addInstance adds an instance to a trial GPU, which serves only to check a layout; compute
// instances are checked apart. If the layout cannot have the instance, problem says why.
func (g *simGPU) addInstance(spec InstanceSpec) (problem string) {
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
