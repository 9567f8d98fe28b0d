package collector

func newUtilization(c *catalog) collectFunc {
	const absent = "Absent while MIG is on: the driver gives none."
	busy := c.newFamily(
		"nvidia_gpu_utilization_ratio",
		"Part of the time with at least one kernel running, 0-1. "+
			"It does not say how much of the GPU the kernel used.",
		absent,
	)
	copying := c.newFamily("nvidia_gpu_memory_copy_utilization_ratio",
		"Part of the time in which device memory was read or written, 0-1.", absent)

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			addOpt(w, busy, g.use, g.Readings.Utilization)
			addOpt(w, copying, g.use, g.Readings.MemoryCopy)
		}
	}
}
