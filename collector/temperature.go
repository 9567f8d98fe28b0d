package collector

import "github.com/mig-exporter/mig-exporter/internal/gpu"

func newTemperature(c *catalog) collectFunc {
	celsius := c.newFamily("nvidia_gpu_temperature_celsius",
		`Temperature of the die (sensor="gpu") or of the memory (sensor="memory").`,
		"Of the whole GPU.", "sensor")
	margin := c.newFamily(
		"nvidia_gpu_temperature_margin_celsius",
		"How far the die is below the temperature at which the GPU slows down; negative above it. GPUs "+
			"report it from Ada on, with driver 565 or later; the others have thresholds.",
		"Of the whole GPU.",
	)
	threshold := c.newFamily(
		"nvidia_gpu_temperature_threshold_celsius",
		`Temperature at which the hardware slows the GPU down (kind="slowdown") `+
			`or turns it off (kind="shutdown"), and the highest at which its memory may work (kind="mem_max").`,
		"Of the whole GPU. A threshold that the driver does not report is absent: from Ada on see the margin.",
		"kind",
	)
	fans := newFans(c)

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			fans(w, g)
			addOpt(w, margin, g.labels, g.Readings.TemperatureMarginCelsius)

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
