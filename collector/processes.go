package collector

import "github.com/mig-exporter/mig-exporter/internal/gpu"

func newProcesses(c *catalog) collectFunc {
	gpuFamily := c.newFamily(
		"nvidia_gpu_processes",
		"Processes with a context on the GPU.",
		"Those of all its instances; absent without the right to see them, "+
			"and outside of the host's PID namespace.",
	)

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			if list, ok := g.Readings.Processes.Get(); ok {
				w.add(gpuFamily, g.labels, float64(countDistinct(list)))
			}
		}
	}
}

func newInstanceProcesses(c *catalog) collectFunc {
	instance := c.newFamily(
		"nvidia_mig_gpu_instance_processes",
		"Processes with a context on the GPU instance.",
		"A part of the GPU's.",
	)
	compute := c.newFamily(
		"nvidia_mig_compute_instance_processes",
		"Processes with a context on the compute instance.",
		"A part of its GPU instance's. "+splitOnly,
	)

	return func(w *metricWriter, v *view) {
		for gi, dev := range v.instances() {
			addOpt(w, instance, dev.labels, gi.Processes)
		}

		for ci, dev := range v.splitComputeInstances() {
			addOpt(w, compute, dev.labels, ci.Processes)
		}
	}
}

// countDistinct returns the number of processes. The list has a process several times if it has
// both a compute and a graphics context, or runs on several instances.
func countDistinct(list []gpu.Process) int {
	seen := make(map[uint32]struct{}, len(list))
	for i := range list {
		seen[list[i].PID] = struct{}{}
	}

	return len(seen)
}
