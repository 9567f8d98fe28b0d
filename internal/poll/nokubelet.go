package poll

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// allocateWithoutKubelet sets Allocated of the devices of a node without a kubelet, where nothing but
// batch jobs and processes holds them.
func allocateWithoutKubelet(gpus []gpu.GPU) {
	for i := range gpus {
		g := &gpus[i]

		processes := gpu.None[int]()
		if list, known := g.Readings.Processes.Get(); known {
			processes = gpu.Some(len(list))
		}

		states := []gpu.Opt[bool]{isUsed(g.Up, len(g.Jobs), g.JobsUnknown, processes)}

		for k := range g.Instances {
			gi := &g.Instances[k]
			allocateInstance(gi)
			states = append(states, gi.Allocated)
		}

		if g.MIG.DevicesHidden || g.Released.Present() {
			states = append(states, gpu.None[bool]())
		}

		g.Allocated = anyAllocated(states)
	}
}

// allocateInstance sets Allocated of a GPU instance and of its compute instances. A job has any of
// them.
func allocateInstance(gi *gpu.GPUInstance) {
	gi.Allocated = isUsed(gi.Up, len(gi.Jobs), gi.JobsUnknown, gi.Processes)

	for c := range gi.ComputeInstances {
		ci := &gi.ComputeInstances[c]

		ci.Allocated = gi.Allocated
		if gi.IsSplit() {
			ci.Allocated = isUsed(ci.Up, 0, gi.JobsUnknown || len(gi.Jobs) > 0, ci.Processes)
		}
	}
}

// isUsed reports whether jobs or processes have a device; absent if there may be some that we do not
// know.
func isUsed(up bool, jobs int, jobsUnknown bool, processes gpu.Opt[int]) gpu.Opt[bool] {
	switch {
	case jobs > 0, processes.Or(0) > 0:
		return gpu.Some(true)
	case !up, jobsUnknown, !processes.Present():
		return gpu.None[bool]()
	}

	return gpu.Some(false)
}
