package collector

import "github.com/mig-exporter/mig-exporter/internal/gpu"

func newProcess(c *catalog) collectFunc {
	const onDevice = "gpu_instance and compute_instance say which MIG device, if it runs on one. "
	labelNames := []string{"gpu_instance", "compute_instance", "pid", "namespace", "pod", "container"}
	used := c.newFamily(
		"nvidia_gpu_process_memory_used_bytes",
		"Framebuffer memory that a process uses, by its id on the host. A part of the device's: never add them up.",
		onDevice+
			"A process on several MIG devices has one series for each.",
		labelNames...)
	busy := c.newFamily(
		"nvidia_gpu_process_sm_utilization_ratio",
		"Part of the SMs' time that a process used by the driver's last sample of it, 0-1. "+
			"Absent if that is impossible.",
		onDevice+"Absent while MIG is on: the driver gives none.",
		labelNames...)
	omitted := c.newFamily(
		"nvidia_gpu_processes_omitted",
		"Processes of the GPU that have no series of their own: only the 256 that use most memory have.",
		"Those of all its instances together.",
	)
	pods := c.pods

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]

			list, ok := g.Readings.Processes.Get()
			if !ok {
				continue
			}

			shown := gpu.LargestFirst(list)[:min(len(list), gpu.MaxProcesses)]
			w.add(omitted, g.labels, float64(len(list)-len(shown)))

			for j := range shown {
				l := g.labels.extend(pods.processPairs(&shown[j])...)
				addOpt(w, used, l, shown[j].MemoryBytes)
				addOpt(w, busy, l, shown[j].SM)
			}
		}
	}
}

// processPairs returns the labels of a process, its MIG device and, if the mode of pod labels
// includes them, its container.
func (p podLabels) processPairs(process *gpu.Process) []string {
	pairs := []string{"pid", formatUint(process.PID)}
	if id, ok := process.Instance.Get(); ok {
		pairs = append(pairs, "gpu_instance", formatUint(id))
	}

	if id, ok := process.Compute.Get(); ok {
		pairs = append(pairs, "compute_instance", formatUint(id))
	}

	if p.namesContainers() {
		pairs = append(pairs, containerPairs(process.Container)...)
	}

	return pairs
}
