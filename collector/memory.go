package collector

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// What memory means under MIG.
const (
	boardMemory    = "The whole board with all its instances: never add it to theirs."
	instanceMemory = "Memory belongs to the GPU instance; its compute instances share it."
)

func newMemory(c *catalog) collectFunc {
	board := newMemoryFamilies(c, "nvidia_gpu_memory_", "the GPU", boardMemory)
	instance := newMemoryFamilies(c, "nvidia_mig_gpu_instance_memory_", "the GPU instance", instanceMemory)
	return func(k *sink, v *view) {
		for i := range v.gpus {
			board.write(k, &v.gpus[i].deviceLabels, &v.gpus[i].Readings.Memory)
		}
		v.eachInstance(func(_ *gpuView, gi *instanceView) { instance.write(k, &gi.deviceLabels, &gi.Memory) })
	}
}

// memoryFamilies are the same for a board and for a GPU instance.
type memoryFamilies struct{ total, used *family }

func newMemoryFamilies(c *catalog, prefix, of, mig string) memoryFamilies {
	return memoryFamilies{
		total: c.family(prefix+"total_bytes", "Framebuffer memory of "+of+".", mig),
		used:  c.family(prefix+"used_bytes", "Framebuffer memory of "+of+" in use.", mig),
	}
}

func (f *memoryFamilies) write(k *sink, d *deviceLabels, m *gpu.Memory) {
	addOpt(k, f.total, d.labels, m.Total)
	addOpt(k, f.used, d.use, m.Used)
}

func newMemoryDetails(c *catalog) collectFunc {
	board := newMemoryDetailFamilies(c, "nvidia_gpu_memory_", "the GPU", boardMemory)
	instance := newMemoryDetailFamilies(c, "nvidia_mig_gpu_instance_memory_", "the GPU instance", instanceMemory)
	return func(k *sink, v *view) {
		for i := range v.gpus {
			board.write(k, &v.gpus[i].deviceLabels, &v.gpus[i].Readings.Memory)
		}
		v.eachInstance(func(_ *gpuView, gi *instanceView) { instance.write(k, &gi.deviceLabels, &gi.Memory) })
	}
}

// memoryDetailFamilies are the same for a board and for a GPU instance.
type memoryDetailFamilies struct{ free, reserved *family }

func newMemoryDetailFamilies(c *catalog, prefix, of, mig string) memoryDetailFamilies {
	return memoryDetailFamilies{
		free:     c.family(prefix+"free_bytes", "Framebuffer memory of "+of+" that is free.", mig),
		reserved: c.family(prefix+"reserved_bytes", "Framebuffer memory of "+of+" that the driver and the firmware keep.", mig),
	}
}

func (f *memoryDetailFamilies) write(k *sink, d *deviceLabels, m *gpu.Memory) {
	addOpt(k, f.free, d.use, m.Free)
	addOpt(k, f.reserved, d.labels, m.Reserved)
}
