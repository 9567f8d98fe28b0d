package collector

import "github.com/mig-exporter/mig-exporter/internal/gpu"

func newMemory(c *catalog) collectFunc {
	board := newMemoryFamilies(c, "nvidia_gpu_memory_", "the GPU",
		"The whole board with all its instances: never add it to theirs.")
	instance := newMemoryFamilies(c, "nvidia_mig_gpu_instance_memory_", "the GPU instance",
		"Memory belongs to the GPU instance; its compute instances share it.")
	return func(k *sink, v *view) {
		for i := range v.gpus {
			board.write(k, v.gpus[i].labels, &v.gpus[i].Readings.Memory)
		}
		v.eachInstance(func(_ *gpuView, gi *instanceView) { instance.write(k, gi.labels, &gi.Memory) })
	}
}

// memoryFamilies are the same four for a board and for a GPU instance.
type memoryFamilies struct {
	total, used, free, reserved *family
}

func newMemoryFamilies(c *catalog, prefix, of, mig string) memoryFamilies {
	return memoryFamilies{
		total:    c.family(prefix+"total_bytes", "Framebuffer memory of "+of+".", mig),
		used:     c.family(prefix+"used_bytes", "Framebuffer memory of "+of+" in use.", mig),
		free:     c.family(prefix+"free_bytes", "Framebuffer memory of "+of+" that is free.", mig),
		reserved: c.family(prefix+"reserved_bytes", "Framebuffer memory of "+of+" that the driver and the firmware keep.", mig),
	}
}

func (f *memoryFamilies) write(k *sink, l labels, m *gpu.Memory) {
	addOpt(k, f.total, l, m.Total)
	addOpt(k, f.used, l, m.Used)
	addOpt(k, f.free, l, m.Free)
	addOpt(k, f.reserved, l, m.Reserved)
}
