package poll

import (
	"cmp"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// containerMemory adds up the memory of the containers that share a GPU or a MIG device of it, by their processes. A
// container that holds its device alone has that in the device's own series.
func containerMemory(g *gpu.GPU, containers Containers) []gpu.ContainerMemory {
	if containers == nil || !sharesAny(g) {
		return nil
	}
	var list []gpu.ContainerMemory
	for _, p := range g.Readings.Processes.Or(nil) {
		used, ok := p.MemoryBytes.Get()
		if !ok || !onShared(g, p) {
			continue
		}
		c, ok := containers.ContainerOf(p.PID)
		if !ok {
			continue
		}
		m := gpu.ContainerMemory{Container: c, Instance: p.Instance, Compute: p.Compute, UsedBytes: used}
		i := slices.IndexFunc(list, func(o gpu.ContainerMemory) bool {
			return o.Container == c && o.Instance == m.Instance && o.Compute == m.Compute
		})
		if i < 0 {
			list = append(list, m)
			continue
		}
		list[i].UsedBytes += used
	}
	slices.SortFunc(list, func(a, b gpu.ContainerMemory) int {
		return cmp.Or(compareContainers(a.Container, b.Container), cmp.Compare(a.Instance.Or(0), b.Instance.Or(0)),
			cmp.Compare(a.Compute.Or(0), b.Compute.Or(0)))
	})
	return list
}

// nameProcesses fills in the containers of those processes of a GPU that are told one by one. The list is the reading's,
// which a later Snapshot may have again: a copy takes its place.
func nameProcesses(g *gpu.GPU, containers Containers) {
	list, ok := g.Readings.Processes.Get()
	if !ok || len(list) == 0 {
		return
	}
	list = gpu.LargestFirst(list)
	for i := range list[:min(len(list), gpu.MaxProcesses)] {
		list[i].Container, _ = containers.ContainerOf(list[i].PID)
	}
	g.Readings.Processes = gpu.Some(list)
}

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

// onShared tells whether a process runs on a device that is shared.
func onShared(g *gpu.GPU, p gpu.Process) bool {
	if !p.Instance.Present() {
		return shared(g.Holders)
	}
	for i := range g.Instances {
		for c := range g.Instances[i].Computes {
			if runsOn(g, gpu.Device{Instance: i, Compute: c}, p) {
				return shared(g.Instances[i].Computes[c].Holders)
			}
		}
	}
	return false
}

func shared(holders []gpu.Holder) bool {
	return slices.ContainsFunc(holders, func(h gpu.Holder) bool { return h.Sharing != gpu.SharingExclusive })
}
