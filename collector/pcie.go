package collector

func newPCIe(c *catalog) collectFunc {
	const board = "Of the whole GPU: instances share its link."
	receive := c.family("nvidia_gpu_pcie_receive_bytes_total",
		"Bytes that the GPU received over PCIe. The driver's counter wraps; this one does not.", board)
	transmit := c.family("nvidia_gpu_pcie_transmit_bytes_total",
		"Bytes that the GPU sent over PCIe. The driver's counter wraps; this one does not.", board)
	replays := c.family("nvidia_gpu_pcie_replays_total", "PCIe packets sent again because of errors.", board)
	width := c.family("nvidia_gpu_pcie_link_width", "Lanes of the PCIe link in use.", board)
	generation := c.family("nvidia_gpu_pcie_link_generation", "PCIe generation of the link in use; lower while the GPU idles.", board)
	return func(k *sink, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			countOpt(k, receive, g.labels, g.Totals.PCIeReceive)
			countOpt(k, transmit, g.labels, g.Totals.PCIeTransmit)
			addOpt(k, replays, g.labels, g.Readings.PCIe.Replays)
			addOpt(k, width, g.labels, g.Readings.PCIe.LinkWidth)
			addOpt(k, generation, g.labels, g.Readings.PCIe.LinkGeneration)
		}
	}
}
