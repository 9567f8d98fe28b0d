package advise

import "math"

// Decided is the figure of the recommended profile that is nearest to its limit. It is the one that a
// smaller profile, or more work, would pass first.
type Decided struct {
	Figure string  `json:"figure"` // FigureLatency or one of the other figures
	Ratio  float64 `json:"ratio"`
	Limit  float64 `json:"limit"`
}

// The figures. The limit of the first three is how much longer work may take, by the pod or the node.
const (
	FigureLatency    = "latency"    // how many times as long requests take at p95
	FigureThroughput = "throughput" // how many times as long work takes, if it answers no requests
	FigureStretch    = "stretch"    // how many times as long kernels take
	// FigureBusy is busy time in the slice, at p99 or in the busiest ten minutes, if the slice
	// stretches kernels.
	FigureBusy = "busy"
	// FigureMemory is the share of the slice's memory that is needed, with headroom and growth.
	FigureMemory = "memory"
	// FigureMedia is the share of the slice's media engines of a kind that is needed.
	FigureMedia = "media"
)

// decidedBy returns the figure of a trial that is nearest to its limit.
func (t *trial) decidedBy(e *Evidence, limits limits, o Options) Decided {
	memory := needBytes(e, o.Headroom) / float64(t.profile.MemoryBytes)
	figures := []Decided{{FigureMemory, round3(memory), 1}}

	needs := e.engineNeeds()
	for kind, have := range countsOf(t.profile.Engines) {
		if needs[kind] > 0 && have > 0 {
			figures = append(figures, Decided{FigureMedia, round3(needs[kind] / float64(have)), 1})
		}
	}

	if !e.stretchUnknown() {
		figures = append(figures, t.timeFigures(e, limits, o)...)
	}

	nearest := figures[0]
	for _, d := range figures[1:] {
		if d.Ratio/d.Limit > nearest.Ratio/nearest.Limit {
			nearest = d
		}
	}

	return nearest
}

// timeFigures returns the figures of a trial on how much longer work takes, and whether the slice keeps
// up with it.
func (t *trial) timeFigures(e *Evidence, limits limits, o Options) []Decided {
	stretch := t.p95.deciding(limits.strict)
	figure := FigureStretch

	if e.requests.closed {
		figure = FigureThroughput
	}

	list := []Decided{{figure, round3(stretch), limits.stretch}}
	if latency, known := t.latency.deciding(limits.strict); known {
		list = append(list, Decided{FigureLatency, round3(latency), limits.stretch})
	}

	if stretch > unchangedStretch {
		if most := t.mostBusy(e, limits, o); !math.IsInf(most, 1) {
			list = append(list, Decided{FigureBusy, round3(t.busyP99), most})
		}

		list = append(list, Decided{FigureBusy, round3(t.busy10), 1})
	}

	return list
}
