package collector

import "github.com/mig-exporter/mig-exporter/internal/gpu"

func newClocks(c *catalog) collectFunc {
	const wide = "GPU-wide: all instances run at the same clocks."
	hertz := c.newFamily(
		"nvidia_gpu_clock_hertz",
		"Current clock of a domain: sm, memory, graphics or video.",
		wide,
		"domain",
	)
	seconds := c.newFamily(
		"nvidia_gpu_clock_event_seconds_total",
		"Time for which clocks were held down for a reason that slows the GPU; its rate is the part of "+
			"the time. By the reasons at each reading.",
		wide,
		"reason",
	)
	state := newPerformanceState(c, wide)

	return func(w *metricWriter, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			state(w, g)

			clocks := g.Readings.ClockHertz
			for _, one := range []struct {
				domain string
				value  gpu.Opt[float64]
			}{{"sm", clocks.SM}, {"memory", clocks.Memory}, {"graphics", clocks.Graphics}, {"video", clocks.Video}} {
				if one.value.Present() {
					addOpt(w, hertz, g.labels.extend("domain", one.domain), one.value)
				}
			}

			for _, e := range g.Totals.ClockEvents {
				if isThrottling(e.Reason) {
					w.addCounter(seconds, g.labels.extend("reason", e.Reason), e.Seconds)
				}
			}
		}
	}
}

// isThrottling reports whether a clock event slows down a GPU that has work. Idle clocks and clocks
// set by an operator do not.
func isThrottling(reason string) bool {
	switch reason {
	case "gpu_idle", "applications_clocks_setting", "display_clock_setting":
		return false
	}

	return true
}
