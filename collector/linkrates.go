package collector

func newInstancePCIe(c *catalog) collectFunc {
	const byGPM = ", by the driver's GPM over its last window: absent before Hopper, and if the " +
		"driver does not report it for instances."
	const ofInstance = "Of the GPU instance: its compute instances share it."
	in := c.newFamily("nvidia_mig_gpu_instance_pcie_receive_bytes_per_second",
		"Rate at which the GPU instance received over PCIe"+byGPM, ofInstance)
	out := c.newFamily("nvidia_mig_gpu_instance_pcie_transmit_bytes_per_second",
		"Rate at which the GPU instance sent over PCIe"+byGPM, ofInstance)

	return func(w *metricWriter, v *view) {
		for gi, dev := range v.instances() {
			addOpt(w, in, dev.use, gi.Rates.PCIeReceive)
			addOpt(w, out, dev.use, gi.Rates.PCIeTransmit)
		}
	}
}

func newLinkRates(c *catalog) collectFunc {
	const gpuWide = "Of the whole GPU: instances share its links."
	const byCounters = ", by its profiling counters over their last window; absent if these do not report it. " +
		"For rates over any other time take the counter."
	pcieIn := c.newFamily("nvidia_gpu_pcie_receive_bytes_per_second",
		"Rate at which the GPU received over PCIe"+byCounters, gpuWide)
	pcieOut := c.newFamily(
		"nvidia_gpu_pcie_transmit_bytes_per_second",
		"Rate at which the GPU sent over PCIe"+byCounters,
		gpuWide,
	)
	nvlinkIn := c.newFamily("nvidia_gpu_nvlink_receive_bytes_per_second",
		"Rate at which the GPU received over its NVLinks"+byCounters, gpuWide)
	nvlinkOut := c.newFamily("nvidia_gpu_nvlink_transmit_bytes_per_second",
		"Rate at which the GPU sent over its NVLinks"+byCounters, gpuWide)

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			addOpt(w, pcieIn, g.labels, g.Rates.PCIeReceive)
			addOpt(w, pcieOut, g.labels, g.Rates.PCIeTransmit)
			addOpt(w, nvlinkIn, g.labels, g.Rates.NVLinkReceive)
			addOpt(w, nvlinkOut, g.labels, g.Rates.NVLinkTransmit)
		}
	}
}
