package poll

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// collectUses lists what containers and batch jobs use of a GPU and its devices. A stale GPU has no readings.
func (h *holdings) collectUses(g *gpu.GPU, containers Containers, stale bool) []gpu.ContainerUse {
	u := useCollector{holdings: h, gpu: g, stale: stale}
	if containers != nil && hasSharedDevice(g) {
		u.processes = sumMemoryByContainer(g, containers)
	}
	if !hasHeldParts(g) {
		u.addDevice(deviceKey{}, g.Holders, g.Jobs, gpu.ContainerUse{MemoryUsed: g.Readings.Memory.Used, PowerWatts: g.Readings.PowerWatts})
	}
	for i := range g.Instances {
		u.addInstance(&g.Instances[i])
	}
	if !stale {
		u.list = append(u.list, h.ended...)
	}
	return u.list
}

// useCollector collects what containers use of the devices of one GPU.
type useCollector struct {
	holdings  *holdings
	gpu       *gpu.GPU
	stale     bool
	processes []gpu.ContainerUse // memory by container and device, if any device is shared; empty if no process is known
	list      []gpu.ContainerUse
}

// addInstance adds what is used of the compute instances, for they are what containers are given, or of a GPU instance without
// any. A batch job has all of its GPU instance, until a container has a part of it.
func (u *useCollector) addInstance(gi *gpu.GPUInstance) {
	whole := gpu.ContainerUse{Instance: gpu.Some(gi.ID), MemoryUsed: gi.Memory.Used, PowerWatts: gi.PowerWatts}
	held := slices.ContainsFunc(gi.ComputeInstances, func(ci gpu.ComputeInstance) bool { return len(ci.Holders) > 0 })
	if !held {
		u.addDevice(instanceDeviceKey(gi), gi.Holders, gi.Jobs, whole)
		return
	}
	for c := range gi.ComputeInstances {
		ci := &gi.ComputeInstances[c]
		one := whole
		one.Compute = gpu.Some(ci.ID)
		if gi.IsSplit() {
			one.MemoryUsed, one.PowerWatts = memoryOfProcesses(u.gpu, gi.ID, ci.ID), ci.PowerWatts
		}
		u.addDevice(computeDeviceKey(gi, ci), ci.Holders, gi.Jobs, one)
	}
}

// addDevice adds the use of one device: by who has it to itself, or by each of the containers that share it.
func (u *useCollector) addDevice(key deviceKey, holders []gpu.Holder, jobs []string, of gpu.ContainerUse) {
	by, holder, held := exclusiveTenant(holders, jobs)
	switch {
	case holder == nil && len(holders) > 0:
		u.addShared(holders, by.job, of)
	case held && (holder == nil || !holder.Undescribed):
		of.Container, of.Job, of.Sharing = by.container, by.job, gpu.SharingExclusive
		if one := u.holdings.open[key]; one != nil && !u.stale {
			of.EnergyJoules, one.reported = one.energy, true
		}
		u.list = append(u.list, of)
	}
}

// addShared adds the memory of each of the containers that share a device. If some of them are confirmed, the others do not count.
func (u *useCollector) addShared(holders []gpu.Holder, job string, of gpu.ContainerUse) {
	anyConfirmed := slices.ContainsFunc(holders, func(h gpu.Holder) bool { return h.Unconfirmed == "" })
	added := map[gpu.Container]bool{} // one may have several replicas
	for i := range holders {
		h := &holders[i]
		if h.Undescribed || h.Sharing == gpu.SharingExclusive || anyConfirmed && h.Unconfirmed != "" || added[h.Container] {
			continue
		}
		added[h.Container] = true
		one := gpu.ContainerUse{Container: h.Container, Job: job, Instance: of.Instance, Compute: of.Compute, Sharing: h.Sharing}
		if len(u.processes) > 0 { // processes of the host are seen: a container without one uses nothing
			one.MemoryUsed = gpu.Some(uint64(0))
		}
		for p := range u.processes {
			if by := &u.processes[p]; by.Container == h.Container && by.Instance == of.Instance && by.Compute == of.Compute {
				one.MemoryUsed = by.MemoryUsed
			}
		}
		u.list = append(u.list, one)
	}
}

// memoryOfProcesses adds up the memory of the processes on a compute instance, which has no reading of its own. It is absent if
// no process is seen on the whole GPU: without the host's process ids none may be.
func memoryOfProcesses(g *gpu.GPU, instance gpu.InstanceID, compute gpu.ComputeID) gpu.Opt[uint64] {
	list := g.Readings.Processes.Or(nil)
	sum := uint64(0)
	for _, p := range list {
		if p.Instance != gpu.Some(instance) || p.Compute != gpu.Some(compute) {
			continue
		}
		used, ok := p.MemoryBytes.Get()
		if !ok {
			return gpu.None[uint64]()
		}
		sum += used
	}
	if len(list) == 0 {
		return gpu.None[uint64]()
	}
	return gpu.Some(sum)
}

// sumMemoryByContainer adds up the memory of containers on a GPU and each of its devices by their processes.
func sumMemoryByContainer(g *gpu.GPU, containers Containers) []gpu.ContainerUse {
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
	return list
}

// hasSharedDevice reports whether containers share the GPU or a compute instance of it.
func hasSharedDevice(g *gpu.GPU) bool {
	isShared := func(holders []gpu.Holder) bool { return len(holders) > 0 && gpu.ExclusiveHolder(holders) == nil }
	if isShared(g.Holders) {
		return true
	}
	for i := range g.Instances {
		if slices.ContainsFunc(g.Instances[i].ComputeInstances, func(ci gpu.ComputeInstance) bool { return isShared(ci.Holders) }) {
			return true
		}
	}
	return false
}
