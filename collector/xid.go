package collector

func newXID(c *catalog) collectFunc {
	all := c.newFamily(
		"nvidia_gpu_xids_total",
		"XID errors of the GPU since the exporter started, all XIDs together; 0 before the first. "+
			"Absent if they are not received: the driver does not report them, or the GPU is in MIG mode "+
			"and the exporter has no right to them; and the kernel's log is not read.",
		"Those of its instances are counted here too.",
	)
	byXID := c.newFamily(
		"nvidia_gpu_xid_errors_total",
		"XID errors of the GPU by XID. It begins with the first at 1, which increase() does not see: "+
			"alerts take the timestamp. 0 for one that the kernel's log has from before the start.",
		"Those of its instances are counted here too.",
		"xid",
	)
	last := c.newFamily(
		"nvidia_gpu_xid_last_timestamp_seconds",
		"When the XID was last seen on the GPU, as Unix time.",
		"Those of its instances count too.",
		"xid",
	)
	giByXID := c.newFamily(
		"nvidia_mig_gpu_instance_xid_errors_total",
		"XID errors by XID that the driver attributed to the GPU instance.",
		"A part of the GPU's: never add them up. XIDs of the GPU as a whole name no instance.",
		"xid",
	)
	giLast := c.newFamily("nvidia_mig_gpu_instance_xid_last_timestamp_seconds",
		"When the driver last attributed the XID to the GPU instance, as Unix time.",
		"XIDs of the GPU as a whole name no instance.", "xid")
	unavailable := c.newFamily(
		"nvidia_gpu_unavailable_events_total",
		"Events by which the driver says that it cannot use the GPU any more, as after XID 79 or "+
			"119, since the exporter started. Absent if they are not received: the library is older "+
			"than 565, or as for nvidia_gpu_xids_total.",
		"Of the whole GPU.",
	)
	recovery := c.newFamily(
		"nvidia_gpu_recovery_action_events_total",
		"Events by which the driver says that what it asks an operator to do about the GPU has changed "+
			"(nvidia_gpu_recovery_action), since the exporter started. Absent under the same conditions as "+
			"nvidia_gpu_unavailable_events_total.",
		"Of the whole GPU.",
	)

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]

			// A zero Since means that we do not receive its XIDs: the driver does not report them,
			// and the kernel's log does not show them.
			if !g.Totals.XIDs.Since.IsZero() {
				w.addCounter(all, g.labels, g.Totals.XIDs)
			}

			addOptCounter(w, unavailable, g.labels, g.Totals.Unavailable)
			addOptCounter(w, recovery, g.labels, g.Totals.RecoveryActions)

			for _, x := range g.Totals.XIDErrors {
				l := g.labels.extend("xid", formatUint(x.XID))
				w.addCounter(byXID, l, x.Counter)
				w.addTimestamp(last, l, x.Last)
			}
		}

		for gi, dev := range v.instances() {
			for _, x := range gi.XIDErrors {
				l := dev.labels.extend("xid", formatUint(x.XID))
				w.addCounter(giByXID, l, x.Counter)
				w.addTimestamp(giLast, l, x.Last)
			}
		}
	}
}
