package poll

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// target is a device of a Snapshot: a whole GPU, a GPU instance (GKE and DRA name these), or a compute instance. Indexes
// are into the Snapshot; -1 for none.
type target struct {
	gpu, instance, compute int
}

const none = -1

// resolver finds the device that an allocator's reference means.
type resolver struct {
	gpus  []gpu.GPU
	uuid  map[gpu.UUID]int
	minor map[int]int
	mig   map[gpu.MIGUUID]target
}

func newResolver(gpus []gpu.GPU) *resolver {
	r := &resolver{
		gpus:  gpus,
		uuid:  make(map[gpu.UUID]int, len(gpus)),
		minor: make(map[int]int, len(gpus)),
		mig:   map[gpu.MIGUUID]target{},
	}
	for g := range gpus {
		r.uuid[gpus[g].UUID] = g
		if m, ok := gpus[g].Minor.Get(); ok {
			// A GPU that is down may have had the number that another has now.
			if other, taken := r.minor[m]; !taken || !gpus[other].Up {
				r.minor[m] = g
			}
		}
		for i := range gpus[g].Instances {
			for c := range gpus[g].Instances[i].Computes {
				r.mig[gpus[g].Instances[i].Computes[c].UUID] = target{g, i, c}
			}
		}
	}
	return r
}

// since is when a device was first seen; the zero time for a whole GPU, whose identity is not used again.
func (r *resolver) since(t target) time.Time {
	switch {
	case t.instance == none:
		return time.Time{}
	case t.compute == none:
		return r.gpus[t.gpu].Instances[t.instance].Since
	}
	return r.gpus[t.gpu].Instances[t.instance].Computes[t.compute].Since
}

// find tells which device a reference means, if it exists on this node now.
func (r *resolver) find(ref gpu.DeviceRef) (target, bool) {
	if ref.MIG != "" {
		t, ok := r.mig[ref.MIG]
		return t, ok
	}
	g, ok := r.uuid[ref.GPU]
	if minor, has := ref.Minor.Get(); has {
		g, ok = r.minor[minor]
	}
	if !ok {
		return target{}, false
	}
	t := target{g, none, none}
	id, byID := ref.Instance.Get()
	start, byPlacement := ref.PlacementStart.Get()
	if !byID && !byPlacement {
		return t, true
	}
	for i := range r.gpus[g].Instances {
		gi := &r.gpus[g].Instances[i]
		if byID && gi.ID == id || byPlacement && placedAs(gi, start, ref.ProfileID) {
			t.instance = i
			return r.findCompute(t, ref.Compute)
		}
	}
	return target{}, false
}

func placedAs(gi *gpu.GPUInstance, start int, profile gpu.Opt[uint32]) bool {
	at, ok := gi.Placement.Get()
	return ok && at.Start == start && (!profile.Present() || gi.ProfileID == profile)
}

// findCompute narrows a GPU instance down to the compute instance that is meant: the one named, or the only one.
func (r *resolver) findCompute(t target, want gpu.Opt[gpu.ComputeID]) (target, bool) {
	computes := r.gpus[t.gpu].Instances[t.instance].Computes
	id, named := want.Get()
	if !named {
		if len(computes) == 1 {
			t.compute = 0
		}
		return t, true
	}
	for c := range computes {
		if computes[c].ID == id {
			t.compute = c
			return t, true
		}
	}
	return target{}, false
}
