package poll

import (
	"cmp"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// usesOf lists what containers and batch jobs use of a GPU and its devices. A stale GPU has no readings.
func (h *holdings) usesOf(g *gpu.GPU, containers Containers, stale bool) []gpu.ContainerUse {
	u := uses{of: h, gpu: g, stale: stale}
	if containers != nil && sharesAny(g) {
		u.shared = sharedMemory(g, containers)
	}
	u.add(part{}, g.Holders, g.Jobs, gpu.ContainerUse{MemoryUsed: g.Readings.Memory.Used, PowerWatts: g.Readings.PowerWatts})
	for i := range g.Instances {
		u.addInstance(&g.Instances[i])
	}
	return u.list
}

// uses collects what containers use of the devices of one GPU.
type uses struct {
	of     *holdings
	gpu    *gpu.GPU
	stale  bool
	shared []gpu.ContainerUse // of devices that containers share
	list   []gpu.ContainerUse
}

// addInstance adds what is used of the compute instances, for they are what containers are given, or of a GPU instance without
// any. A batch job has all of its GPU instance.
func (u *uses) addInstance(gi *gpu.GPUInstance) {
	whole := gpu.ContainerUse{Instance: gpu.Some(gi.ID), MemoryUsed: gi.Memory.Used, PowerWatts: gi.PowerWatts}
	held := slices.ContainsFunc(gi.Computes, func(ci gpu.ComputeInstance) bool { return len(ci.Holders) > 0 })
	if !held {
		u.add(instancePart(gi), gi.Holders, gi.Jobs, whole)
		return
	}
	for c := range gi.Computes {
		ci := &gi.Computes[c]
		one := whole
		one.Compute = gpu.Some(ci.ID)
		if gi.IsSplit() {
			one.MemoryUsed, one.PowerWatts = memoryOfProcesses(u.gpu, gi.ID, ci.ID), ci.PowerWatts
		}
		u.add(computePart(gi, ci), ci.Holders, gi.Jobs, one)
	}
}

// add adds the use of one device: by who has it to itself, or by each of the containers that share it.
func (u *uses) add(key part, holders []gpu.Holder, jobs []string, of gpu.ContainerUse) {
	by, holder := exclusiveTenant(holders, jobs)
	switch {
	case shared(holders):
		for _, one := range u.shared {
			if one.Instance == of.Instance && one.Compute == of.Compute {
				one.Sharing, one.Job = holders[0].Sharing, by.job
				u.list = append(u.list, one)
			}
		}
	case by == (tenant{}), holder != nil && holder.Undescribed, holder == nil && len(holders) > 0:
	default:
		of.Container, of.Job, of.Sharing = by.container, by.job, gpu.SharingExclusive
		if one := u.of.open[key]; one != nil && !u.stale {
			of.EnergyJoules = one.energy
		}
		u.list = append(u.list, of)
	}
}

// memoryOfProcesses adds up the memory of the processes on a compute instance, which has no reading of its own. It is absent if
// no process is seen: without the host's process ids none may be.
func memoryOfProcesses(g *gpu.GPU, instance gpu.InstanceID, compute gpu.ComputeID) gpu.Opt[uint64] {
	var sum gpu.Opt[uint64]
	for _, p := range g.Readings.Processes.Or(nil) {
		if p.Instance != gpu.Some(instance) || p.Compute != gpu.Some(compute) {
			continue
		}
		used, ok := p.MemoryBytes.Get()
		if !ok {
			return gpu.None[uint64]()
		}
		sum = gpu.Some(sum.Or(0) + used)
	}
	return sum
}

// sharedMemory adds up the memory of containers on a GPU and each of its devices by their processes.
func sharedMemory(g *gpu.GPU, containers Containers) []gpu.ContainerUse {
	var list []gpu.ContainerUse
	for _, p := range g.Readings.Processes.Or(nil) {
		used, ok := p.MemoryBytes.Get()
		if !ok {
			continue
		}
		c, ok := containers.ContainerOf(p.PID)
		if !ok {
			continue
		}
		i := slices.IndexFunc(list, func(o gpu.ContainerUse) bool {
			return o.Container == c && o.Instance == p.Instance && o.Compute == p.Compute
		})
		if i < 0 {
			i = len(list)
			list = append(list, gpu.ContainerUse{Container: c, Instance: p.Instance, Compute: p.Compute})
		}
		list[i].MemoryUsed = gpu.Some(list[i].MemoryUsed.Or(0) + used)
	}
	slices.SortFunc(list, func(a, b gpu.ContainerUse) int {
		return cmp.Or(compareContainers(a.Container, b.Container), cmp.Compare(a.Instance.Or(0), b.Instance.Or(0)),
			cmp.Compare(a.Compute.Or(0), b.Compute.Or(0)))
	})
	return list
}

// sharesAny reports whether containers share the GPU or a compute instance of it.
func sharesAny(g *gpu.GPU) bool {
	if shared(g.Holders) {
		return true
	}
	for i := range g.Instances {
		for c := range g.Instances[i].Computes {
			if shared(g.Instances[i].Computes[c].Holders) {
				return true
			}
		}
	}
	return false
}

func shared(holders []gpu.Holder) bool {
	return slices.ContainsFunc(holders, func(h gpu.Holder) bool { return h.Sharing != gpu.SharingExclusive })
}
