package gpu

// DeviceRef is how an allocator names a device. It has no generation, which allocators do not know.
// Exactly one group of fields is used: GPU alone, GPU with Instance and Compute (legacy MIG UUIDs)
// or with PlacementStart (HAMi), MIG, or Minor, alone, with Instance (GKE), or with PlacementStart
// and ProfileID (DRA).
type DeviceRef struct {
	GPU            UUID
	MIG            MIGUUID
	Minor          Opt[int]
	Instance       Opt[InstanceID]
	Compute        Opt[ComputeID]
	PlacementStart Opt[int]
	ProfileID      Opt[uint32]
}

// ParseMIGRef parses the UUID of a MIG device in either form. One in the legacy form becomes a
// reference to its instances.
func ParseMIGRef(s string) (DeviceRef, error) {
	uuid, legacy, err := ParseMIGUUID(s)
	if l, ok := legacy.Get(); ok {
		return DeviceRef{GPU: l.GPU, Instance: Some(l.Instance), Compute: Some(l.Compute)}, err
	}

	return DeviceRef{MIG: uuid}, err
}

// DeviceIndex identifies an element in a list of GPUs by indices: a whole GPU, a GPU instance, or a
// compute instance. Instance and Compute are Whole if the device is not that deep. It is of that
// list alone.
type DeviceIndex struct {
	GPU, Instance, Compute int
}

// In returns the device at the index of the list.
func (at DeviceIndex) In(gpus []GPU) Visit {
	g := &gpus[at.GPU]
	if at.Instance == Whole {
		return Visit{Device: &g.Device, GPU: g}
	}

	gi := &g.Instances[at.Instance]
	if at.Compute == Whole {
		return Visit{Device: &gi.Device, GPU: g, Instance: gi}
	}

	ci := &gi.ComputeInstances[at.Compute]

	return Visit{Device: &ci.Device, GPU: g, Instance: gi, Compute: ci}
}

// Whole is the index that stands for all of a GPU or GPU instance.
const Whole = -1

// Match is how much of a DeviceRef was found.
type Match int

// The matches. An unknown MIG UUID matches nothing: it does not contain its GPU.
const (
	// MatchNothing: the reference names no GPU of the list.
	MatchNothing Match = iota
	// MatchParent: the GPU was found, or even the GPU instance, but not the named part of it.
	MatchParent
	// MatchDevice: the device was found.
	MatchDevice
)

// Resolver resolves references to the devices of a list of GPUs. It uses the GPUs' UUIDs, minor
// numbers and Up, and the ids, UUIDs, profile ids and placements of their instances; it must not be
// used after any of these has changed.
type Resolver struct {
	gpus      []GPU
	byUUID    map[UUID]int
	byMinor   map[int]int
	byMIGUUID map[MIGUUID]DeviceIndex
}

// NewResolver returns the resolver of gpus. Of two GPUs with one minor number the one that is up
// counts: the other may have had the number before.
func NewResolver(gpus []GPU) *Resolver {
	r := &Resolver{
		gpus:      gpus,
		byUUID:    make(map[UUID]int, len(gpus)),
		byMinor:   make(map[int]int, len(gpus)),
		byMIGUUID: map[MIGUUID]DeviceIndex{},
	}
	for g := range gpus {
		r.byUUID[gpus[g].UUID] = g
		if m, ok := gpus[g].Minor.Get(); ok {
			if other, taken := r.byMinor[m]; !taken || gpus[g].Up && !gpus[other].Up {
				r.byMinor[m] = g
			}
		}

		for i := range gpus[g].Instances {
			for c := range gpus[g].Instances[i].ComputeInstances {
				r.byMIGUUID[gpus[g].Instances[i].ComputeInstances[c].UUID] = DeviceIndex{g, i, c}
			}
		}
	}

	return r
}

// Resolve returns the device that ref names if it exists (MatchDevice), or what it would be a part
// of (MatchParent). A reference to a GPU instance names all of it, however many compute instances
// it has.
func (r *Resolver) Resolve(ref DeviceRef) (DeviceIndex, Match) {
	if ref.MIG != "" {
		if at, ok := r.byMIGUUID[ref.MIG]; ok {
			return at, MatchDevice
		}

		return DeviceIndex{}, MatchNothing
	}

	g, ok := r.findGPU(ref)
	if !ok {
		return DeviceIndex{}, MatchNothing
	}

	at := DeviceIndex{g, Whole, Whole}
	if !ref.Instance.Present() && !ref.PlacementStart.Present() {
		return at, MatchDevice
	}

	for i := range r.gpus[g].Instances {
		if gi := &r.gpus[g].Instances[i]; ref.matchesInstance(gi) {
			at.Instance = i
			return findCompute(at, gi, ref.Compute)
		}
	}

	return at, MatchParent
}

func (r *Resolver) findGPU(ref DeviceRef) (int, bool) {
	if minor, ok := ref.Minor.Get(); ok {
		g, ok := r.byMinor[minor]
		return g, ok
	}

	g, ok := r.byUUID[ref.GPU]

	return g, ok && ref.GPU != ""
}

// matchesInstance reports whether the reference names a GPU instance of its GPU: by id, or by
// placement and, if present, profile.
func (ref *DeviceRef) matchesInstance(gi *GPUInstance) bool {
	if id, ok := ref.Instance.Get(); ok {
		return gi.ID == id
	}

	place, known := gi.Placement.Get()

	return known && place.Start == ref.PlacementStart.Or(Whole) &&
		(!ref.ProfileID.Present() || gi.ProfileID == ref.ProfileID)
}

func findCompute(at DeviceIndex, gi *GPUInstance, want Opt[ComputeID]) (DeviceIndex, Match) {
	id, named := want.Get()
	if !named {
		return at, MatchDevice
	}

	for c := range gi.ComputeInstances {
		if gi.ComputeInstances[c].ID == id {
			at.Compute = c
			return at, MatchDevice
		}
	}

	return at, MatchParent
}

// Cover returns the devices that references name and everything within them. Compute instances that
// are all covered cover their GPU instance.
func (r *Resolver) Cover(refs []DeviceRef) map[DeviceIndex]bool {
	covered := map[DeviceIndex]bool{}

	for _, ref := range refs {
		if at, match := r.Resolve(ref); match == MatchDevice {
			covered[at] = true
		}
	}

	for g := range r.gpus {
		whole := covered[DeviceIndex{g, Whole, Whole}]
		for i := range r.gpus[g].Instances {
			gi := DeviceIndex{g, i, Whole}
			computes := len(r.gpus[g].Instances[i].ComputeInstances)
			within := 0

			for c := range computes {
				if at := (DeviceIndex{g, i, c}); whole || covered[gi] || covered[at] {
					covered[at] = true
					within++
				}
			}

			if whole || computes > 0 && within == computes {
				covered[gi] = true
			}
		}
	}

	return covered
}
