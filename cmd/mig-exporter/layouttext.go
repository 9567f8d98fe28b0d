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

// placedInstance is a GPU instance of a layout, which exists or is wanted.
type placedInstance struct {
	profile   string
	placement gpu.Placement
	compute   []int // slices of its compute instances, in order
}

// instancesOf returns the instances of a GPU; false if the driver withholds where they are.
func instancesOf(g *gpu.GPU) (list []placedInstance, ok bool) {
	for i := range g.Instances {
		gi := &g.Instances[i]

		placement, known := gi.Placement.Get()
		if !known || gi.ComputeInstancesHidden {
			return nil, false
		}

		p := placedInstance{profile: gi.Profile, placement: placement}
		for c := range gi.ComputeInstances {
			p.compute = append(p.compute, gi.ComputeInstances[c].ComputeSlices.Or(0))
		}

		list = append(list, p)
	}

	return list, true
}

func wantedInstances(instances []mig.Instance) []placedInstance {
	list := make([]placedInstance, 0, len(instances))

	for i := range instances {
		p := placedInstance{profile: instances[i].Profile, placement: instances[i].Placement}
		for _, c := range instances[i].ComputeInstances {
			p.compute = append(p.compute, c.Slices)
		}

		list = append(list, p)
	}

	return list
}

// sameLayout reports whether two layouts have the same instances at the same placements, with compute
// instances of the same sizes.
func sameLayout(a, b []placedInstance) bool {
	return slices.EqualFunc(sortedByStart(a), sortedByStart(b), func(x, y placedInstance) bool {
		return x.profile == y.profile && x.placement == y.placement &&
			slices.Equal(slices.Sorted(slices.Values(x.compute)), slices.Sorted(slices.Values(y.compute)))
	})
}

func sortedByStart(list []placedInstance) []placedInstance {
	return slices.SortedFunc(slices.Values(list), func(a, b placedInstance) int {
		return cmp.Compare(a.placement.Start, b.placement.Start)
	})
}

// layoutText returns a layout as people write it: "3g.40gb@0 3g.40gb@4(1c,2c)".
func layoutText(list []placedInstance) string {
	if len(list) == 0 {
		return "no instances"
	}

	texts := make([]string, 0, len(list))

	for _, p := range sortedByStart(list) {
		text := fmt.Sprintf("%s@%d", p.profile, p.placement.Start)

		if len(p.compute) != 1 {
			parts := make([]string, 0, len(p.compute))
			for _, n := range p.compute {
				parts = append(parts, strconv.Itoa(n)+"c")
			}

			text += "(" + strings.Join(parts, ",") + ")"
		}

		texts = append(texts, text)
	}

	return strings.Join(texts, " ")
}
