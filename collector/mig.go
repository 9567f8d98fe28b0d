package collector

func newMIG(c *catalog) collectFunc {
	enabled := c.newFamily(
		"nvidia_gpu_mig_enabled",
		"1 when MIG mode is on, 0 when it is off; absent if the GPU has no MIG.",
		"Of the whole GPU; it may be on without any instance. That of a GPU that is down is the last one known.",
	)
	pending := c.newFamily(
		"nvidia_gpu_mig_pending",
		"Requested MIG mode: 1 on, 0 off. It differs from nvidia_gpu_mig_enabled until a reset or reboot.",
		"Of the whole GPU.",
	)
	changes := c.newFamily(
		"nvidia_gpu_mig_layout_changes_total",
		"Changes of the tree of GPU instances and compute instances that were seen, whatever client made them.",
		"It grows also when instances of the same ids come back.",
	)

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			addOptBool(w, enabled, g.labels, g.MIG.Enabled)
			addOptBool(w, pending, g.labels, g.MIG.Pending)

			if !g.Totals.LayoutChanges.Since.IsZero() {
				w.addCounter(changes, g.labels, g.Totals.LayoutChanges)
			}
		}
	}
}
