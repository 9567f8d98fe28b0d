package mig

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// arrangement is how compute instances of wanted sizes stand in a GPU instance.
type arrangement struct {
	computes []PlannedCompute // by placement
	gone     []int            // indexes of standing compute instances that go
	busy     []int            // of these, those that may not
}

// unknownStart is the start of a compute instance's placement that the driver does not tell.
const unknownStart = -1

// computeSizes lists the sizes in slices that compute instances of a GPU instance can have.
func computeSizes(ofInstance int) []int {
	var sizes []int
	for _, size := range []int{1, 2, 3, 4, 7} {
		if size < ofInstance {
			sizes = append(sizes, size)
		}
	}
	return append(sizes, ofInstance)
}

// arrange finds places for compute instances of the given sizes, which fit together. Of all ways it takes the one that
// destroys the fewest that may not go, then the fewest of all. New ones stand where the driver would let them on any GPU if
// that is possible, at multiples of 2 and 4 slices; then the larger and the earlier stand lower. ok is false where a standing
// GPU instance (nil: a new one) cannot be kept, as it is not known where its compute instances are.
func arrange(ofInstance int, sizes []int, standing *NodeInstance) (best arrangement, ok bool) {
	a := arranger{ofInstance: ofInstance, sizes: slices.Clone(sizes)}
	slices.SortFunc(a.sizes, func(x, y int) int { return y - x })
	if standing != nil {
		a.standing = standing
		for _, c := range standing.ComputeInstances {
			place, known := computePlace(ofInstance, c)
			if !known {
				return keptWhole(ofInstance, a.sizes, standing)
			}
			a.places = append(a.places, place)
		}
	}
	a.place(0)
	return a.arrangement(), a.best != nil
}

// computePlace is where a compute instance stands: one of all slices does at the only place there is.
func computePlace(ofInstance int, c NodeCompute) (gpu.Placement, bool) {
	place, known := c.Placement.Get()
	if !known && c.Slices == ofInstance {
		return gpu.Placement{Start: 0, Size: c.Slices}, true
	}
	if !known {
		return gpu.Placement{Start: unknownStart, Size: c.Slices}, false
	}
	return place, true
}

// keptWhole keeps an instance as it is, where it has the sizes that are wanted.
func keptWhole(ofInstance int, sizes []int, standing *NodeInstance) (arrangement, bool) {
	var has []int
	for _, c := range standing.ComputeInstances {
		has = append(has, c.Slices)
	}
	slices.SortFunc(has, func(x, y int) int { return y - x })
	if !slices.Equal(has, sizes) {
		return arrangement{}, false
	}
	return asItIs(ofInstance, standing), true
}

// asItIs is the arrangement that stands.
func asItIs(ofInstance int, standing *NodeInstance) arrangement {
	var a arrangement
	for i, c := range standing.ComputeInstances {
		place, _ := computePlace(ofInstance, c)
		a.computes = append(a.computes, PlannedCompute{Placement: place, Standing: gpu.Some(i)})
	}
	sortComputes(a.computes)
	return a
}

func sortComputes(list []PlannedCompute) {
	slices.SortStableFunc(list, func(x, y PlannedCompute) int { return x.Placement.Start - y.Placement.Start })
}

// arranger goes through all arrangements.
type arranger struct {
	ofInstance int
	sizes      []int // descending
	standing   *NodeInstance
	places     []gpu.Placement // of the standing compute instances

	chosen   []gpu.Placement
	best     []gpu.Placement
	bestCost [3]int
}

func (a *arranger) place(taken uint64) {
	n := len(a.chosen)
	if n == len(a.sizes) {
		a.judge()
		return
	}
	from := 0
	if n > 0 && a.sizes[n-1] == a.sizes[n] {
		from = a.chosen[n-1].End()
	}
	for start := from; start+a.sizes[n] <= a.ofInstance; start++ {
		at := gpu.Placement{Start: start, Size: a.sizes[n]}
		if set := units(at); set != 0 && set&taken == 0 {
			a.chosen = append(a.chosen, at)
			a.place(taken | set)
			a.chosen = a.chosen[:n]
		}
	}
}

func (a *arranger) judge() {
	var c [3]int
	for i, place := range a.places {
		if slices.Contains(a.chosen, place) {
			continue
		}
		c[1]++
		if a.pinned(i) {
			c[0]++
		}
	}
	for _, at := range a.chosen {
		if at.Start%alignment(at.Size) != 0 && !slices.Contains(a.places, at) {
			c[2]++
		}
	}
	if a.best == nil || slices.Compare(c[:], a.bestCost[:]) < 0 {
		a.best, a.bestCost = append([]gpu.Placement{}, a.chosen...), c
	}
}

func (a *arranger) pinned(i int) bool { return a.standing.Busy || a.standing.ComputeInstances[i].Busy }

// alignment is the number of slices at whose multiples a compute instance certainly can stand: by NVIDIA's open kernel modules
// any start will do, by its emulated GPUs (go-nvml) only these.
func alignment(size int) int {
	for _, power := range []int{1, 2, 4} {
		if size <= power {
			return power
		}
	}
	return 8
}

func (a *arranger) arrangement() arrangement {
	var list arrangement
	for _, at := range a.best {
		planned := PlannedCompute{Placement: at}
		if i := slices.Index(a.places, at); i >= 0 {
			planned.Standing = gpu.Some(i)
		}
		list.computes = append(list.computes, planned)
	}
	for i, place := range a.places {
		if slices.Contains(a.best, place) {
			continue
		}
		list.gone = append(list.gone, i)
		if a.pinned(i) {
			list.busy = append(list.busy, i)
		}
	}
	sortComputes(list.computes)
	return list
}
