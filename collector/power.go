package collector

func newPower(c *catalog) collectFunc {
	const board = "The whole GPU: no sensor exists below it."
	const estimate = "An estimate; with the other instances and what is unallocated it adds up to the GPU's."
	watts := c.family("nvidia_gpu_power_watts", "Power that the GPU draws.", board)
	limit := c.family("nvidia_gpu_power_limit_watts", "Power limit in force.", board)
	idle := c.family("nvidia_gpu_power_idle_watts",
		"Idle power of the GPU: the lowest seen while nothing ran, until then a default for its model.",
		"Shared among the instances by their part of the SMs.")
	unallocated := c.family("nvidia_gpu_power_unallocated_watts", "The part of the GPU's power that no GPU instance is given.",
		"An estimate. Absent while MIG is off.")
	joules := c.family("nvidia_gpu_energy_joules_total", "Energy that the GPU used since the driver was loaded.", board)
	unallocatedJoules := c.family("nvidia_gpu_energy_unallocated_joules_total",
		"The part of the GPU's energy that no GPU instance was given.", "An estimate. Absent while MIG is off.")
	method := c.family("nvidia_gpu_power_estimate_method", "How active power is shared among the GPU instances, with the value 1.",
		"activity: by their part of the SMs and their graphics engine activity; unallocated: nothing is active or the activity of one "+
			"is unknown, so it goes to what is unallocated. Absent while MIG is off.", "method")
	giWatts := c.family("nvidia_mig_gpu_instance_power_estimate_watts", "The GPU instance's part of the GPU's power.", estimate)
	giJoules := c.family("nvidia_mig_gpu_instance_energy_estimate_joules_total",
		"The GPU instance's part of the GPU's energy since it was first seen.", estimate)
	return func(k *sink, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			addOpt(k, watts, g.use, g.Readings.PowerWatts)
			addOpt(k, limit, g.labels, g.Readings.PowerLimitWatts)
			addOpt(k, joules, g.use, g.Readings.EnergyJoules)
			addOpt(k, idle, g.labels, g.Power.IdleWatts)
			addOpt(k, unallocated, g.labels, g.Power.UnallocatedWatts)
			countOpt(k, unallocatedJoules, g.labels, g.Totals.EnergyUnallocatedJoules)
			if g.Power.Method != "" {
				k.add(method, g.labels.extend("method", string(g.Power.Method)), 1)
			}
		}
		v.eachInstance(func(_ *gpuView, gi *instanceView) {
			addOpt(k, giWatts, gi.use, gi.PowerWatts)
			countUse(k, giJoules, &gi.deviceLabels, gi.EnergyJoules)
		})
	}
}
