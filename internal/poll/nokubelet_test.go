package poll

import (
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/cmptest"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func TestAllocatedWithoutKubelet(t *testing.T) {
	type fact struct {
		processes   gpu.Opt[int]
		jobs        []string
		jobsUnknown bool
		down        bool
	}

	held, free, unknown := gpu.Some(true), gpu.Some(false), gpu.None[bool]()
	none, one := gpu.Some(0), gpu.Some(1)

	for about, c := range map[string]struct {
		gpu, instance       fact
		change              func(*gpu.GPU)
		whole, slice, empty gpu.Opt[bool] // of the GPU, of the instance, and of another one without anything
	}{
		"nothing":                  {fact{processes: none}, fact{processes: none}, nil, free, free, free},
		"a process on an instance": {fact{processes: one}, fact{processes: one}, nil, held, held, free},
		"a process that no instance is known to have": {fact{processes: one}, fact{processes: none}, nil, held, free, free},
		"processes that are hidden":                   {fact{}, fact{}, nil, unknown, unknown, free},
		"a job of an instance, before its process":    {fact{processes: none}, fact{processes: none, jobs: []string{"7"}}, nil, held, held, free},
		"a job of the GPU": {fact{processes: none, jobs: []string{"7"}}, fact{processes: none, jobsUnknown: true}, nil,
			held, unknown, free},
		"a job file that cannot be used": {fact{processes: none, jobsUnknown: true}, fact{processes: none}, nil,
			unknown, free, free},
		"a GPU that does not answer": {fact{processes: none, down: true}, fact{processes: none}, nil, unknown, free, free},
		"a GPU that is released": {fact{processes: none}, fact{processes: none},
			func(g *gpu.GPU) { g.Released = gpu.Some(gpu.Release{}) }, unknown, free, free},
		"an instance whose compute instances may have a job": {fact{processes: none}, fact{processes: none, jobs: []string{"7"}},
			func(g *gpu.GPU) { g.Instances[0].ComputeInstances = make([]gpu.ComputeInstance, 2) }, held, held, free},
	} {
		g := gpu.GPU{Jobs: c.gpu.jobs, JobsUnknown: c.gpu.jobsUnknown}
		g.Up = !c.gpu.down

		if n, known := c.gpu.processes.Get(); known {
			g.Readings.Processes = gpu.Some(make([]gpu.Process, n))
		}

		g.Instances = make([]gpu.GPUInstance, 2)
		for i, f := range []fact{c.instance, {processes: none}} {
			gi := &g.Instances[i]
			gi.Up, gi.Jobs, gi.JobsUnknown, gi.Processes = true, f.jobs, f.jobsUnknown, f.processes
			gi.ComputeInstances = make([]gpu.ComputeInstance, 1)
		}

		if c.change != nil {
			c.change(&g)
		}

		gpus := []gpu.GPU{g}
		allocateWithoutKubelet(gpus)
		cmptest.Equal(t, about+": the GPU, its instances",
			[]gpu.Opt[bool]{gpus[0].Allocated, gpus[0].Instances[0].Allocated, gpus[0].Instances[1].Allocated},
			[]gpu.Opt[bool]{c.whole, c.slice, c.empty})

		part := c.slice
		if gpus[0].Instances[0].IsSplit() {
			part = unknown
		}

		cmptest.Equal(t, about+": a compute instance", gpus[0].Instances[0].ComputeInstances[0].Allocated, part)
	}
}
