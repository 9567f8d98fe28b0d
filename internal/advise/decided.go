package advise

// Decided is the figure of the recommended profile that is nearest to its limit: the one that a smaller profile, or
// more work, passes first.
type Decided struct {
	Figure string  `json:"figure"` // FigureStretch, FigureBusy or FigureMemory
	Ratio  float64 `json:"ratio"`
	Limit  float64 `json:"limit"`
}

// The figures: the stretch of requests at p95, of which the limit is the pod's or the node's; p99 of busy time in the
// slice, where it stretches requests; and the share of the slice's memory that the workload needs with headroom and
// growth.
const (
	FigureStretch = "stretch"
	FigureBusy    = "busy"
	FigureMemory  = "memory"
)

// decidedBy returns the figure of a trial that is nearest to its limit.
func (t *trial) decidedBy(e *Evidence, limits limits, o Options) Decided {
	best := Decided{FigureMemory, round3(needBytes(e, o.Headroom) / float64(t.profile.MemoryBytes)), 1}
	if e.stretchUnknown() {
		return best
	}

	stretch := t.p95.deciding(limits.strict)
	others := []Decided{{FigureStretch, round3(stretch), limits.stretch}}
	if stretch > unchangedStretch {
		others = append(others, Decided{FigureBusy, round3(e.BusyP99 * stretch), o.TargetBusy})
	}
	for _, d := range others {
		if d.Ratio/d.Limit > best.Ratio/best.Limit {
			best = d
		}
	}
	return best
}
