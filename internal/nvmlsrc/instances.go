package nvmlsrc

import (
	"errors"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// readInstances reads the GPU instances and compute instances, and the processes of the whole GPU. Where an entity turns
// out to be gone, somebody has re-cut the GPU since it was scanned: the tree is read again.
func (r *round) readInstances() {
	processes := r.readProcesses()
	for r.fillInstances(&processes) && r.rescan() {
		r.readTree()
		processes = r.readProcesses()
	}
	if processes.ok {
		r.out.Readings.Processes = gpu.Some(processes.list)
		return
	}
	r.lackProcesses(processes.err)
}

// fillInstances makes the instances of the result, which own their memory, and tells whether one of them was gone.
func (r *round) fillInstances(processes *processes) (moved bool) {
	t := &r.board.tree
	if r.scanErr != nil {
		r.out.Instances = t.unread(r.scanErr)
		return false
	}
	r.out.Instances = slices.Grow([]gpu.GPUInstance(nil), len(t.nodes))
	own := processes.ownLists(t.known)
	for i := range t.nodes {
		n := &t.nodes[i]
		gi := n.GPUInstance
		if len(n.computes) > 0 {
			moved = r.readInstanceMemory(n, &gi) || moved
		} else { // no handle tells its memory; how much there is, its profile does
			gi.Memory.Total = r.profileMemory(gi.ProfileID)
		}
		gi.Computes = slices.Grow([]gpu.ComputeInstance(nil), len(n.computes))
		for j := range n.computes {
			c := &n.computes[j]
			ci := c.ComputeInstance
			if own != nil {
				moved = r.readComputeProcesses(c, gi.ID, &ci, own) || moved
			}
			gi.Computes = append(gi.Computes, ci)
		}
		r.out.Instances = append(r.out.Instances, gi)
	}
	if own != nil && own.ok {
		processes.list, processes.ok = own.list, true
		sortProcesses(processes.list)
	}
	if processes.ok {
		countProcesses(r.out.Instances, processes.list)
	}
	return moved
}

// unread makes the instances of a tree of which nothing can be read.
func (t *tree) unread(err error) []gpu.GPUInstance {
	list := make([]gpu.GPUInstance, 0, len(t.nodes))
	for i := range t.nodes {
		gi := t.nodes[i].GPUInstance
		gi.Up, gi.Errors = false, []gpu.ReadError{{Reading: gpu.ReadingMIG, Err: err, Remembered: true}} // the GPU's has counted
		for _, c := range t.nodes[i].computes {
			ci := c.ComputeInstance
			ci.Up, ci.Errors = false, gi.Errors
			gi.Computes = append(gi.Computes, ci)
		}
		list = append(list, gi)
	}
	return list
}

// ofEntity returns an asker for one MIG device of the round's GPU.
func (r *round) ofEntity(known answers) asker {
	return asker{source: r.source, answers: known, retry: r.retry, fatal: r.fatal}
}

// profileMemory is the memory in bytes that instances of a profile have.
func (r *round) profileMemory(id gpu.Opt[uint32]) gpu.Opt[uint64] {
	for i := range r.board.static.profiles {
		if p := &r.board.static.profiles[i]; gpu.Some(p.ID) == id && p.MemoryBytes > 0 {
			return gpu.Some(p.MemoryBytes)
		}
	}
	return gpu.None[uint64]()
}

// readInstanceMemory reads a GPU instance's memory, which any of its MIG devices tells.
func (r *round) readInstanceMemory(n *instanceNode, gi *gpu.GPUInstance) (moved bool) {
	a := r.ofEntity(n.answers)
	h := r.board.tree.scan.devices[n.computes[0].device].handle
	if m, ok := ask(&a, "nvmlDeviceGetMemoryInfo", gpu.ReadingMemory, h.GetMemoryInfo); ok {
		gi.Memory = memoryOf(m)
	}
	gi.Errors, gi.Up = a.errs, !failed(a.errs)
	r.fatal = a.fatal
	return a.stale
}

// readComputeProcesses reads a MIG device's own list.
func (r *round) readComputeProcesses(c *computeNode, in gpu.InstanceID, ci *gpu.ComputeInstance, own *processes) (moved bool) {
	a := r.ofEntity(c.answers)
	h := r.board.tree.scan.devices[c.device].handle
	infos, ok := ask(&a, "nvmlDeviceGetComputeRunningProcesses", gpu.ReadingProcesses, h.GetComputeRunningProcesses)
	if !ok {
		own.ok = false
	}
	for _, info := range infos {
		p := processOf(info)
		p.Instance, p.Compute = gpu.Some(in), gpu.Some(c.ID)
		own.list = append(own.list, p)
	}
	if ok {
		ci.Processes = gpu.Some(len(infos))
	}
	ci.Errors, ci.Up = a.errs, !failed(a.errs)
	r.fatal = a.fatal
	return a.stale
}

// failed tells whether errors say that an entity could not be read, rather than that this process may not.
func failed(errs []gpu.ReadError) bool {
	return slices.ContainsFunc(errs, func(e gpu.ReadError) bool { return !errors.Is(e.Err, gpu.ErrNoPermission) })
}
