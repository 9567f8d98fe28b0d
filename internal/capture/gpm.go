package capture

import "github.com/mig-exporter/mig-exporter/internal/nvmlsource"

// The contents of a sample are opaque. So the samples of a replay are empty, and we record the
// metrics of windows, with the entity of the window's last sample.

// gpmSample is what a sample was last taken of. It belongs to one reading at a time.
type gpmSample struct {
	entity *entity // nil before a sample was taken
	window uint64  // the GPU instance of the entity, or NoInstance for the entity as a whole
}

// sampleIn returns the sample at an index among those that a call takes.
func sampleIn(c nvmlsource.Call, index int) *gpmSample { return c.Samples[index].(*gpmSample) }

// fillMetrics records or replays each metric separately: which metrics are computed together
// varies.
func fillMetrics(e *entity, c nvmlsource.Call) {
	for i := range c.Metrics {
		m := &c.Metrics[i]
		call := callOf(c.Function, windowNames.name(c.Args[0]), metricNames.name(uint64(m.ID)))
		m.Value, m.Return = recordOrReplayPart(e, call, m.Value, m.Return)
	}
}
