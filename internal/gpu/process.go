package gpu

import (
	"cmp"
	"slices"
	"time"
)

// MaxProcesses is how many processes of a GPU have series of their own.
const MaxProcesses = 256

// ProcessDetail says what may be served about single processes. It does not limit the series of the
// collector "process", which have neither names nor users.
type ProcessDetail string

// The details of processes. The zero value means the same as ProcessesOff.
const (
	ProcessesOff ProcessDetail = "off"
	// ProcessNames: which processes there are, what they use, and the names of their programs.
	ProcessNames ProcessDetail = "names"
	// ProcessUsers: the users of the processes, too.
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
			cmp.Compare(a.Instance.Or(0), b.Instance.Or(0)),
			cmp.Compare(a.Compute.Or(0), b.Compute.Or(0)),
		)
	})

	return sorted
}

// ReadCues say what a reading of a GPU should read. The driver's lists of processes are too
// expensive for every reading: Asked, Changed and FollowMemory say when they are due.
type ReadCues struct {
	// Asked is set if a caller waits for the present state, as partition control does: the source
	// reads everything anew, the layout included.
	Asked bool
	// Changed is set if the GPU's holders have changed since the last reading, or one of its
	// devices has become active or idle: the source reads the lists of processes.
	Changed bool
	// MPS is set if holders share one of the GPU's devices, perhaps by MPS: with the other lists,
	// the source reads the list of MPS clients.
	MPS bool
	// FollowMemory is set if only the processes show who uses the GPU, or how much of its memory
	// each container uses: the source reads the lists whenever the GPU's memory in use has changed,
	// and always if it doesn't know the memory in use.
	FollowMemory bool
	// SlowEvery is the period of the slow tier; 0 is the source's own period.
	SlowEvery time.Duration
	// GPM makes the source read the activity of the GPU by GPM, if the GPU has it, even if it
	// would not otherwise.
	GPM    bool
	Extras Extras
}

// Extras are readings that cost driver calls of their own and that few users need.
type Extras struct {
	Media        bool // media engines
	InstanceECC  bool // memory errors by MIG device
	InstancePCIe bool // PCIe traffic of GPU instances, by GPM
	Fabric       bool // the GPU's place in the NVLink fabric
}
