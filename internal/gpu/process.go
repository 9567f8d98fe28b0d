package gpu

import (
	"cmp"
	"slices"
	"time"
)

// MaxProcesses is how many processes of a GPU have series of their own.
const MaxProcesses = 256

// LargestFirst returns a copy of a GPU's processes, ordered by the memory that they use, the largest first.
func LargestFirst(list []Process) []Process {
	sorted := slices.Clone(list)
	slices.SortFunc(sorted, func(a, b Process) int {
		return cmp.Or(cmp.Compare(b.MemoryBytes.Or(0), a.MemoryBytes.Or(0)), cmp.Compare(a.PID, b.PID),
			cmp.Compare(a.Instance.Or(0), b.Instance.Or(0)), cmp.Compare(a.Compute.Or(0), b.Compute.Or(0)))
	})
	return sorted
}

// ReadCues are what a reading of a GPU has to know of its surroundings: what the driver's lists of processes depend on,
// which are too dear to be read each time.
type ReadCues struct {
	// Asked is set if somebody waits for what there is now: everything is read anew, the layout included.
	Asked bool
	// Changed is set if the holders of the GPU, or whether one of its devices is active, have changed since the last
	// reading: the lists are read.
	Changed bool
	// MPS is set if a holder shares one of the GPU's devices by MPS: the list of MPS clients is read with the others.
	MPS bool
	// NoHolders is set if no allocator says who holds the GPU, so that its processes alone show it: the lists are read
	// whenever its memory in use has moved.
	NoHolders bool
	// SlowEvery is the period of the slow tier; 0 is that of the source's own.
	SlowEvery time.Duration
}
