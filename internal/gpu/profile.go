package gpu

import (
	"fmt"
	"strings"
)

// Placement is where an instance lies on the placement axis of its GPU: the units from Start to
// Start+Size-1. The units are memory slices or, for a compute instance in its GPU instance, compute
// slices.
type Placement struct {
	Start int `json:"start"`
	Size  int `json:"size"`
}

// End returns the first unit after the placement.
func (p Placement) End() int { return p.Start + p.Size }

// Overlaps reports whether two placements share a unit.
func (p Placement) Overlaps(q Placement) bool { return p.Start < q.End() && q.Start < p.End() }

// String returns "start:size", as nvidia-smi prints it.
func (p Placement) String() string { return fmt.Sprintf("%d:%d", p.Start, p.Size) }

// ParsePlacement parses "start:size".
func ParsePlacement(s string) (Placement, error) {
	start, size, ok := strings.Cut(s, ":")
	a, aOK := ParseDecimal(start)

	b, bOK := ParseDecimal(size)
	if !ok || !aOK || !bOK || b == 0 || a > maxAxis || b > maxAxis {
		return Placement{}, fmt.Errorf(
			"placement %q: expected start:size in units of the placement axis, such as 4:4",
			s,
		)
	}

	return Placement{Start: int(a), Size: int(b)}, nil
}

// maxAxis bounds a placement axis; the longest known has 12 units.
const maxAxis = 64

// Engines counts the fixed-function engines of an instance.
type Engines struct {
	Copy    int `json:"copy"`
	Decoder int `json:"decoder"`
	Encoder int `json:"encoder"`
	JPEG    int `json:"jpeg"`
	OFA     int `json:"ofa"` // optical flow accelerators
}

// Profile is one kind of GPU instance that a GPU offers, as its driver describes it.
type Profile struct {
	// ID is the id that the driver takes and nvidia-smi prints; it is specific to the model (14 is
	// 2g on A100, 1g on A30).
	ID uint32 `json:"id"`
	// Enum is NVML's NVML_GPU_INSTANCE_PROFILE_*, the same on every model.
	Enum int `json:"-"`
	// Name is the driver's, such as "1g.5gb+me". Names change with drivers.
	Name          string `json:"name"`
	ComputeSlices int    `json:"computeSlices"`
	// MemorySlices is also the Size of its Placements.
	MemorySlices int    `json:"memorySlices"`
	SMs          int    `json:"sms"`
	MemoryBytes  uint64 `json:"memoryBytes"`
	// MaxInstances is how many fit on an empty GPU.
	MaxInstances int `json:"maxInstances"`
	// Placements are all possible ones, occupied or not; nil if the driver withholds them.
	Placements []Placement  `json:"placements,omitempty"`
	Engines    Opt[Engines] `json:"engines,omitzero"`
}

// SliceCount says what the compute slices or the memory slices of a GPU are used for. The three
// counts add up to its total. Stranded slices are unused, but no further instance could have them.
type SliceCount struct {
	Used     int `json:"used"`
	Free     int `json:"free"`
	Stranded int `json:"stranded"`
}

// ProfileCapacity says how many instances of a profile the GPU could hold, and how many more could
// be created now.
type ProfileCapacity struct {
	Name      string `json:"name"`
	Max       int    `json:"max"`
	Available int    `json:"available"`
}

// Capacity is what could still be created on a GPU, given what is placed.
type Capacity struct {
	Compute, Memory SliceCount
	Profiles        []ProfileCapacity // in the order of the GPU's profiles
}
