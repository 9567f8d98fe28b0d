package collector

import "github.com/mig-exporter/mig-exporter/internal/gpu"

func newTemperature(c *catalog) collectFunc {
	celsius := c.newFamily("nvidia_gpu_temperature_celsius",
		`Temperature of the die (sensor="gpu") or of the memory (sensor="memory").`,
		"Of the whole GPU.", "sensor")
	threshold := c.newFamily("nvidia_gpu_temperature_threshold_celsius",
		`Temperature at which the hardware slows the GPU down (kind="slowdown") or turns it off (kind="shutdown"), and the `+
			`highest at which its memory may work (kind="mem_max").`,
		"Of the whole GPU. A threshold that the driver does not report is absent.", "kind")
	fans := newFans(c)
	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			fans(w, g)
			for _, t := range g.Readings.TemperatureThresholds {
				w.add(threshold, g.labels.extend("kind", t.Kind), t.Celsius)
			}
			for _, one := range []struct {
				sensor string
				value  gpu.Opt[float64]
			}{{"gpu", g.Readings.TemperatureCelsius}, {"memory", g.Readings.MemoryCelsius}} {
				if one.value.Present() {
					addOpt(w, celsius, g.labels.extend("sensor", one.sensor), one.value)
				}
			}
		}
	}
}
