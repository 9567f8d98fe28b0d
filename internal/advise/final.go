package advise

// Why a slice that would do is not final. Metrics show these as reasons beside those for which a GPU
// stays whole.
const (
	ReasonProvisional     Reason = "provisional"
	ReasonMediaNotChecked Reason = "media-not-checked"
)

// WhyNotFinal returns why a recommended change is not final, and so no candidate of metrics, alerts,
// packing and specs; ReasonNone if it is. If it is provisional, too, media engines are the reason:
// complete evidence comes by itself, and the answer would still not be final.
func WhyNotFinal(provisional, notChecked bool) Reason {
	switch {
	case notChecked:
		return ReasonMediaNotChecked
	case provisional:
		return ReasonProvisional
	}

	return ReasonNone
}

// WhyNotFinal returns why the recommendation is not final, see the function.
func (r *Recommendation) WhyNotFinal() Reason { return WhyNotFinal(r.Provisional, r.NotChecked) }
