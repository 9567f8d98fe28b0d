package collector

func newNVLink(c *catalog) collectFunc {
	const board = "Of the whole GPU."
	receive := c.family("nvidia_gpu_nvlink_receive_bytes_total",
		"Data that the GPU received over all its NVLinks, without protocol overhead.", board)
	transmit := c.family("nvidia_gpu_nvlink_transmit_bytes_total",
		"Data that the GPU sent over all its NVLinks, without protocol overhead.", board)
	errs := c.family("nvidia_gpu_nvlink_errors_total",
		"NVLink errors over all links: crc_flit, crc_data, replay or recovery.", board, "kind")
	return func(k *sink, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			countOpt(k, receive, g.labels, g.Totals.NVLinkReceive)
			countOpt(k, transmit, g.labels, g.Totals.NVLinkTransmit)
			for _, e := range g.Readings.NVLink.Errors {
				k.add(errs, g.labels.extend("kind", e.Kind), float64(e.Count))
			}
		}
	}
}
