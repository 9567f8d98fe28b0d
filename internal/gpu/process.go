package gpu

import (
	"cmp"
	"slices"
	"time"
)

// MaxProcesses is how many processes of a GPU have series of their own.
const MaxProcesses = 256

// ProcessDetail says how much of single processes may be served, the series of the collector
// process excepted: those have neither names nor users.
type ProcessDetail string

// The details of processes. The zero value is as ProcessesOff.
const (
	ProcessesOff ProcessDetail = "off"
	// ProcessNames: which processes there are, what they use, and the names of their programs.
	ProcessNames ProcessDetail = "names"
	// ProcessUsers: their users, too.
	ProcessUsers ProcessDetail = "users"
)

// ListsProcesses reports whether single processes may be served at all.
func (d ProcessDetail) ListsProcesses() bool { return d == ProcessNames || d == ProcessUsers }

// Type returns what sort of context a process has: compute, mps (a client of MPS) or graphics.
func (p *Process) Type() string {
	switch {
	case p.MPS:
		return "mps"
	case p.Graphics:
		return "graphics"
	}

	return "compute"
}

// LargestFirst returns a copy of a GPU's processes, ordered by the memory that they use, the
// largest first.
func LargestFirst(list []Process) []Process {
	sorted := slices.Clone(list)
	slices.SortFunc(sorted, func(a, b Process) int {
		return cmp.Or(
			cmp.Compare(b.MemoryBytes.Or(0), a.MemoryBytes.Or(0)),
			cmp.Compare(a.PID, b.PID),
			cmp.Compare(
				a.Instance.Or(0),
				b.Instance.Or(0),
			),
			cmp.Compare(a.Compute.Or(0), b.Compute.Or(0)),
		)
	})

	return sorted
}

// ReadCues are what the caller of a reading wants to be read, and what it knows that makes the
// driver's lists of processes due, which are too expensive to be read in each reading.
type ReadCues struct {
	// Asked is set if a caller waits for what there is now, as partition control does: everything
	// is read anew, the layout included.
	Asked bool
	// Changed is set if the holders of the GPU, or whether one of its devices is active, have
	// changed since the last reading: the lists are read.
	Changed bool
	// MPS is set if holders share one of the GPU's devices, perhaps by MPS: the list of MPS clients
	// is read with the others.
	MPS bool
	// FollowMemory is set if the processes alone show who uses the GPU, or how much of its memory
	// each container uses: the lists are read whenever its memory in use has moved, and each time
	// if unknown.
	FollowMemory bool
	// SlowEvery is the period of the slow tier; 0 is that of the source's own.
	SlowEvery time.Duration
	// GPM is set if the activity of the GPU is read by GPM, on a GPU that has it, also if the
	// source by itself does not.
	GPM    bool
	Extras Extras
}

// Extras are readings that cost driver calls of their own, and that few need.
type Extras struct {
	Media        bool // media engines
	InstanceECC  bool // memory errors by MIG device
	InstancePCIe bool // PCIe traffic of GPU instances, by GPM
	Fabric       bool // the GPU's place in the NVLink fabric
}
