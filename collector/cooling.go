package collector

import "strconv"

// newPerformanceState declares the performance state and returns a function that writes it for a
// GPU.
func newPerformanceState(c *catalog, mig string) func(*metricWriter, *gpuView) {
	state := c.newFamily(
		"nvidia_gpu_performance_state",
		"Performance state (P-state) as a number: 0 is the fastest, 15 the slowest. "+
			"Many data-center GPUs stay in 0.",
		mig,
	)

	return func(w *metricWriter, g *gpuView) { addOpt(w, state, g.labels, g.Readings.PerformanceState) }
}

// newFans declares the fans and returns a function that writes them for a GPU.
func newFans(c *catalog) func(*metricWriter, *gpuView) {
	speed := c.newFamily(
		"nvidia_gpu_fan_speed_ratio",
		"Intended speed of a fan, counted from 0, relative to its speed at the product's noise limit. "+
			"It can be above 1, and that of a blocked fan does not change. Absent if the GPU has no fan.",
		"Of the whole GPU.",
		"fan",
	)

	return func(w *metricWriter, g *gpuView) {
		for _, f := range g.Readings.Fans {
			w.add(speed, g.labels.extend("fan", strconv.Itoa(f.Index)), f.Speed)
		}
	}
}
