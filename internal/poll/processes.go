package poll

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// setProcessContainers sets the containers of the processes that get series of their own. The list belongs to the
// reading, which later Snapshots may share: it is replaced by a copy.
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
