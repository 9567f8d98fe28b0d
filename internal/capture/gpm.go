package capture

import "github.com/mig-exporter/mig-exporter/internal/nvmlsource"

// The contents of a sample are opaque. So the samples of a replay are empty, and the metrics of
// windows are recorded, with the entity of the window's last sample.

// gpmSample is what a sample was last taken of. It belongs to one reading at a time.
type gpmSample struct {
	of     *entity // nil before a sample was taken
	window uint64  // the GPU instance of the entity, or the entity as a whole
}

// sampleIn returns a sample that a call takes.
func sampleIn(c nvmlsource.Call, at int) *gpmSample { return c.Samples[at].(*gpmSample) }

// fillMetrics records or replays each metric separately: which metrics are computed together
// varies.
func fillMetrics(e *entity, c nvmlsource.Call) {
	for i := range c.Metrics {
		m := &c.Metrics[i]
		call := callOf(c.Function, windowNames.name(c.Args[0]), metricNames.name(uint64(m.ID)))
		m.Value, m.Return = part(e, call, m.Value, m.Return)
	}
}
