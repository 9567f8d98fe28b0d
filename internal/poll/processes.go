package poll

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// describeProcesses adds what the driver does not say about a GPU's processes: their containers
// and, if the configuration allows it, their jobs, names and users. It describes only the largest
// MaxProcesses, because we serve no others. Later Snapshots may share the reading and its list of
// processes, so describeProcesses replaces the list by a copy.
func (p *Poller) describeProcesses(g *gpu.GPU) {
	addDetails := p.opts.Processes.ListsProcesses()
	addContainers := p.opts.Containers != nil && (p.opts.ProcessContainers || addDetails)

	list, ok := g.Readings.Processes.Get()
	if !ok || len(list) == 0 || !addDetails && !addContainers {
		return
	}

	list = gpu.LargestFirst(list)
	for i := range list[:min(len(list), gpu.MaxProcesses)] {
		process := &list[i]
		if addContainers {
			process.Container, _ = p.opts.Containers.ContainerOf(process.PID)
		}

		if !addDetails {
			continue
		}

		if process.Container == (gpu.Container{}) {
			process.Job = jobOf(g, process)
		}

		if p.opts.ProcessTable != nil {
			process.Name, process.User = p.opts.ProcessTable.Describe(process.PID)
		}
	}

	g.Readings.Processes = gpu.Some(list)
}

// jobOf returns the batch job of the device that a process runs on; empty if the device has several
// jobs or none. Schedulers say which devices a job has, not which processes.
func jobOf(g *gpu.GPU, p *gpu.Process) string {
	jobs := g.Jobs

	if id, ok := p.Instance.Get(); ok {
		jobs = nil

		for i := range g.Instances {
			if g.Instances[i].ID == id {
				jobs = g.Instances[i].Jobs
			}
		}
	}

	if len(jobs) != 1 {
		return ""
	}

	return jobs[0]
}
