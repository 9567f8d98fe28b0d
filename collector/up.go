package collector

import "slices"

func newUp(c *catalog) collectFunc {
	gpuUp := c.newFamily("nvidia_gpu_up",
		"1 when the last reading of the GPU succeeded, 0 when it failed or did not end in time. "+
			"A GPU that is released has none.",
		"About the GPU as a whole; its instances have their own.")
	released := c.newFamily(
		"nvidia_gpu_released_timestamp_seconds",
		"When the exporter let go of the GPU, as Unix time: it keeps the GPU closed and reads nothing "+
			"of it, so that it can be reset, unbound or passed to a virtual machine. By the `operator` "+
			"(migctl release), or the `driver` as it was unbound. Only GPUs that are released now have it.",
		"Its instances have no series meanwhile.",
		"by",
	)
	readErrors := c.newFamily(
		"nvidia_gpu_read_errors_total",
		"Readings of the GPU that failed, by what was read and why. What the hardware does not offer "+
			"is no error, but power in MIG mode. Failures of the whole GPU (`device`) and lost events "+
			"(`events`, `other`) begin at 0, others with the first.",
		"Readings of its instances are counted here too.",
		"reading",
		"reason",
	)
	lastRead := c.newFamily("nvidia_gpu_last_read_timestamp_seconds",
		"When the GPU was last read with success, as Unix time.",
		"Its instances are read together with it.")
	giUp := c.newFamily(
		"nvidia_mig_gpu_instance_up",
		"1 when the last reading of the GPU instance succeeded, else 0.",
		"0 with its GPU too.",
	)
	ciUp := c.newFamily("nvidia_mig_compute_instance_up",
		"1 when the last reading of the compute instance succeeded, else 0.",
		"0 with its GPU too. "+splitOnly)

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			w.addTimestamp(lastRead, g.labels, g.LastRead)
		}

		for _, g := range slices.Concat(v.gpus, v.withoutHandle) {
			if r, ok := g.Released.Get(); ok {
				w.addTimestamp(released, g.labels.extend("by", string(r.Cause)), r.Since)
			} else {
				w.addBool(gpuUp, g.labels, g.Up)
			}

			for _, e := range g.Totals.ReadErrors {
				w.addCounter(
					readErrors,
					g.labels.extend("reading", string(e.Reading), "reason", string(e.Reason)),
					e.Counter,
				)
			}
		}

		for gi, dev := range v.instances() {
			w.addBool(giUp, dev.labels, gi.Up)
		}

		for ci, dev := range v.splitComputeInstances() {
			w.addBool(ciUp, dev.labels, ci.Up)
		}
	}
}
