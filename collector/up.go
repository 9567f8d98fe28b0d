package collector

import "slices"

func newUp(c *catalog) collectFunc {
	gpuUp := c.family("nvidia_gpu_up", "1 when the last reading of the GPU succeeded, 0 when it failed or did not end in time.",
		"About the GPU as a whole; its instances have their own.")
	readErrors := c.family("nvidia_gpu_read_errors_total",
		"Readings of the GPU that failed, by what was read and why. What the hardware does not offer is no error. "+
			"Failures of the whole GPU (`device`) and lost events (`events`, `other`) begin at 0, others with the first.",
		"Readings of its instances are counted here too.", "reading", "reason")
	lastRead := c.family("nvidia_gpu_last_read_timestamp_seconds", "When the GPU was last read with success, as Unix time.",
		"Its instances are read together with it.")
	giUp := c.family("nvidia_mig_gpu_instance_up", "1 when the last reading of the GPU instance succeeded, else 0.",
		"0 with its GPU too.")
	ciUp := c.family("nvidia_mig_compute_instance_up", "1 when the last reading of the compute instance succeeded, else 0.",
		"0 with its GPU too. "+splitOnly)
	return func(k *sink, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			k.timestamp(lastRead, g.labels, g.LastRead)
		}
		for _, g := range slices.Concat(v.gpus, v.lost) {
			k.flag(gpuUp, g.labels, g.Up)
			for _, e := range g.Totals.ReadErrors {
				k.count(readErrors, g.labels.extend("reading", string(e.Reading), "reason", string(e.Reason)), e.Counter)
			}
		}
		v.eachInstance(func(_ *gpuView, gi *instanceView) { k.flag(giUp, gi.labels, gi.Up) })
		v.eachPart(func(ci *computeView) { k.flag(ciUp, ci.labels, ci.Up) })
	}
}
