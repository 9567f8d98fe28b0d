package collector

import (
	"strconv"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func newInfo(c *catalog) collectFunc {
	gpuInfo := c.newFamily("nvidia_gpu_info", "What the GPU is, with the value 1.",
		"Facts of the whole GPU, once per GPU whatever its layout.",
		"name", "architecture", "pci_bus_id", "serial", "vbios", "minor")
	persistence := c.newFamily(
		"nvidia_gpu_persistence_mode",
		"1 if the driver keeps the GPU initialised while no process has it open. With 0 the first "+
			"process that opens it waits about a second, and settings are lost when the last one ends.",
		"Of the whole GPU.",
	)
	gpuSMs := c.newFamily("nvidia_gpu_sms", "Streaming multiprocessors of the GPU.",
		"All of the GPU; absent while MIG is on, when the driver does not report it.")
	giInfo := c.newFamily(
		"nvidia_mig_gpu_instance_info",
		"What the GPU instance is, with the value 1.",
		"placement is start:size in memory slices, as nvidia-smi prints it; there also "+
			"for an instance without a compute instance.",
		"placement",
		"compute_slices",
		"memory_slices",
	)
	giSMs := c.newFamily(
		"nvidia_mig_gpu_instance_sms",
		"Streaming multiprocessors of the GPU instance.",
		"Not proportional to its compute slices.",
	)
	ciInfo := c.newFamily(
		"nvidia_mig_compute_instance_info",
		"What the compute instance is, with the value 1.",
		"placement is start:size in compute slices of its GPU instance; compute_profile is the MIG "+
			"device's own name, while mig_profile stays that of its GPU instance.",
		"placement",
		"compute_profile",
	)
	ciSMs := c.newFamily(
		"nvidia_mig_compute_instance_sms",
		"Streaming multiprocessors of the compute instance.",
		"A part of those of its GPU instance. "+splitOnly,
	)

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			w.add(
				gpuInfo,
				g.labels.extend(
					"name",
					g.Name,
					"architecture",
					g.Architecture,
					"pci_bus_id",
					g.PCIBusID,
					"serial",
					g.Serial,
					"vbios",
					g.VBIOS,
					"minor",
					decimal(g.Minor),
				),
				1,
			)
			addOptBool(w, persistence, g.labels, g.Readings.PersistenceMode)
			addOpt(w, gpuSMs, g.labels, g.SMs)
		}

		var text [16]byte
		for gi, dev := range v.instances() {
			w.add(
				giInfo,
				dev.labels.extend(
					"placement",
					string(appendPlacement(text[:0], gi.Placement)),
					"compute_slices",
					decimal(gi.ComputeSlices),
					"memory_slices",
					decimal(gi.MemorySlices),
				),
				1,
			)
			addOpt(w, giSMs, dev.labels, gi.SMs)
		}

		for ci, dev := range v.computeInstances() {
			w.add(
				ciInfo,
				dev.labels.extend(
					"placement",
					string(appendPlacement(text[:0], ci.Placement)),
					"compute_profile",
					ci.Profile,
				),
				1,
			)
		}

		for ci, dev := range v.splitComputeInstances() {
			addOpt(w, ciSMs, dev.labels, ci.SMs)
		}
	}
}

// decimal returns a number as a label value, empty if it is absent.
func decimal(o gpu.Opt[int]) string {
	if n, ok := o.Get(); ok {
		return strconv.Itoa(n)
	}

	return ""
}

// appendPlacement appends a placement in the form of Placement.String, nothing if it is absent.
func appendPlacement(dst []byte, o gpu.Opt[gpu.Placement]) []byte {
	p, ok := o.Get()
	if !ok {
		return dst
	}

	dst = strconv.AppendInt(dst, int64(p.Start), 10)
	dst = append(dst, ':')

	return strconv.AppendInt(dst, int64(p.Size), 10)
}
