package advise

import "math"

// Decided is the figure of the recommended profile that is nearest to its limit: the one that a
// smaller profile, or more work, passes first.
type Decided struct {
	// FigureLatency, FigureThroughput, FigureStretch, FigureBusy, FigureMemory, FigureMedia
	Figure string  `json:"figure"`
	Ratio  float64 `json:"ratio"`
	Limit  float64 `json:"limit"`
}

// The figures: the latency of requests at p95, or of what answers none the time for its work, or
// where it is not known which of them counts the stretch of kernels, of which the limit is the
// pod's or the node's; busy time in the slice, at p99 or in the busiest ten minutes, where it
// stretches requests; the share of the slice's memory that the workload needs with headroom and
// growth; and the share of the slice's media engines of a kind that it needs.
const (
	FigureLatency    = "latency"
	FigureThroughput = "throughput"
	FigureStretch    = "stretch"
	FigureBusy       = "busy"
	FigureMemory     = "memory"
	FigureMedia      = "media"
)

// decidedBy returns the figure of a trial that is nearest to its limit.
func (t *trial) decidedBy(e *Evidence, limits limits, o Options) Decided {
	best := Decided{
		FigureMemory,
		round3(needBytes(e, o.Headroom) / float64(t.profile.MemoryBytes)),
		1,
	}
	var others []Decided

	needs := e.engineNeeds()
	for kind, have := range countsOf(t.profile.Engines) {
		if needs[kind] > 0 && have > 0 {
			others = append(others, Decided{FigureMedia, round3(needs[kind] / float64(have)), 1})
		}
	}

	if !e.stretchUnknown() {
		others = append(others, t.decidedByTime(e, limits, o)...)
	}

	for _, d := range others {
		if d.Ratio/d.Limit > best.Ratio/best.Limit {
			best = d
		}
	}

	return best
}

// decidedByTime returns the figures of a trial that say how much longer its work takes, and whether
// it keeps up.
func (t *trial) decidedByTime(e *Evidence, limits limits, o Options) []Decided {
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
