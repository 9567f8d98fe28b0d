package gpu

import (
	"cmp"
	"slices"
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
