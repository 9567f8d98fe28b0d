package fleet

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// advice is the last answer of the right-sizing advisor on a GPU's node, other than that it has too little
// evidence, in the last 26 hours: without a state folder, an advisor has none for a day after a restart, and
// of a GPU that nothing holds it says nothing. The advisor has seen every poll of the workload, also its
// starts, so it has the last word. The zero advice means that no advisor has an answer.
type advice struct {
	at      time.Time     // when it was scraped last
	profile string        // the profile that it recommends; empty if it recommends none
	reason  advise.Reason // why it recommends none
	// lapsed says that it was about another workload, or may have been, and there is none about the one that
	// was there last. Then it counts no more, but an advisor may refuse what the history cannot show.
	lapsed bool
}

// queryAdvice queries the advisors' answers: those that were scraped last.
func (q *querier) queryAdvice() {
	q.facts(q.dialect.advice, func(h *history, row *model.Sample) {
		at := time.Unix(int64(row.Value), 0)
		if at.After(h.advice.at) {
			h.advice = advice{
				at:      at,
				profile: string(row.Metric["recommended_profile"]),
				reason:  advise.Reason(row.Metric["reason"]),
			}
		}
	})
}

// lapseAdvice drops the advisor's last answer if what held the GPU then is not known to be what held it last.
func (h *history) lapseAdvice() {
	if !h.advice.isKnown() {
		return
	}

	at := int(h.advice.at.Sub(h.start) / step)
	at = min(at, len(h.held)-1)

	// What has the GPU now may have no name, or none yet. If several hold it, the answer is about that.
	hadOthers := !h.shared && h.last != nil && h.last.others != nil && at >= 0 && h.last.others[at]
	if h.isAdviceNew() && !hadOthers {
		return
	}

	if h.last == nil || h.last.own == nil || at < 0 || !h.last.own[at] || h.last.others[at] {
		h.advice = advice{lapsed: true}
	}
}

// isAdviceNew reports whether the advisor's answer was scraped in the last steps: then the GPU is there, and
// not in MIG mode.
func (h *history) isAdviceNew() bool {
	const lately = 2 // steps

	return h.advice.isKnown() && int(h.advice.at.Sub(h.start)/step) >= len(h.held)-lately
}

// isKnown reports whether there is an answer.
func (said advice) isKnown() bool { return said.profile != "" || said.reason != "" }

// followAdvice replaces the answer by the history with the answer of the node's advisor, if that has
// one, unless the history refuses a slice by evidence that the advisor may lack.
func (g *GPU) followAdvice(said advice, o *Options) {
	switch {
	case !said.isKnown():
		return
	case said.knowsSlice() && g.needsMore(said, o):
		// For a smaller profile the advisor has checked the media engines.
		g.NotChecked = g.NotChecked && (said.profile == "" || strings.Contains(said.profile, "+"))

		return
	case said.profile != "":
		g.takeProfile(said.profile)
	case said.knowsSlice():
		g.takeUnnamed(said.reason)
	case g.Action == advise.ActionShare && g.Reason == said.reason: // they agree
	default:
		if said.reason == advise.ReasonNoGain {
			g.fits = g.Profile
			g.fitsIsDoubtful = g.Provisional
			g.fitsNotChecked = g.NotChecked
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

// knowsSlice reports whether the advisor knows a slice that would do. It names its profile only if the
// answer is final.
func (said advice) knowsSlice() bool {
	return said.profile != "" || said.reason == advise.ReasonProvisional ||
		said.reason == advise.ReasonMediaNotChecked
}

// knowsStart reports whether the advisor has seen a start, and the history's own profile counts beside its
// answer: before that, it recommends no slice. Of an answer that is not final the profile is the advisor's.
func (said advice) knowsStart() bool { return said.profile != "" || said.reason == advise.ReasonNoGain }

// needsMore reports whether the history shows that the workload needs the GPU, or a larger slice than the
// one that the advisor recommends, by evidence that the advisor may lack: the history reaches back further
// than the advisor remembers, the options are stricter than the advisor's probably are, or the history has
// the use of media engines that the advisor cannot read.
func (g *GPU) needsMore(said advice, o *Options) bool {
	knowsMore := o.Window > advisorWindow || isStricter(o.Advise)

	switch {
	case g.Action == advise.ActionSlice:
		return knowsMore && g.isLarger(said.profile)
	case g.byLabel:
		return false
	case said.reason == advise.ReasonMediaNotChecked && g.Reason == advise.ReasonMedia:
		return true
	}

	return knowsMore && slices.Contains(refusalsByWork(), g.Reason) && !(g.hadOthers && isOfAllHolders(g.Reason))
}

// isOfAllHolders reports whether a reason comes from what the history has of a GPU for the whole window, not
// for single steps: it may come from any of the GPU's holders.
func isOfAllHolders(reason advise.Reason) bool {
	switch reason {
	case advise.ReasonMedia, advise.ReasonNVLink, advise.ReasonMultiGPU, advise.ReasonPreallocated:
		return true
	}

	return false
}

// isLarger reports whether a GPU's profile is known to have more than another one of its model: memory, SMs,
// or the media engines of an attribute such as +me.
func (g *GPU) isLarger(than string) bool {
	own := g.sizeOf(g.Profile)
	other := g.sizeOf(than)

	return other > 0 && (own > other || own == other && g.Profile != than && strings.Contains(g.Profile, "+"))
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

// takeUnnamed takes the advisor's answer that a slice would do, which is not final for a reason. Its
// series do not name the profile. If the history has none either, the profile is unknown.
func (g *GPU) takeUnnamed(reason advise.Reason) {
	const known = "the right-sizing advisor of its node knows a slice that would do"

	isUnchecked := reason == advise.ReasonMediaNotChecked

	if g.Action != advise.ActionSlice {
		g.clearPrediction()
		g.Action = advise.ActionSlice
		g.Reason = advise.ReasonNone
		g.Explanation = known

		if isUnchecked {
			g.Explanation += " if media engines that it lacks are not used, and cannot read their use"
		}

		g.Explanation += "; ask migctl recommend there"
	}

	g.NotChecked = g.NotChecked || isUnchecked
	g.Provisional = g.Provisional || !isUnchecked
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
