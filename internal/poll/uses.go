package poll

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// collectUses returns how much of a GPU and its devices each container and batch job uses. A stale
// GPU has no readings.
func (h *exclusiveUses) collectUses(g *gpu.GPU, containers Containers, stale bool) []gpu.ContainerUse {
	u := useCollector{uses: h, gpu: g, stale: stale}
	if containers != nil && hasSharedDevice(g) {
		u.memory = sumMemoryByContainer(g, containers)
	}

	heldParts := hasHeldParts(g)

	for d := range g.Devices() {
		if d.Instance == nil && heldParts {
			continue
		}

		// Of a GPU instance we report either the compute instances, if a container holds one, or
		// the GPU instance itself, which a batch job may use.
		if d.Instance != nil && (d.Compute != nil) != hasHeldCompute(d.Instance) {
			continue
		}

		u.addDevice(d)
	}

	if !stale {
		u.list = append(u.list, h.ended...)
	}

	return u.list
}

// useCollector collects the uses of the devices of one GPU.
type useCollector struct {
	uses  *exclusiveUses
	gpu   *gpu.GPU
	stale bool // the GPU has no readings
	// memory is the result of sumMemoryByContainer; empty if no device is shared or we know no
	// process.
	memory []gpu.ContainerUse
	list   []gpu.ContainerUse // the result
}

// hasHeldCompute reports whether a container holds a compute instance of the GPU instance.
func hasHeldCompute(gi *gpu.GPUInstance) bool {
	return slices.ContainsFunc(
		gi.ComputeInstances,
		func(ci gpu.ComputeInstance) bool { return len(ci.Holders) > 0 },
	)
}

// useOf returns how much of a device is used, by all containers together.
func (u *useCollector) useOf(d gpu.Visit) gpu.ContainerUse {
	if d.Instance == nil {
		return gpu.ContainerUse{
			MemoryUsed: u.gpu.Readings.Memory.Used,
			PowerWatts: u.gpu.Readings.PowerWatts,
		}
	}

	use := gpu.ContainerUse{
		Instance:   d.ID().Instance(),
		Compute:    d.ID().Compute(),
		MemoryUsed: d.Instance.Memory.Used,
		PowerWatts: d.Instance.PowerWatts,
	}
	if d.Compute != nil && d.Instance.IsSplit() {
		use.MemoryUsed = memoryOfProcesses(u.gpu, d.Instance.ID, d.Compute.ID)
		use.PowerWatts = d.Compute.PowerWatts
	}

	return use
}

// addDevice adds the use of one device: by the one container or job that holds it, or by each
// container that shares it.
func (u *useCollector) addDevice(d gpu.Visit) {
	use := u.useOf(d)

	by, holder, held := exclusiveUser(d.Holders, d.Jobs())
	switch {
	case holder == nil && len(d.Holders) > 0:
		u.addShared(d.Holders, by.job, use)
	case held && (holder == nil || !holder.Undescribed): // one container, one job, or both
		use.Container = by.container
		use.Job = by.job
		use.Sharing = gpu.SharingExclusive

		if exclusive := u.uses.open[d.ID()]; exclusive != nil && !u.stale {
			use.EnergyJoules = exclusive.energy
			exclusive.reported = true
		}

		u.list = append(u.list, use)
	}
}

// addShared adds the memory of each container that shares a device: of the confirmed ones, or of
// all if none is.
func (u *useCollector) addShared(holders []gpu.Holder, job string, use gpu.ContainerUse) {
	anyConfirmed := slices.ContainsFunc(
		holders,
		func(h gpu.Holder) bool { return h.Unconfirmed == "" },
	)
	added := map[gpu.Container]bool{} // a container may have several replicas

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
		if len(u.memory) > 0 { // otherwise the processes may be hidden from us
			shared.MemoryUsed = u.sharedMemory(h.Container, &use)
		}

		u.list = append(u.list, shared)
	}
}

// sharedMemory returns the memory of a container on the device of use, which it shares: 0 if it has
// no process there. It is absent if we do not know the memory of one of its processes there, or
// whether one of its processes is on the device.
func (u *useCollector) sharedMemory(of gpu.Container, use *gpu.ContainerUse) gpu.Opt[uint64] {
	used := gpu.Some(uint64(0))

	for i := range u.memory {
		m := &u.memory[i]
		switch {
		case m.Container != of:
		case m.Instance == use.Instance && m.Compute == use.Compute:
			used = m.MemoryUsed
		case use.Instance.Present() && !m.Instance.Present(),
			m.Instance == use.Instance && use.Compute.Present() && !m.Compute.Present():
			return gpu.None[uint64]() // a process that may be on the device
		}
	}

	return used
}

// memoryOfProcesses returns the memory of all processes on a compute instance, which has no reading
// of its own. It is absent if we do not know the processes, the memory of one, or whether one is on
// the instance.
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
		if !ok || !p.Instance.Present() || !p.Compute.Present() { // it may be on another instance
			return gpu.None[uint64]()
		}

		sum += used
	}

	return gpu.Some(sum)
}

// sumMemoryByContainer adds up the memory of the processes of each container on each device of a
// GPU. A sum is absent if we do not know the memory of one of the processes.
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
	for d := range g.Devices() {
		if (d.Instance == nil || d.Compute != nil) &&
			len(d.Holders) > 0 && gpu.ExclusiveHolder(d.Holders) == nil {
			return true
		}
	}

	return false
}
