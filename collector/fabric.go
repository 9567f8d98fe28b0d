package collector

import "strconv"

func newFabric(c *catalog) collectFunc {
	const gpuWide = "Of the whole GPU."
	const absent = " Absent if the GPU is not connected to NVSwitches (before Hopper it is not reported)."
	info := c.newFamily(
		"nvidia_gpu_fabric_info",
		"The GPU's place in the NVLink fabric, with the value 1: GPUs of one cluster and clique reach "+
			"each other. Absent until the registration has succeeded."+absent,
		gpuWide,
		"cluster_uuid",
		"clique",
	)
	state := c.newFamily(
		"nvidia_gpu_fabric_state",
		"How far the GPU's registration with the fabric manager has come (not_started, "+
			"in_progress or completed), with the value 1."+absent,
		gpuWide,
		"state",
	)
	status := c.newFamily(
		"nvidia_gpu_fabric_status",
		"Why a completed registration has failed, as NVML's return code; 0 if it has not. Absent before."+absent,
		gpuWide,
	)
	health := c.newFamily(
		"nvidia_gpu_fabric_health",
		"How the fabric is for this GPU (healthy, unhealthy or limited_capacity), with the value 1. "+
			"Absent if the driver does not report it.",
		gpuWide,
		"health",
	)

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]

			fabric, ok := g.Readings.Fabric.Get()
			if !ok {
				continue
			}

			if clique, ok := fabric.Clique.Get(); ok {
				w.add(info, g.labels.extend("cluster_uuid", fabric.ClusterUUID,
					"clique", strconv.FormatUint(uint64(clique), 10)), 1)
			}

			w.add(state, g.labels.extend("state", string(fabric.State)), 1)

			if code, ok := fabric.Status.Get(); ok {
				w.add(status, g.labels, float64(code))
			}

			if fabric.Health != "" {
				w.add(health, g.labels.extend("health", string(fabric.Health)), 1)
			}
		}
	}
}
