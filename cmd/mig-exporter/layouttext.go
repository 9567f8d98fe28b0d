package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// placed is an instance of a layout, whether it exists or is wanted.
type placed struct {
	profile string
	at      gpu.Placement
	compute []int // slices of its compute instances, in their order
}

// instancesOf returns the instances of a GPU; false if the driver withholds where they are.
func instancesOf(g *gpu.GPU) (list []placed, ok bool) {
	for i := range g.Instances {
		gi := &g.Instances[i]

		at, known := gi.Placement.Get()
		if !known || gi.ComputesHidden {
			return nil, false
		}

		s := placed{profile: gi.Profile, at: at}
		for c := range gi.ComputeInstances {
			s.compute = append(s.compute, gi.ComputeInstances[c].ComputeSlices.Or(0))
		}

		list = append(list, s)
	}

	return list, true
}

func wantedInstances(instances []mig.Instance) []placed {
	list := make([]placed, 0, len(instances))

	for i := range instances {
		s := placed{profile: instances[i].Profile, at: instances[i].Placement}
		for _, c := range instances[i].ComputeInstances {
			s.compute = append(s.compute, c.Slices)
		}

		list = append(list, s)
	}

	return list
}

// sameLayout reports whether two layouts have the same instances in the same places, with compute
// instances of the same sizes.
func sameLayout(a, b []placed) bool {
	return slices.EqualFunc(inPlace(a), inPlace(b), func(x, y placed) bool {
		return x.profile == y.profile && x.at == y.at &&
			slices.Equal(slices.Sorted(slices.Values(x.compute)), slices.Sorted(slices.Values(y.compute)))
	})
}

// inPlace returns instances ordered by their places.
func inPlace(list []placed) []placed {
	return slices.SortedFunc(slices.Values(list), func(a, b placed) int {
		return cmp.Compare(a.at.Start, b.at.Start)
	})
}

// layoutText returns a layout as people write it: "3g.40gb@0 3g.40gb@4(1c,2c)".
func layoutText(list []placed) string {
	if len(list) == 0 {
		return "no instances"
	}

	texts := make([]string, 0, len(list))

	for _, s := range inPlace(list) {
		text := fmt.Sprintf("%s@%d", s.profile, s.at.Start)

		if len(s.compute) != 1 {
			parts := make([]string, 0, len(s.compute))
			for _, n := range s.compute {
				parts = append(parts, strconv.Itoa(n)+"c")
			}

			text += "(" + strings.Join(parts, ",") + ")"
		}

		texts = append(texts, text)
	}

	return strings.Join(texts, " ")
}
