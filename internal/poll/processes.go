package poll

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// setProcessContainers fills in the containers of those processes of a GPU that are told one by one. The list is the reading's,
// which a later Snapshot may have again: a copy takes its place.
func setProcessContainers(g *gpu.GPU, containers Containers) {
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
