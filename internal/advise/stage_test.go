package advise

import (
	"maps"
	"slices"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
)

// TestOrderOfGPUsThatMustBeEmptied: a GPU comes after the one on which its workload gets its slice;
// of a circle the first comes first. GPU 7 is ready.
func TestOrderOfGPUsThatMustBeEmptied(t *testing.T) {
	for _, c := range []struct {
		about string
		to    map[int]int
		want  []int
	}{
		{"each on its own", map[int]int{0: 0, 1: 1}, []int{0, 1}},
		{"a chain", map[int]int{0: 1, 1: 2, 2: 2}, []int{2, 1, 0}},
		{"to a GPU that is ready", map[int]int{0: 1, 1: 7}, []int{1, 0}},
		{"a circle", map[int]int{0: 1, 1: 0}, []int{0, 1}},
		{"a circle and one that waits for it", map[int]int{0: 1, 1: 2, 2: 1}, []int{1, 0, 2}},
	} {
		report := Report{Packing: &Packing{GPUs: []PackedGPU{{Index: 7}}}}

		for _, index := range slices.Sorted(maps.Keys(c.to)) {
			report.Devices = append(report.Devices, Recommendation{Index: index, Action: ActionSlice})
			report.Packing.GPUs = append(report.Packing.GPUs, PackedGPU{Index: index})
		}

		for from, to := range c.to {
			at := slices.IndexFunc(report.Packing.GPUs, func(g PackedGPU) bool { return g.Index == to })
			all := &report.Packing.GPUs[at].Slices
			*all = append(*all, PackedSlice{From: from})
		}

		ready, held := report.Stages()
		var order []int

		for _, s := range held {
			order = append(order, s.Index)
		}

		cmptest.Equal(t, c.about, order, c.want)
		cmptest.Equal(t, c.about+": ready", len(ready), 1)
	}
}
