package fleet

import (
	"slices"
	"time"

	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// advice is the answer of the right-sizing advisor on a GPU's node at the end of the window. The
// advisor has seen every poll of the workload, also its starts, so it has the last word. The zero
// advice means that no advisor has an answer.
type advice struct {
	profile string        // the profile that it recommends; empty if it recommends none
	reason  advise.Reason // why it recommends none
}

// queryAdvice queries the advisors' answers.
func (q *querier) queryAdvice() {
	q.facts(q.dialect.advice, func(h *history, row *model.Sample) {
		h.advice.profile = string(row.Metric["recommended_profile"])
		h.advice.reason = advise.Reason(row.Metric["reason"])
	})
}

// followAdvice replaces the answer by the history with the answer of the node's advisor, if that has
// one. But if the history refuses a slice by evidence that the advisor may lack, the refusal stands:
// the history reaches back further than the advisor remembers, or the options are stricter than the
// advisor's probably are.
func (g *GPU) followAdvice(said advice, o *Options) {
	knowsMore := o.Window > advisorWindow || isStricter(o.Advise)
	refuses := knowsMore && g.Action != advise.ActionSlice &&
		slices.Contains(refusalsByWork(), g.Reason) &&
		!g.byLabel

	switch {
	case said.profile != "" && refuses:
		return
	case said.profile != "":
		g.takeProfile(said.profile)
	case said.reason == "", said.reason == advise.ReasonLittleEvidence:
		return
	case said.reason == advise.ReasonProvisional:
		g.takeProvisional()
	case g.Action == advise.ActionShare && g.Reason == said.reason: // they agree
	default:
		if said.reason == advise.ReasonNoGain {
			g.fits = g.Profile
		}

		g.Action = advise.ActionKeep
		g.Reason = said.reason
		g.Explanation = ReasonText(said.reason, o.Advise)

		if said.reason == advise.ReasonNVLinkUnread { // the advisor's readings failed, not the history
			g.Explanation = said.reason.Summary(o.Advise)
		}

		switch said.reason {
		case advise.ReasonNoActivity, advise.ReasonNoBusyTime, advise.ReasonNVLinkUnread:
			g.Action = advise.ActionUnknown
		}

		g.clearPrediction()
	}

	g.Advised = true
}

// takeProfile takes the profile that the advisor recommends. If the table's model lacks it, we could
// not pack it: then the GPU gets a slice of an unknown profile.
func (g *GPU) takeProfile(profile string) {
	if g.Action != advise.ActionSlice || g.Profile != profile {
		g.clearPrediction() // the history's prediction is for another profile
		g.Explanation = "the right-sizing advisor of its node recommends " + profile
	}

	hasName := func(p gpu.Profile) bool { return p.Name == profile }
	if slices.ContainsFunc(g.model.Profiles, hasName) {
		g.Profile = profile
	}

	g.Action = advise.ActionSlice
	g.Reason = advise.ReasonNone
	g.Provisional = false
	g.NotChecked = false
}

// takeProvisional takes the advisor's answer that a slice would do, by evidence that is not
// complete yet. Its series do not name the profile. If the history has none either, the profile is unknown.
func (g *GPU) takeProvisional() {
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

// advisorWeek is for how long a workload must be known for an answer that is not provisional.
const advisorWeek = 7 * 24 * time.Hour

// isStricter reports whether options refuse more than an advisor's default options.
func isStricter(o advise.Options) bool {
	usual := advise.DefaultOptions()

	return o.Strict && !usual.Strict || o.MaxStretch < usual.MaxStretch ||
		o.Headroom > usual.Headroom ||
		o.TargetBusy < usual.TargetBusy
}

// refusalsByWork returns the reasons to keep a GPU whole that come from what its workload did, not
// from missing evidence.
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
