package fleet

import (
	"slices"
	"time"

	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// The reasons that the series of an advisor have, besides those of package advise.
const (
	reasonProvisional     advise.Reason = "provisional"
	reasonMediaNotChecked advise.Reason = "media-not-checked"
)

// advised is what the right-sizing advisor of a GPU's node says of it at the end of the window. It
// has seen every poll of the workload, its starts included, and so has the last word. The zero
// value: no advisor has an answer.
type advised struct {
	profile string        // of a candidate
	reason  advise.Reason // for which the GPU is no candidate
}

// queryAdvice asks what advisors say.
func (q *querier) queryAdvice() {
	q.facts(q.dialect.advised, func(h *history, row *model.Sample) {
		h.advised.profile = string(row.Metric["recommended_profile"])
		h.advised.reason = advise.Reason(row.Metric["reason"])
	})
}

// follow replaces the answer of the history by that of the node's advisor, if there is one. A
// refusal by the history of what the advisor does not know stands: of days that it has forgotten,
// or by options that are stricter than its own can be expected to be.
func (g *GPU) follow(said advised, o *Options) {
	knowsMore := o.Window > advisorWindow || isStricter(o.Advise)
	refuses := knowsMore && g.Action != advise.ActionSlice &&
		slices.Contains(refusalsByWork(), g.Reason) &&
		!g.byLabel

	switch {
	case said.profile != "" && refuses:
		return
	case said.profile != "":
		g.followCandidate(said)
	case said.reason == "", said.reason == advise.ReasonLittleEvidence:
		return
	case said.reason == reasonProvisional:
		g.followProvisional()
	case g.Action == advise.ActionShare && g.Reason == said.reason:
	default:
		if said.reason == advise.ReasonNoGain {
			g.fits = g.Profile
		}

		g.Action = advise.ActionKeep
		g.Reason = said.reason
		g.Explanation = ReasonText(said.reason, o.Advise)

		if said.reason == advise.ReasonNoActivity || said.reason == advise.ReasonNoBusyTime {
			g.Action = advise.ActionUnknown
		}

		g.clearPrediction()
	}

	g.Advised = true
}

// followCandidate takes the profile that the advisor recommends. One that the model's table lacks
// cannot be packed.
func (g *GPU) followCandidate(said advised) {
	if g.Action != advise.ActionSlice || g.Profile != said.profile {
		g.clearPrediction() // that of the history is of another profile
		g.Explanation = "the right-sizing advisor of its node recommends " + said.profile
	}

	if slices.ContainsFunc(g.model.Profiles, func(p gpu.Profile) bool {
		return p.Name == said.profile
	}) {
		g.Profile = said.profile
	}

	g.Action = advise.ActionSlice
	g.Reason = advise.ReasonNone
	g.Provisional = false
	g.NotChecked = false
}

// followProvisional says that a slice would do, by the advisor's evidence of less than seven days.
// Its series do not name the profile: if the history has none either, it is unknown.
func (g *GPU) followProvisional() {
	if g.Action != advise.ActionSlice {
		g.clearPrediction()
		g.Action = advise.ActionSlice
		g.Reason = advise.ReasonNone
		g.Explanation = "the right-sizing advisor of its node knows a slice that would " +
			"do; ask migctl recommend there"
	}

	g.Provisional = true
}

// advisorWindow is for how long an advisor remembers the most that a workload did.
const advisorWindow = 8 * 24 * time.Hour

// isStricter reports whether options refuse more than those that an advisor has by default.
func isStricter(o advise.Options) bool {
	usual := advise.DefaultOptions()

	return o.Strict && !usual.Strict || o.MaxStretch < usual.MaxStretch ||
		o.Headroom > usual.Headroom ||
		o.TargetBusy < usual.TargetBusy
}

// refusalsByWork are the reasons for which a GPU stays as it is that follow from what its workload
// did.
func refusalsByWork() []advise.Reason {
	return []advise.Reason{
		advise.ReasonMemory,
		advise.ReasonMedia,
		advise.ReasonStretch,
		advise.ReasonBusy,
		advise.ReasonPreallocated,
		advise.ReasonNVLink,
		advise.ReasonMultiGPU,
	}
}
