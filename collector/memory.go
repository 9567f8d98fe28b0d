package collector

import (
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

func newMemory(c *catalog) collectFunc {
	return newMemoryReadings(c, []memoryReading{
		{
			"total_bytes",
			"Framebuffer memory of %.",
			false,
			func(m *gpu.Memory) gpu.Opt[uint64] { return m.Total },
		},
		{
			"used_bytes",
			"Framebuffer memory of % in use.",
			true,
			func(m *gpu.Memory) gpu.Opt[uint64] { return m.Used },
		},
	})
}

func newMemoryDetails(c *catalog) collectFunc {
	return newMemoryReadings(c, []memoryReading{
		{
			"free_bytes",
			"Framebuffer memory of % that is free.",
			true,
			func(m *gpu.Memory) gpu.Opt[uint64] { return m.Free },
		},
		{"reserved_bytes", "Framebuffer memory of % that the driver and the firmware keep.", false,
			func(m *gpu.Memory) gpu.Opt[uint64] { return m.Reserved }},
	})
}

// memoryReading is a reading of the memory of a GPU or GPU instance.
type memoryReading struct {
	name, help string // % in help stands for the device
	isUse      bool   // it is about how the device is used
	value      func(*gpu.Memory) gpu.Opt[uint64]
}

// newMemoryReadings declares readings at both levels and returns a function that writes them.
func newMemoryReadings(c *catalog, readings []memoryReading) collectFunc {
	var gpuFamilies, instances []*family
	for _, r := range readings {
		gpuFamilies = append(
			gpuFamilies,
			c.newFamily("nvidia_gpu_memory_"+r.name, strings.Replace(r.help, "%", "the GPU", 1),
				"The whole GPU with all its instances: never add it to theirs."),
		)
		instances = append(
			instances,
			c.newFamily(
				"nvidia_mig_gpu_instance_memory_"+r.name,
				strings.Replace(r.help, "%", "the GPU instance", 1),
				"Memory belongs to the GPU instance; its compute instances share it.",
			),
		)
	}

	write := func(w *metricWriter, families []*family, d *deviceLabels, m *gpu.Memory) {
		for i := range readings {
			l := d.labels
			if readings[i].isUse {
				l = d.use
			}

			addOpt(w, families[i], l, readings[i].value(m))
		}
	}

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			write(w, gpuFamilies, v.gpus[i].deviceLabels, &v.gpus[i].Readings.Memory)
		}

		for gi, dev := range v.instances() {
			write(w, instances, dev, &gi.Memory)
		}
	}
}
