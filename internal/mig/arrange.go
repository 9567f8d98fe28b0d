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

// computeSizes lists the sizes in slices that compute instances can have in a GPU instance with
// computeSlices compute slices: those that NVML has profiles for, and the whole.
func computeSizes(computeSlices int) []int {
	var sizes []int

	for _, size := range []int{1, 2, 3, 4, 7} {
		if size < computeSlices {
			sizes = append(sizes, size)
		}
	}

	return append(sizes, computeSlices)
}

// arrange finds placements for compute instances of the given sizes in slices, whose sum fits, in a
// GPU instance with computeSlices compute slices: in an existing one or, with nil, in a new one. It
// takes the arrangement that destroys the fewest busy compute instances, then the fewest of all, then
// the one with the fewest new ones at a start that only some drivers allow (see alignment); then
// larger ones come first. ok is false if existing would have to change, but we don't know where its
// compute instances are.
func arrange(computeSlices int, sizes []int, existing *Instance) (best arrangement, ok bool) {
	a := arranger{computeSlices: computeSlices, sizes: slices.Clone(sizes)}
	slices.SortFunc(a.sizes, func(x, y int) int { return y - x })

	if existing != nil {
		a.existing = existing
		for _, c := range existing.ComputeInstances {
			place, known := computePlace(computeSlices, c).Get()
			if !known {
				return keepUnchanged(computeSlices, a.sizes, existing)
			}

			a.places = append(a.places, place)
		}
	}

	a.arrangeRest(0)

	return a.bestArrangement(), a.best != nil
}

// computePlace returns the placement of a compute instance. If it has all slices of its GPU
// instance, we know the placement even if the driver does not report it.
func computePlace(computeSlices int, c ComputeInstance) gpu.Opt[gpu.Placement] {
	if !c.Placement.Present() && c.Slices == computeSlices {
		return gpu.Some(gpu.Placement{Size: c.Slices})
	}

	return c.Placement
}

// keepUnchanged returns the arrangement that changes nothing, and false if existing does not have
// the wanted sizes.
func keepUnchanged(computeSlices int, sizes []int, existing *Instance) (arrangement, bool) {
	var existingSizes []int
	for _, c := range existing.ComputeInstances {
		existingSizes = append(existingSizes, c.Slices)
	}

	slices.SortFunc(existingSizes, func(x, y int) int { return y - x })

	if !slices.Equal(existingSizes, sizes) {
		return arrangement{}, false
	}

	return arrangement{computeInstances: placedComputeInstances(computeSlices, existing)}, true
}

// placedComputeInstances returns the existing compute instances, ordered by placement.
func placedComputeInstances(computeSlices int, existing *Instance) []ComputeInstance {
	list := slices.Clone(existing.ComputeInstances)
	for i := range list {
		list[i].Placement = computePlace(computeSlices, list[i])
	}

	sortByPlacement(list)

	return list
}

// sortByPlacement sorts compute instances by placement, those without a known one first.
func sortByPlacement(list []ComputeInstance) {
	start := func(c ComputeInstance) int { return c.Placement.Or(gpu.Placement{Start: unknownStart}).Start }
	slices.SortStableFunc(list, func(x, y ComputeInstance) int { return start(x) - start(y) })
}

// arranger goes through all arrangements.
type arranger struct {
	computeSlices int
	sizes         []int           // descending
	existing      *Instance       // nil for a new GPU instance
	places        []gpu.Placement // of the existing compute instances

	chosen   []gpu.Placement // for sizes[:len(chosen)]
	best     []gpu.Placement // nil until there is one
	bestCost arrangementCost
}

// arrangementCost counts the busy compute instances destroyed, all destroyed, and the new ones that
// are not aligned. Earlier counts matter more.
type arrangementCost [3]int

// arrangeRest tries all placements of the sizes that have none yet. takenSlices is the set of slices
// that the chosen placements take.
func (a *arranger) arrangeRest(takenSlices uint64) {
	n := len(a.chosen)
	if n == len(a.sizes) {
		a.judgeArrangement()
		return
	}

	from := 0
	if n > 0 && a.sizes[n-1] == a.sizes[n] {
		from = a.chosen[n-1].End() // to swap equal ones makes no other arrangement
	}

	for start := from; start+a.sizes[n] <= a.computeSlices; start++ {
		at := gpu.Placement{Start: start, Size: a.sizes[n]}
		if set := bitSet(at); set != 0 && set&takenSlices == 0 {
			a.chosen = append(a.chosen, at)
			a.arrangeRest(takenSlices | set)
			a.chosen = a.chosen[:n]
		}
	}
}

// judgeArrangement keeps the arrangement if it is better than the best so far.
func (a *arranger) judgeArrangement() {
	var c arrangementCost

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

// alignment returns a number of slices: with every driver a compute instance of this size can start
// at its multiples. NVIDIA's open kernel modules allow any start, its emulated GPUs (go-nvml) only
// these.
func alignment(size int) int {
	for _, power := range []int{1, 2, 4} {
		if size <= power {
			return power
		}
	}

	return 8
}

// bestArrangement returns the best arrangement found.
func (a *arranger) bestArrangement() arrangement {
	var result arrangement

	for _, at := range a.best {
		c := ComputeInstance{Slices: at.Size, New: true}
		if i := slices.Index(a.places, at); i >= 0 {
			c = a.existing.ComputeInstances[i]
		}

		c.Placement = gpu.Some(at)
		result.computeInstances = append(result.computeInstances, c)
	}

	for i, place := range a.places {
		if slices.Contains(a.best, place) {
			continue
		}

		result.destroyed = append(result.destroyed, i)
		if a.isBusy(i) {
			result.busy = append(result.busy, i)
		}
	}

	sortByPlacement(result.computeInstances)

	return result
}
