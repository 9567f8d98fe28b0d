package mig

import (
	"fmt"
	"slices"
)

// whyNot returns the end of an error's text: how many of the wanted instances would fit, or which
// slices or engines are too few. It is empty if there is no short answer.
func whyNot(check *cancelCheck, g *GPULayout, list []wanted) string {
	s := shapeOf(g.Profiles)

	for _, each := range list {
		if len(each.profile.Placements) == 0 {
			return fmt.Sprintf(": the driver reports no placements of %s", each.profile.Name)
		}
	}

	smallest := list[len(list)-1].profile

	others := slices.DeleteFunc(
		slices.Clone(list),
		func(each wanted) bool { return each.profile.same(smallest) },
	)
	if len(others) == 0 {
		empty := newOccupancy(s, g.Profiles, nil)
		return ": " + atMost(empty.count(smallest.Profile), smallest.Name)
	}

	// Engines are worth a word only if everything else would suffice.
	unbounded := s
	unbounded.engines = engineTotals(nil)

	if fitTogether(check, g, unbounded, list) {
		return enginesMissing(list, s)
	}

	// The list ends with the smallest: we leave them out, one after the other, until the rest fits.
	for n := len(list) - len(others) - 1; n >= 0; n-- {
		if fitTogether(check, g, s, slices.Concat(others, list[len(list)-n:])) {
			return fmt.Sprintf(": %s beside %s", atMost(n, smallest.Name), describeWanted(others))
		}
	}

	return slicesMissing(list, s)
}

// slicesMissing says of which slices a GPU has too few for the wanted instances. It is empty if the
// GPU has enough of them, but the possible placements overlap.
func slicesMissing(list []wanted, s shape) string {
	memory := 0
	compute := 0

	for _, w := range list {
		memory += w.profile.Placements[0].Size
		compute += w.profile.ComputeSlices
	}

	switch {
	case memory > s.axis:
		return fmt.Sprintf(": they need %d memory slices, and it has %d", memory, s.axis)
	case compute > s.compute:
		return fmt.Sprintf(": they need %d compute slices, and it has %d", compute, s.compute)
	default:
		return ""
	}
}

// fitTogether reports whether instances have room on an empty GPU of this shape.
func fitTogether(check *cancelCheck, g *GPULayout, s shape, list []wanted) bool {
	fit := false
	all := search{
		check:       check,
		items:       itemsOf(list),
		judgeLayout: func(occupancy, []fitted) { fit = true },
	}
	all.placeItems(newOccupancy(s, g.Profiles, nil))

	return fit
}

// enginesMissing says of which engines a GPU has too few for the wanted instances.
func enginesMissing(list []wanted, s shape) string {
	var need [len(engineCounts{})]int

	for _, w := range list {
		for i, n := range w.profile.engines {
			need[i] += int(n)
		}
	}

	for i, name := range [...]string{"copy engines", "decoders", "encoders", "JPEG engines", "OFA engines"} {
		if s.engines[i] != unlimited && need[i] > int(s.engines[i]) {
			return fmt.Sprintf(": they need %d %s, and it has %d", need[i], name, s.engines[i])
		}
	}

	return ""
}

// atMost says how many instances of a profile fit.
func atMost(n int, profile string) string {
	switch n {
	case 0:
		return fmt.Sprintf("no %s fits", profile)
	case 1:
		return fmt.Sprintf("at most 1 x %s fits", profile)
	}

	return fmt.Sprintf("at most %d x %s fit", n, profile)
}

func describeWanted(list []wanted) string {
	var wants []Want
	for _, w := range list {
		wants = append(wants, Want{Profile: w.profile.Name, Count: 1})
	}

	return describe(wants)
}
