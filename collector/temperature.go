package collector

import "github.com/mig-exporter/mig-exporter/internal/gpu"

func newTemperature(c *catalog) collectFunc {
	celsius := c.family("nvidia_gpu_temperature_celsius", `Temperature of the die (sensor="gpu") or of the memory (sensor="memory").`,
		"Of the whole GPU.", "sensor")
	fans := newFans(c)
	return func(k *sink, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			fans(k, g)
			for _, one := range []struct {
				sensor string
				value  gpu.Opt[float64]
			}{{"gpu", g.Readings.TemperatureCelsius}, {"memory", g.Readings.MemoryCelsius}} {
				if one.value.Present() {
					addOpt(k, celsius, g.labels.extend("sensor", one.sensor), one.value)
				}
			}
		}
	}
}
