package collector

import "github.com/mig-exporter/mig-exporter/internal/gpu"

func newClocks(c *catalog) collectFunc {
	const wide = "GPU-wide: all instances run at the same clocks."
	hertz := c.family("nvidia_gpu_clock_hertz", "Current clock of a domain: sm, memory, graphics or video.", wide, "domain")
	active := c.family("nvidia_gpu_clock_event_active",
		"1 while clocks are held down for the reason, else 0, at the moment of the reading.", wide, "reason")
	seconds := c.family("nvidia_gpu_clock_event_seconds_total",
		"Time for which clocks were held down for the reason, by readings of nvidia_gpu_clock_event_active.", wide, "reason")
	state := newPerformanceState(c, wide)
	return func(k *sink, v *view) {
		for i := range v.gpus {
			g := &v.gpus[i]
			state(k, g)
			clocks := g.Readings.ClockHertz
			for _, one := range []struct {
				domain string
				value  gpu.Opt[float64]
			}{{"sm", clocks.SM}, {"memory", clocks.Memory}, {"graphics", clocks.Graphics}, {"video", clocks.Video}} {
				if one.value.Present() {
					addOpt(k, hertz, g.labels.extend("domain", one.domain), one.value)
				}
			}
			for _, e := range g.Totals.ClockEvents {
				l := g.labels.extend("reason", e.Reason)
				if g.Readings.ClockEvents.Present() { // the time goes on to count over a reading that failed
					k.flag(active, l, e.Active)
				}
				k.count(seconds, l, e.Seconds, g.heldSince)
			}
		}
	}
}
