package advise

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// Facts are what decides over a whole GPU that is held. They come from every Snapshot, or from
// another history of the GPU.
type Facts struct {
	Evidence *Evidence
	OptedOut bool
	Shared   bool // by several containers
	MultiGPU bool // its pod holds others, too, or is part of a job that does
	// Job is a sentence on that job; empty if there is only the general one.
	Job    string
	NVLink bool // data was exchanged over it
	// NVLinkUnread: its traffic could not be read.
	NVLinkUnread bool
	Graphics     bool // a graphics process ran
	// GraphicsUnread: the GPU can draw, and its processes could not be read.
	GraphicsUnread bool
	// Preallocated: a framework took nearly all memory at its start.
	Preallocated bool
	MemoryUnread bool
}

// Choose returns what is recommended for a whole GPU that is held. Of the GPU it uses the profiles,
// the number of SMs, the MIG mode, current and pending, and the total memory. Unlike an Advisor, it
// keeps no previous answer.
func Choose(g *gpu.GPU, f *Facts, o Options) Recommendation {
	r := Recommendation{
		GPU:      g.UUID,
		Index:    g.Index,
		Model:    g.Name,
		Action:   ActionKeep,
		Evidence: f.Evidence,
		job:      f.Job,
	}
	of := wholeOf(g)
	f.Evidence.countEngines(of)

	if r.Reason = f.disqualified(g, of, o); r.Reason == ReasonNone {
		trials := tryAll(g, f.Evidence, of, limits{strict: o.Strict, stretch: o.MaxStretch}, o)
		decided := withStart(decide(trials, f, of, o), f.Evidence)

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

// disqualified returns why a whole GPU stays as it is whatever its load.
func (f *Facts) disqualified(g *gpu.GPU, of capacity, o Options) Reason {
	switch {
	case f.OptedOut:
		return ReasonOptedOut
	case len(g.Profiles) == 0 || !g.MIG.Enabled.Present() || of.sms == 0 || of.memorySlices == 0:
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

// tryAll tries every profile that is smaller than a whole GPU, the smallest first.
func tryAll(g *gpu.GPU, e *Evidence, of capacity, limits limits, o Options) []trial {
	var trials []trial
	for _, p := range smallerProfiles(g, of) {
		trials = append(trials, try(e, p, of, limits, o))
	}

	return trials
}

// mediaNames returns the names of the media engines in Evidence, in the order of their kinds.
func mediaNames() [mediaKinds]string {
	return [mediaKinds]string{"encoder", "decoder", "jpeg", "ofa"}
}
