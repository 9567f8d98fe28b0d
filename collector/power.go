package collector

func newPower(c *catalog) collectFunc {
	const gpuWide = "The whole GPU: no sensor exists below it."
	const estimate = "An estimate; with the other instances and what is unallocated it adds up to the GPU's."
	watts := c.newFamily(
		"nvidia_gpu_power_watts",
		"Power that the GPU draws. If the driver reports none, the mean since the last poll by its energy counter.",
		gpuWide,
	)
	limit := c.newFamily("nvidia_gpu_power_limit_watts", "Power limit in force.", gpuWide)
	idle := c.newFamily(
		"nvidia_gpu_power_idle_watts",
		"Idle power of the GPU: the lowest seen while nothing ran, by its activity; "+
			"until then a default for its model.",
		"Shared among the instances by their part of the SMs.",
	)
	unallocated := c.newFamily("nvidia_gpu_power_unallocated_watts",
		"The part of the GPU's power that no GPU instance is given.",
		"An estimate. Absent while MIG is off.")
	joules := c.newFamily(
		"nvidia_gpu_energy_joules_total",
		"Energy that the GPU used since the driver was loaded.",
		gpuWide,
	)
	unallocatedJoules := c.newFamily(
		"nvidia_gpu_energy_unallocated_joules_total",
		"The part of the GPU's energy that no GPU instance was given.",
		"An estimate. Absent while MIG is off.",
	)
	method := c.newFamily(
		"nvidia_gpu_power_estimate_method",
		"How active power is shared among the GPU instances, with the value 1.",
		"activity: by their part of the SMs and their graphics engine activity; unallocated: nothing "+
			"is active or the activity of one is unknown, so it goes to what is unallocated; unknown: the "+
			"driver reports neither power nor energy, so there are no estimates. Absent while MIG is off.",
		"method",
	)
	giWatts := c.newFamily(
		"nvidia_mig_gpu_instance_power_estimate_watts",
		"The GPU instance's part of the GPU's power.",
		estimate,
	)
	giJoules := c.newFamily("nvidia_mig_gpu_instance_energy_estimate_joules_total",
		"The GPU instance's part of the GPU's energy since it was first seen.", estimate)

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			addOpt(w, watts, g.use, g.Readings.PowerWatts)
			addOpt(w, limit, g.labels, g.Readings.PowerLimitWatts)
			addOpt(w, joules, g.use, g.Readings.EnergyJoules)
			addOpt(w, idle, g.labels, g.Power.IdleWatts)
			addOpt(w, unallocated, g.labels, g.Power.UnallocatedWatts)
			addOptCounter(w, unallocatedJoules, g.labels, g.Totals.EnergyUnallocatedJoules)

			if g.Power.Method != "" {
				w.add(method, g.labels.extend("method", string(g.Power.Method)), 1)
			}
		}

		for gi, dev := range v.instances() {
			addOpt(w, giWatts, dev.use, gi.PowerWatts)
			addUseCounter(w, giJoules, dev, gi.EnergyJoules)
		}
	}
}
