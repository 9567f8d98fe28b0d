package poll

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// collectUses returns what containers and batch jobs use of a GPU and its devices. A stale GPU has no readings.
func (h *holdings) collectUses(g *gpu.GPU, containers Containers, stale bool) []gpu.ContainerUse {
	u := useCollector{holdings: h, gpu: g, stale: stale}
	if containers != nil && hasSharedDevice(g) {
		u.processes = sumMemoryByContainer(g, containers)
	}

	if !hasHeldParts(g) {
		u.addDevice(deviceKey{}, g.Holders, g.Jobs,
			gpu.ContainerUse{MemoryUsed: g.Readings.Memory.Used, PowerWatts: g.Readings.PowerWatts})
	}

	for i := range g.Instances {
		u.addInstance(&g.Instances[i])
	}

	if !stale {
		u.list = append(u.list, h.ended...)
	}

	return u.list
}

// useCollector collects the uses of the devices of one GPU.
type useCollector struct {
	holdings  *holdings
	gpu       *gpu.GPU
	stale     bool
	processes []gpu.ContainerUse // memory by container and device, if any device is shared; empty if no process is known
	list      []gpu.ContainerUse
}

// addInstance adds the uses of the compute instances, which containers are given, or of the GPU instance if none of
// them is held. A batch job uses all of its GPU instance unless containers hold parts of it.
func (u *useCollector) addInstance(gi *gpu.GPUInstance) {
	whole := gpu.ContainerUse{
		Instance:   gpu.Some(gi.ID),
		MemoryUsed: gi.Memory.Used,
		PowerWatts: gi.PowerWatts,
	}

	held := slices.ContainsFunc(
		gi.ComputeInstances,
		func(ci gpu.ComputeInstance) bool { return len(ci.Holders) > 0 },
	)
	if !held {
		u.addDevice(instanceDeviceKey(gi), gi.Holders, gi.Jobs, whole)
		return
	}

	for c := range gi.ComputeInstances {
		ci := &gi.ComputeInstances[c]
		part := whole
		part.Compute = gpu.Some(ci.ID)

		if gi.IsSplit() {
			part.MemoryUsed = memoryOfProcesses(u.gpu, gi.ID, ci.ID)
			part.PowerWatts = ci.PowerWatts
		}

		u.addDevice(computeDeviceKey(gi, ci), ci.Holders, gi.Jobs, part)
	}
}

// addDevice adds the use of one device: by its exclusive tenant, or by each of the containers that share it.
func (u *useCollector) addDevice(
	key deviceKey,
	holders []gpu.Holder,
	jobs []string,
	use gpu.ContainerUse,
) {
	by, holder, held := exclusiveTenant(holders, jobs)
	switch {
	case holder == nil && len(holders) > 0:
		u.addShared(holders, by.job, use)
	case held && (holder == nil || !holder.Undescribed):
		use.Container = by.container
		use.Job = by.job
		use.Sharing = gpu.SharingExclusive

		if holding := u.holdings.open[key]; holding != nil && !u.stale {
			use.EnergyJoules = holding.energy
			holding.reported = true
		}

		u.list = append(u.list, use)
	}
}

// addShared adds the memory of each container that shares a device. If some of them are confirmed, the others do not
// count.
func (u *useCollector) addShared(holders []gpu.Holder, job string, use gpu.ContainerUse) {
	anyConfirmed := slices.ContainsFunc(
		holders,
		func(h gpu.Holder) bool { return h.Unconfirmed == "" },
	)
	added := map[gpu.Container]bool{} // one may have several replicas

	for i := range holders {
		h := &holders[i]
		if h.Undescribed || h.Sharing == gpu.SharingExclusive ||
			anyConfirmed && h.Unconfirmed != "" ||
			added[h.Container] {
			continue
		}

		added[h.Container] = true

		shared := gpu.ContainerUse{
			Container: h.Container,
			Job:       job,
			Instance:  use.Instance,
			Compute:   use.Compute,
			Sharing:   h.Sharing,
		}
		if len(u.processes) > 0 { // the host's processes are visible
			shared.MemoryUsed = u.sharedMemory(h.Container, &use)
		}

		u.list = append(u.list, shared)
	}
}

// sharedMemory returns the memory of a container on a device that it shares: 0 if it has no process there, and absent
// if that of one of its processes is not known, or whether it is on the device.
func (u *useCollector) sharedMemory(of gpu.Container, use *gpu.ContainerUse) gpu.Opt[uint64] {
	memory := gpu.Some(uint64(0))

	for i := range u.processes {
		by := &u.processes[i]
		switch {
		case by.Container != of:
		case by.Instance == use.Instance && by.Compute == use.Compute:
			memory = by.MemoryUsed
		case use.Instance.Present() && !by.Instance.Present(),
			by.Instance == use.Instance && use.Compute.Present() && !by.Compute.Present():
			return gpu.None[uint64]()
		}
	}

	return memory
}

// memoryOfProcesses returns the memory of the processes on a compute instance, which has no reading of its own. It is
// absent if the processes are not known, or one of them may be on it or not: what is not listed may run all the same.
func memoryOfProcesses(g *gpu.GPU, instance gpu.InstanceID, compute gpu.ComputeID) gpu.Opt[uint64] {
	list, known := g.Readings.Processes.Get()
	if !known {
		return gpu.None[uint64]()
	}

	sum := uint64(0)

	for _, p := range list {
		if p.Instance.Or(instance) != instance || p.Compute.Or(compute) != compute {
			continue
		}

		used, ok := p.MemoryBytes.Get()

		ok = ok && p.Instance.Present() && p.Compute.Present() // else it may be on another
		if !ok {
			return gpu.None[uint64]()
		}

		sum += used
	}

	return gpu.Some(sum)
}

// sumMemoryByContainer returns the memory of each container on a GPU and its devices, by their processes; absent if
// that of one of them is not known.
func sumMemoryByContainer(g *gpu.GPU, containers Containers) []gpu.ContainerUse {
	var list []gpu.ContainerUse

	for _, p := range g.Readings.Processes.Or(nil) {
		c, ok := containers.ContainerOf(p.PID)
		if !ok {
			continue
		}

		i := slices.IndexFunc(list, func(o gpu.ContainerUse) bool {
			return o.Container == c && o.Instance == p.Instance && o.Compute == p.Compute
		})
		if i < 0 {
			i = len(list)
			list = append(list, gpu.ContainerUse{
				Container:  c,
				Instance:   p.Instance,
				Compute:    p.Compute,
				MemoryUsed: gpu.Some(uint64(0)),
			})
		}

		used, known := p.MemoryBytes.Get()
		sum, knownSum := list[i].MemoryUsed.Get()
		list[i].MemoryUsed = gpu.None[uint64]()

		if known && knownSum {
			list[i].MemoryUsed = gpu.Some(sum + used)
		}
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
		if slices.ContainsFunc(g.Instances[i].ComputeInstances,
			func(ci gpu.ComputeInstance) bool { return isShared(ci.Holders) }) {
			return true
		}
	}

	return false
}
