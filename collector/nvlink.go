package collector

func newNVLink(c *catalog) collectFunc {
	const gpuWide = "Of the whole GPU. From NVLink 5 on absent: instances have no NVLink, " +
		"so the links are not asked."
	const sinceNVLink5 = "; from NVLink 5 on what the driver counts on the links, read with the slow tier."
	receive := c.newFamily(
		"nvidia_gpu_nvlink_receive_bytes_total",
		"Data that the GPU received over all its NVLinks, without protocol overhead"+sinceNVLink5,
		gpuWide,
	)
	transmit := c.newFamily(
		"nvidia_gpu_nvlink_transmit_bytes_total",
		"Data that the GPU sent over all its NVLinks, without protocol overhead"+sinceNVLink5,
		gpuWide,
	)
	errs := c.newFamily(
		"nvidia_gpu_nvlink_errors_total",
		"NVLink errors over all links: crc_flit, crc_data, replay or recovery; from NVLink 5 on receive (packets "+
			"with errors), effective (left after correction), recovery or recovery_failed.",
		gpuWide,
		"kind",
	)

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			addOptCounter(w, receive, g.labels, g.Totals.NVLinkReceive)
			addOptCounter(w, transmit, g.labels, g.Totals.NVLinkTransmit)

			for _, e := range g.Readings.NVLink.Errors {
				w.add(errs, g.labels.extend("kind", e.Kind), float64(e.Count))
			}
		}
	}
}
