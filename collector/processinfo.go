package collector

import "github.com/mig-exporter/mig-exporter/internal/gpu"

func newProcessInfo(c *catalog) collectFunc {
	info := c.newFamily(
		"nvidia_gpu_process_info",
		"A process on the GPU, with the value 1, and only if --web.processes lists processes. "+
			"Only the 256 that use most memory have it.",
		"name is that of the program, user only with --web.processes=users. A process on "+
			"several MIG devices has one series for each.",
		"gpu_instance", "compute_instance", "pid", "name", "user", "namespace", "pod", "container", "hpc_job",
	)
	pods := c.pods

	return func(w *metricWriter, v *view) {
		if !v.Processes.ListsProcesses() {
			return
		}

		for i := range v.gpus {
			g := &v.gpus[i]
			list := gpu.LargestFirst(g.Readings.Processes.Or(nil))

			for j := range list[:min(len(list), gpu.MaxProcesses)] {
				w.add(info, g.labels.extend(pods.processInfoPairs(&list[j], v.Processes)...), 1)
			}
		}
	}
}

// processInfoPairs returns the labels of a process. A label without a value is empty.
func (p podLabels) processInfoPairs(process *gpu.Process, detail gpu.ProcessDetail) []string {
	pairs := append(p.processPairs(process), "name", process.Name)
	if detail == gpu.ProcessUsers {
		pairs = append(pairs, "user", process.User)
	}

	if p.jobs && p.mode != PodLabelsOff {
		pairs = append(pairs, "hpc_job", process.Job)
	}

	return pairs
}
