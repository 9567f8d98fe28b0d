package nvmlsource

import (
	"errors"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// readInstances reads the GPU instances and compute instances, and the processes of the whole GPU. If an entity has
// vanished, the layout has changed since the scan, and the tree is read again.
func (r *gpuRead) readInstances() {
	processes := r.readProcesses()
	for r.buildInstances(&processes) && r.shouldRescan() {
		r.readTree()
		processes = r.readProcesses()
	}
	if processes.ok {
		r.out.Readings.Processes = gpu.Some(processes.list)
		return
	}
	r.addProcessError(processes.err)
}

// buildInstances builds the instances of the result, which own their memory, and reports whether one of them had
// vanished.
func (r *gpuRead) buildInstances(processes *processes) (vanished bool) {
	t := &r.state.tree
	if r.scan.err != nil {
		r.out.Instances = t.unreadableInstances(r.scan.err)
		return false
	}
	r.out.Instances = slices.Clone(t.instances)
	own := processes.ownLists(t.known)
	for i := range r.out.Instances {
		gi, state := &r.out.Instances[i], &t.states[i]
		gi.ComputeInstances = slices.Clone(gi.ComputeInstances)
		if len(gi.ComputeInstances) > 0 {
			vanished = r.readInstanceMemory(state, gi) || vanished
			// no handle reports its memory; its size is that of the profile
		} else if p, _ := r.profileOf(gi.ProfileID); p.MemoryBytes > 0 {
			gi.Memory.Total = gpu.Some(p.MemoryBytes)
		}
		for j := range gi.ComputeInstances {
			if own != nil {
				vanished = r.readComputeProcesses(&state.computes[j], gi.ID, &gi.ComputeInstances[j], own) || vanished
			}
		}
	}
	if own != nil && own.ok {
		processes.list, processes.ok = own.list, true
		sortProcesses(processes.list)
	}
	if processes.ok {
		countProcesses(r.out.Instances, processes.list)
	}
	return vanished
}

// unreadableInstances returns the instances of a tree, none of which can be read.
func (t *tree) unreadableInstances(err error) []gpu.GPUInstance {
	list := slices.Clone(t.instances)
	for i := range list {
		gi := &list[i]
		// it was counted as the GPU's
		gi.Up, gi.Errors = false, []gpu.ReadError{{Reading: gpu.ReadingMIG, Err: err, Remembered: true}}
		gi.ComputeInstances = slices.Clone(gi.ComputeInstances)
		for j := range gi.ComputeInstances {
			gi.ComputeInstances[j].Up, gi.ComputeInstances[j].Errors = false, gi.Errors
		}
	}
	return list
}

// entityQuerier returns a querier for one entity of the GPU.
func (r *gpuRead) entityQuerier(known answers) querier {
	return querier{source: r.source, answers: known, slow: r.slow, fatal: r.fatal}
}

// readInstanceMemory reads a GPU instance's memory, which any of its MIG devices reports.
func (r *gpuRead) readInstanceMemory(state *entityState, gi *gpu.GPUInstance) (vanished bool) {
	a := r.entityQuerier(state.answers)
	h := r.state.tree.handleOf(&state.computes[0])
	if m, ok := query(&a, "nvmlDeviceGetMemoryInfo", gpu.ReadingMemory, h.GetMemoryInfo); ok {
		gi.Memory = memoryOf(m)
	}
	gi.Errors, gi.Up = a.errs, !isUnreadable(a.errs)
	r.fatal = a.fatal
	return a.stale
}

// readComputeProcesses reads the processes of one compute instance, from its MIG device's own list.
func (r *gpuRead) readComputeProcesses(state *entityState, in gpu.InstanceID, ci *gpu.ComputeInstance,
	own *processes) (vanished bool) {
	a := r.entityQuerier(state.answers)
	h := r.state.tree.handleOf(state)
	infos, ok := query(&a, "nvmlDeviceGetComputeRunningProcesses", gpu.ReadingProcesses, h.GetComputeRunningProcesses)
	if !ok {
		own.ok = false
	}
	for _, info := range infos {
		p := processOf(info)
		p.Instance, p.Compute = gpu.Some(in), gpu.Some(ci.ID)
		own.list = append(own.list, p)
	}
	if ok {
		ci.Processes = gpu.Some(len(infos))
	}
	ci.Errors, ci.Up = a.errs, !isUnreadable(a.errs)
	r.fatal = a.fatal
	return a.stale
}

// isUnreadable reports whether an entity could not be read for another reason than a lack of rights.
func isUnreadable(errs []gpu.ReadError) bool {
	return slices.ContainsFunc(errs, func(e gpu.ReadError) bool { return !errors.Is(e.Err, gpu.ErrNoPermission) })
}
