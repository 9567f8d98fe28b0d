package advise

import (
	"cmp"
	"math"
	"slices"
)

// Decided is the figure of the recommended profile that is nearest to its limit. It is the one that a
// smaller profile, or more work, would pass first.
type Decided struct {
	Figure string  `json:"figure"` // FigureLatency or one of the other figures
	Ratio  float64 `json:"ratio"`
	Limit  float64 `json:"limit"`
}

// The figures. The limits of latency and stretch come from the pod or the node.
const (
	FigureLatency = "latency" // how many times as long requests take at p95
	// FigureThroughput is how many times as long all work takes: of a job or a client that waits for each
	// step, or of what the slice has no time for.
	FigureThroughput = "throughput"
	FigureStretch    = "stretch" // how many times as long kernels take
	// FigureBusy is busy time in the slice, at p99 or in the busiest ten minutes, if the slice
	// stretches kernels.
	FigureBusy = "busy"
	// FigureMemory is the share of the slice's memory that is needed, with headroom and growth.
	FigureMemory = "memory"
	// FigureMedia is the share of the slice's media engines of a kind that is needed.
	FigureMedia = "media"
)

// nearFigure is a figure with how near it is to its limit: 1 at the limit.
type nearFigure struct {
	Decided
	nearness float64
}

// figureOf returns a figure whose nearness is its share of the limit.
func figureOf(name string, ratio, limit float64) nearFigure {
	return nearFigure{Decided{name, round3(ratio), limit}, ratio / limit}
}

// throughputFigure returns the figure of a throughput that must stay above a share of today's: how many
// times as long the same work takes. How much of the loss that is allowed it takes is its nearness.
func throughputFigure(left, least float64) nearFigure {
	return nearFigure{
		Decided{FigureThroughput, round3(1 / max(left, 1e-3)), round3(1 / least)},
		(1 - left) / (1 - least),
	}
}

// decidedBy returns the figure of a trial that is nearest to its limit.
func (t *trial) decidedBy(e *Evidence, limits limits, o Options) Decided {
	size := float64(t.profile.MemoryBytes)
	figures := []nearFigure{figureOf(FigureMemory, needBytes(e, o.Headroom)/size, 1)}

	if e.Server.isKnown() {
		figures = append(figures, figureOf(FigureMemory, e.Server.needAt(max(1, t.served))/size, mostReserved))
	}

	needs := e.engineNeeds()
	for kind, have := range countsOf(t.profile.Engines) {
		if needs[kind] > 0 && have > 0 {
			figures = append(figures, figureOf(FigureMedia, needs[kind]/float64(have), 1))
		}
	}

	if !e.stretchUnknown() {
		figures = append(figures, t.timeFigures(e, limits, o)...)
	}

	nearest := slices.MaxFunc(figures, func(a, b nearFigure) int { return cmp.Compare(a.nearness, b.nearness) })

	return nearest.Decided
}

// timeFigures returns the figures of a trial on how much longer work takes, and whether the slice keeps
// up with it.
func (t *trial) timeFigures(e *Evidence, limits limits, o Options) []nearFigure {
	stretch := t.p95.deciding(limits.strict)

	list := []nearFigure{figureOf(FigureStretch, stretch, limits.stretch)}
	if latency, known := t.latency.deciding(limits.strict); known {
		list = append(list, figureOf(FigureLatency, latency, limits.stretch))
	}

	if stretch <= unchangedStretch {
		return list
	}

	// A bound is at its limit, however far below that the busy time itself may be.
	most := t.mostBusy(e, limits, o)
	if !math.IsInf(most, 1) && BoundOfBusy(round3(t.busyP99)) != AtMost {
		list = append(list, figureOf(FigureBusy, t.busyP99, most))
	}

	list = append(list, figureOf(FigureBusy, t.busy10, 1), throughputFigure(t.kept, leastKept))
	if least := e.requests.leastWaiting(limits); least > 0 {
		list = append(list, throughputFigure(t.waiting, least))
	}

	return list
}
