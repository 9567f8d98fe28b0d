package collector

func newPCIe(c *catalog) collectFunc {
	const gpuWide = "Of the whole GPU: instances share its link."
	receive := c.newFamily(
		"nvidia_gpu_pcie_receive_bytes_total",
		"Bytes that the GPU received over PCIe. The driver's counter wraps; this one does not.",
		gpuWide,
	)
	transmit := c.newFamily(
		"nvidia_gpu_pcie_transmit_bytes_total",
		"Bytes that the GPU sent over PCIe. The driver's counter wraps; this one does not.",
		gpuWide,
	)
	replays := c.newFamily(
		"nvidia_gpu_pcie_replays_total",
		"PCIe packets sent again because of errors.",
		gpuWide,
	)
	width := c.newFamily("nvidia_gpu_pcie_link_width", "Lanes of the PCIe link in use.", gpuWide)
	generation := c.newFamily("nvidia_gpu_pcie_link_generation",
		"PCIe generation of the link in use; lower while the GPU idles.", gpuWide)

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			addOptCounter(w, receive, g.labels, g.Totals.PCIeReceive)
			addOptCounter(w, transmit, g.labels, g.Totals.PCIeTransmit)
			addOpt(w, replays, g.labels, g.Readings.PCIe.Replays)
			addOpt(w, width, g.labels, g.Readings.PCIe.LinkWidth)
			addOpt(w, generation, g.labels, g.Readings.PCIe.LinkGeneration)
		}
	}
}
