package nvmlsource

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// placeComputeInstances adds the placements of the compute instances. Only a list that takes the driver's
// exclusive lock has them, so it keeps those of the last build, unless the layout has changed or
// was reported to have, the last lists were incomplete, or a compute instance is no longer the
// same.
func (r *gpuRead) placeComputeInstances(q *querier, t *tree, list []gpu.GPUInstance, changed bool) {
	rereads := changed || !t.placed
	failures := len(q.errs)

	for i, info := range t.scan.instances {
		gi := &list[indexOfInstance(list, gpu.InstanceID(info.ID))]
		if rereads || !keepPlacements(gi, t.instances) {
			queryPlacements(q, gi, t.scan.handles[i])
		}
	}

	t.placed = len(q.errs) == failures && !q.stale
}

// keepPlacements copies the placements of a GPU instance's compute instances from the last build.
// It returns false if one of them may be placed differently now. Ids are reused after a change, and
// a UUID shows where a compute instance begins, but not its size; so it compares all else that is
// known. A legacy UUID only has the ids.
func keepPlacements(gi *gpu.GPUInstance, last []gpu.GPUInstance) bool {
	at := indexOfInstance(last, gi.ID)
	for i := range gi.ComputeInstances {
		ci := &gi.ComputeInstances[i]
		if at < 0 || hasLegacyUUID(ci) {
			return false
		}

		same := slices.IndexFunc(last[at].ComputeInstances, func(before gpu.ComputeInstance) bool {
			return before.ID == ci.ID && before.UUID == ci.UUID && before.Profile == ci.Profile &&
				before.ComputeSlices == ci.ComputeSlices && before.SMs == ci.SMs
		})
		if same < 0 {
			return false
		}

		ci.Placement = last[at].ComputeInstances[same].Placement
	}

	return true
}

func hasLegacyUUID(ci *gpu.ComputeInstance) bool {
	_, legacy, err := gpu.ParseMIGUUID(string(ci.UUID))
	return err != nil || legacy.Present()
}

// queryPlacements asks a GPU instance for the placements of its compute instances.
func queryPlacements(q *querier, gi *gpu.GPUInstance, handle GPUInstance) {
	if len(gi.ComputeInstances) == 0 {
		return
	}

	for i := range gi.ComputeInstances {
		gi.ComputeInstances[i].Placement = gpu.None[gpu.Placement]()
	}

	list, _ := query(
		q,
		"nvmlGpuInstanceGetComputeInstances",
		gpu.ReadingMIG,
		handle.GetComputeInstances,
	)
	for _, info := range list {
		for i := range gi.ComputeInstances {
			if ci := &gi.ComputeInstances[i]; ci.ID == gpu.ComputeID(info.ID) &&
				info.Placement.Size > 0 {
				ci.Placement = gpu.Some(
					gpu.Placement{Start: int(info.Placement.Start), Size: int(info.Placement.Size)},
				)
			}
		}
	}
}
