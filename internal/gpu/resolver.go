package gpu

// DeviceRef is how an allocator names a device. It has no generation, which allocators do not know.
// These fields are set, depending on the allocator:
//
//	GPU                                GPUs of NVIDIA's device plugin and HAMi
//	MIG                                MIG devices of NVIDIA's device plugin
//	GPU, Instance, Compute             the same with legacy MIG UUIDs
//	GPU, PlacementStart                MIG devices of HAMi
//	Minor, or Minor and Instance       GKE's device plugin
//	Minor                              GPUs of NVIDIA's DRA driver
//	Minor, PlacementStart, ProfileID   MIG devices of NVIDIA's DRA driver
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

// DeviceIndex is where a device is in a list of GPUs, and is valid for that list alone: the index
// of the GPU, of the GPU instance in GPU.Instances, and of the compute instance in its
// ComputeInstances. For a GPU, Instance and Compute are Whole; for a GPU instance, Compute is.
type DeviceIndex struct {
	GPU, Instance, Compute int
}

// In returns the device in the list of which x is an index.
func (x DeviceIndex) In(gpus []GPU) Visit {
	g := &gpus[x.GPU]
	if x.Instance == Whole {
		return Visit{Device: &g.Device, GPU: g}
	}

	gi := &g.Instances[x.Instance]
	if x.Compute == Whole {
		return Visit{Device: &gi.Device, GPU: g, Instance: gi}
	}

	ci := &gi.ComputeInstances[x.Compute]

	return Visit{Device: &ci.Device, GPU: g, Instance: gi, Compute: ci}
}

// Whole is the index that stands for all of a GPU or GPU instance.
const Whole = -1

// Match is how much of a DeviceRef was found.
type Match int

// The matches.
const (
	// MatchNothing: the reference names no GPU of the list, or it is a MIG UUID that the list does
	// not have. A MIG UUID does not show which GPU it is of.
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
			if other, exists := r.byMinor[m]; !exists || gpus[g].Up && !gpus[other].Up {
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
		if index, ok := r.byMIGUUID[ref.MIG]; ok {
			return index, MatchDevice
		}

		return DeviceIndex{}, MatchNothing
	}

	g, ok := r.findGPU(ref)
	if !ok {
		return DeviceIndex{}, MatchNothing
	}

	index := DeviceIndex{g, Whole, Whole}
	if !ref.Instance.Present() && !ref.PlacementStart.Present() {
		return index, MatchDevice
	}

	for i := range r.gpus[g].Instances {
		if gi := &r.gpus[g].Instances[i]; ref.matchesInstance(gi) {
			index.Instance = i
			return findCompute(index, gi, ref.Compute)
		}
	}

	return index, MatchParent
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

	placement, known := gi.Placement.Get()

	return known && Some(placement.Start) == ref.PlacementStart &&
		(!ref.ProfileID.Present() || gi.ProfileID == ref.ProfileID)
}

// findCompute returns the compute instance with an id in gi, which is at instance; the GPU instance
// itself if the id is absent.
func findCompute(instance DeviceIndex, gi *GPUInstance, id Opt[ComputeID]) (DeviceIndex, Match) {
	want, ok := id.Get()
	if !ok {
		return instance, MatchDevice
	}

	for c := range gi.ComputeInstances {
		if gi.ComputeInstances[c].ID == want {
			return DeviceIndex{instance.GPU, instance.Instance, c}, MatchDevice
		}
	}

	return instance, MatchParent
}

// Cover returns the devices that references name and everything within them. If all compute
// instances of a GPU instance are covered, so is the GPU instance.
func (r *Resolver) Cover(refs []DeviceRef) map[DeviceIndex]bool {
	covered := map[DeviceIndex]bool{}

	for _, ref := range refs {
		if index, match := r.Resolve(ref); match == MatchDevice {
			covered[index] = true
		}
	}

	for g := range r.gpus {
		gpuCovered := covered[DeviceIndex{g, Whole, Whole}]
		for i := range r.gpus[g].Instances {
			instance := DeviceIndex{g, i, Whole}
			count := len(r.gpus[g].Instances[i].ComputeInstances)
			coveredCount := 0

			for c := range count {
				compute := DeviceIndex{g, i, c}
				if gpuCovered || covered[instance] || covered[compute] {
					covered[compute] = true
					coveredCount++
				}
			}

			if gpuCovered || count > 0 && coveredCount == count {
				covered[instance] = true
			}
		}
	}

	return covered
}
