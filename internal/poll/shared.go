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
			if runsOn(g, target{none, i, c}, p) {
				return shared(g.Instances[i].Computes[c].Holders)
			}
		}
	}
	return false
}

func shared(holders []gpu.Holder) bool {
	return slices.ContainsFunc(holders, func(h gpu.Holder) bool { return h.Sharing != gpu.SharingExclusive })
}
