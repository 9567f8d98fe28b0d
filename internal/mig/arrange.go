package mig

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// arrangement is how compute instances of wanted sizes are placed in a GPU instance.
type arrangement struct {
	computeInstances []ComputeInstance // by placement
	destroyed        []int             // indexes of the existing compute instances that it destroys
	busy             []int             // the busy ones among destroyed
}

// unknownStart is the start of a compute instance's placement that the driver does not report.
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

// arrange finds placements for compute instances of the given sizes in slices, whose sum fits, in
// an existing GPU instance or, with nil, in a new one. It takes the arrangement that destroys the
// fewest busy compute instances, then the fewest of all, then the one with the most new ones at
// multiples of 2 and 4 slices, where any driver allows them; then larger ones come first. ok is
// false if existing cannot be kept, since we don't know the placements in it.
func arrange(ofInstance int, sizes []int, existing *Instance) (best arrangement, ok bool) {
	a := arranger{ofInstance: ofInstance, sizes: slices.Clone(sizes)}
	slices.SortFunc(a.sizes, func(x, y int) int { return y - x })

	if existing != nil {
		a.existing = existing
		for _, c := range existing.ComputeInstances {
			place, known := computePlace(ofInstance, c).Get()
			if !known {
				return keptWhole(ofInstance, a.sizes, existing)
			}

			a.places = append(a.places, place)
		}
	}

	a.arrangeRest(0)

	return a.bestArrangement(), a.best != nil
}

// computePlace returns the placement of a compute instance. If it has all slices of its GPU
// instance, we know the placement even if the driver does not report it.
func computePlace(ofInstance int, c ComputeInstance) gpu.Opt[gpu.Placement] {
	if !c.Placement.Present() && c.Slices == ofInstance {
		return gpu.Some(gpu.Placement{Size: c.Slices})
	}

	return c.Placement
}

// keptWhole returns the arrangement that changes nothing, and false if existing does not have the
// wanted sizes.
func keptWhole(ofInstance int, sizes []int, existing *Instance) (arrangement, bool) {
	var has []int
	for _, c := range existing.ComputeInstances {
		has = append(has, c.Slices)
	}

	slices.SortFunc(has, func(x, y int) int { return y - x })

	if !slices.Equal(has, sizes) {
		return arrangement{}, false
	}

	return arrangement{computeInstances: asItIs(ofInstance, existing)}, true
}

// asItIs returns the existing compute instances by placement.
func asItIs(ofInstance int, existing *Instance) []ComputeInstance {
	list := slices.Clone(existing.ComputeInstances)
	for i := range list {
		list[i].Placement = computePlace(ofInstance, list[i])
	}

	sortComputes(list)

	return list
}

// sortComputes sorts compute instances by placement, those without a known one first.
func sortComputes(list []ComputeInstance) {
	start := func(c ComputeInstance) int { return c.Placement.Or(gpu.Placement{Start: unknownStart}).Start }
	slices.SortStableFunc(list, func(x, y ComputeInstance) int { return start(x) - start(y) })
}

// arranger goes through all arrangements.
type arranger struct {
	ofInstance int
	sizes      []int // descending
	existing   *Instance
	places     []gpu.Placement // of the existing compute instances

	chosen   []gpu.Placement // of the first sizes
	best     []gpu.Placement
	bestCost [3]int // busy ones destroyed, all destroyed, new ones not aligned; the first counts most
}

// arrangeRest tries all placements of the sizes that have none yet. taken are the units of the
// chosen ones.
func (a *arranger) arrangeRest(taken uint64) {
	n := len(a.chosen)
	if n == len(a.sizes) {
		a.judgeArrangement()
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
			a.arrangeRest(taken | set)
			a.chosen = a.chosen[:n]
		}
	}
}

// judgeArrangement keeps the arrangement if it is better than the best so far.
func (a *arranger) judgeArrangement() {
	var c [3]int // as bestCost

	for i, place := range a.places {
		if slices.Contains(a.chosen, place) {
			continue
		}

		c[1]++
		if a.isBusy(i) {
			c[0]++
		}
	}

	for _, at := range a.chosen {
		if at.Start%alignment(at.Size) != 0 && !slices.Contains(a.places, at) {
			c[2]++
		}
	}

	if a.best == nil || slices.Compare(c[:], a.bestCost[:]) < 0 {
		a.best = append([]gpu.Placement{}, a.chosen...)
		a.bestCost = c
	}
}

func (a *arranger) isBusy(i int) bool {
	return a.existing.Busy || a.existing.ComputeInstances[i].Busy
}

// alignment returns the number of slices at whose multiples every driver places a compute instance:
// NVIDIA's open kernel modules take any start, its emulated GPUs (go-nvml) only these.
func alignment(size int) int {
	for _, power := range []int{1, 2, 4} {
		if size <= power {
			return power
		}
	}

	return 8
}

// bestArrangement returns the best arrangement found; the zero arrangement if there was none.
func (a *arranger) bestArrangement() arrangement {
	var list arrangement

	for _, at := range a.best {
		c := ComputeInstance{Slices: at.Size, New: true}
		if i := slices.Index(a.places, at); i >= 0 {
			c = a.existing.ComputeInstances[i]
		}

		c.Placement = gpu.Some(at)
		list.computeInstances = append(list.computeInstances, c)
	}

	for i, place := range a.places {
		if slices.Contains(a.best, place) {
			continue
		}

		list.destroyed = append(list.destroyed, i)
		if a.isBusy(i) {
			list.busy = append(list.busy, i)
		}
	}

	sortComputes(list.computeInstances)

	return list
}
