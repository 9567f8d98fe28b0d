package nodedoc

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// ProcessesHidden says that the processes on a GPU are not known in this PID namespace
// (gpu.ReasonPIDNamespace).
const ProcessesHidden = "unknown: another PID namespace"

// ListProcesses returns the processes of a GPU, at most gpu.MaxProcesses, with the details that may
// be served. It returns nil if we don't know them or may not serve single processes.
func ListProcesses(g *gpu.GPU, detail gpu.ProcessDetail) []Process {
	list, known := g.Readings.Processes.Get()
	if !known || !detail.ListsProcesses() {
		return nil
	}

	views := each(list[:min(len(list), gpu.MaxProcesses)], newProcess)
	if detail != gpu.ProcessUsers {
		for i := range views {
			views[i].User = ""
		}
	}

	return views
}

func newProcess(p *gpu.Process) Process {
	return Process{
		PID:             p.PID,
		Type:            p.Type(),
		Name:            p.Name,
		User:            p.User,
		GPUInstance:     p.Instance,
		ComputeInstance: p.Compute,
		MemoryUsedBytes: p.MemoryBytes,
		Namespace:       p.Container.Namespace,
		Pod:             p.Container.Pod,
		Container:       p.Container.Name,
		Job:             p.Job,
	}
}
