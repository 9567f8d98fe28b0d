package collector

func newLinkRates(c *catalog) collectFunc {
	const board = "Of the whole GPU: instances share its links."
	const told = ", by its profiling counters over their last window; absent where they do not tell. " +
		"For rates over any other time take the counter."
	pcieIn := c.family("nvidia_gpu_pcie_receive_bytes_per_second", "Rate at which the GPU received over PCIe"+told, board)
	pcieOut := c.family("nvidia_gpu_pcie_transmit_bytes_per_second", "Rate at which the GPU sent over PCIe"+told, board)
	nvlinkIn := c.family("nvidia_gpu_nvlink_receive_bytes_per_second", "Rate at which the GPU received over its NVLinks"+told, board)
	nvlinkOut := c.family("nvidia_gpu_nvlink_transmit_bytes_per_second", "Rate at which the GPU sent over its NVLinks"+told, board)
	return func(k *sink, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			addOpt(k, pcieIn, g.labels, g.Rates.PCIeReceive)
			addOpt(k, pcieOut, g.labels, g.Rates.PCIeTransmit)
			addOpt(k, nvlinkIn, g.labels, g.Rates.NVLinkReceive)
			addOpt(k, nvlinkOut, g.labels, g.Rates.NVLinkTransmit)
		}
	}
}
