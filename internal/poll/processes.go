package poll

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// describeProcesses sets what is served of single processes besides what the driver says: their
// containers and, if we list them, their jobs, names and users. Only the largest are served. The
// list belongs to the reading, which later Snapshots may share: it is replaced by a copy.
func (p *Poller) describeProcesses(g *gpu.GPU) {
	lists := p.opts.Processes.ListsProcesses()
	findContainers := p.opts.Containers != nil && (p.opts.ProcessContainers || lists)

	list, ok := g.Readings.Processes.Get()
	if !ok || len(list) == 0 || !lists && !findContainers {
		return
	}

	list = gpu.LargestFirst(list)
	for i := range list[:min(len(list), gpu.MaxProcesses)] {
		one := &list[i]
		if findContainers {
			one.Container, _ = p.opts.Containers.ContainerOf(one.PID)
		}

		if !lists {
			continue
		}

		if one.Container == (gpu.Container{}) {
			one.Job = jobOf(g, one)
		}

		if p.opts.ProcessTable != nil {
			one.Name, one.User = p.opts.ProcessTable.Describe(one.PID)
		}
	}

	g.Readings.Processes = gpu.Some(list)
}

// jobOf returns the only batch job of the device that a process is on. Schedulers say which device
// a job has, not which processes it has.
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
