package advise

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// Facts are what we decide by whether a workload needs its whole GPU. They come from an Advisor,
// which sees every Snapshot, or from a history that was kept elsewhere.
type Facts struct {
	Evidence     *Evidence
	OptedOut     bool
	Shared       bool // by several containers
	MultiGPU     bool // its pod holds others, too, or is part of a job that does
	EndsByItself bool // its pods end when their work is done, see EndsByItself
	// Job is a sentence on that job. If it is empty, we use a general one.
	Job            string
	NVLink         bool // data was exchanged over it
	NVLinkUnread   bool // its traffic could not be read for some of the time
	Graphics       bool // a graphics process ran
	GraphicsUnread bool // the GPU can draw, and its processes could not be read
	Preallocated   bool // a framework took nearly all memory at its start
	MemoryUnread   bool // its use could not be read for some of the time
}

// Choose returns what is recommended for a whole GPU that is held. It reads the GPU's profiles, its
// number of SMs, its current and pending MIG mode, and its total memory. Unlike an Advisor, it keeps
// no previous answer.
func Choose(g *gpu.GPU, f *Facts, o Options) Recommendation {
	r := Recommendation{
		GPU:      g.UUID,
		Index:    g.Index,
		Model:    g.Name,
		Action:   ActionKeep,
		Evidence: f.Evidence,
		job:      f.Job,
	}
	current := wholeCapacity(g)
	f.Evidence.countEngines(current)
	f.Evidence.requests.closed = f.EndsByItself

	if r.Reason = f.disqualified(g, current, o); r.Reason == ReasonNone {
		trials := tryProfiles(g, f.Evidence, current, limits{strict: o.Strict, stretch: o.MaxStretch}, o)
		decided := requireStart(decide(trials, f, current, o), f.Evidence)

		r.Action = decided.Action
		r.Reason = decided.Reason
		r.Recommended = decided.Profile

		for i := range trials {
			if trials[i].profile.Name == r.Recommended {
				r.predict(&trials[i], o)
			}
		}
	}

	r.Explanation = r.explain(o) + r.serverAdvice()

	return r
}

// disqualified returns why a whole GPU stays as it is whatever its load; ReasonNone if nothing
// forbids a slice.
func (f *Facts) disqualified(g *gpu.GPU, current capacity, o Options) Reason {
	switch {
	case f.OptedOut:
		return ReasonOptedOut
	case len(g.Profiles) == 0 || !g.MIG.Enabled.Present() || current.sms == 0 || current.memorySlices == 0:
		return ReasonNoMIG
	case f.Shared:
		return ReasonShared
	case f.MultiGPU:
		return ReasonMultiGPU
	case g.MIG.Pending.Or(false) && !g.MIG.Enabled.Or(false):
		return ReasonModePending
	case f.Evidence.ObservedHours < o.MinEvidence.Hours():
		return ReasonLittleEvidence
	case f.Evidence.CoverageRatio < minCoverage:
		return ReasonLowCoverage
	case f.MemoryUnread:
		return ReasonMemoryUnread
	case f.NVLink:
		return ReasonNVLink
	case f.NVLinkUnread:
		return ReasonNVLinkUnread
	case f.Graphics:
		return ReasonGraphics
	case f.GraphicsUnread:
		return ReasonGraphicsUnread
	case f.Preallocated:
		return ReasonPreallocated
	}

	return ReasonNone
}

// tryProfiles tries every profile that is smaller than the current device, the smallest first.
func tryProfiles(g *gpu.GPU, e *Evidence, current capacity, limits limits, o Options) []trial {
	var trials []trial
	for _, p := range smallerProfiles(g, current) {
		trials = append(trials, tryProfile(e, p, current, limits, o))
	}

	return trials
}

// mediaNames returns the names of the media engines in Evidence, in the order of their kinds.
func mediaNames() [mediaKinds]string {
	return [mediaKinds]string{"encoder", "decoder", "jpeg", "ofa"}
}
