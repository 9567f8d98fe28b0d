package migctl

import (
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/advise"
)

// serverText says what an inference server reserves, and what of it is used.
func serverText(s *advise.ServerEvidence) string {
	t := "reserves " + gibText(s.Reservation)
	if s.Weights > 0 {
		from := "by the pod's annotation"
		if s.WeightsFrom == advise.WeightsFromStart {
			from = "seen at its start"
		}

		t += fmt.Sprintf(
			": weights %s (%s), %s taken for activations, cache %s",
			gibText(s.Weights),
			from,
			gibText(s.Activations),
			gibText(s.CacheBytes),
		)
	} else {
		t += "; the memory of its model's weights is not known"
	}

	if s.AskedHours == 0 {
		return t + "; how much of its cache is used is not known"
	}

	return t + fmt.Sprintf(
		"; by its own word, of %.1f h, at most %s of its cache is used, %.0f requests run and %.0f "+
			"wait",
		s.AskedHours,
		shareText(s.CacheUse),
		s.Running,
		s.Waiting,
	)
}

// predictedServerText says how to start a server in a slice, and what its cache is there.
func predictedServerText(s *advise.PredictedServer) string {
	t := fmt.Sprintf(
		"start it with %s=%.2f: %s for its cache",
		s.Flag,
		s.Value,
		gibText(s.CacheBytes),
	)
	if s.CacheTokens > 0 {
		t += fmt.Sprintf(", room for %.0f tokens", s.CacheTokens)
	}

	return t + fmt.Sprintf(
		", at most %s of it used, %.0f requests wait",
		shareText(s.CacheUse),
		s.Waiting,
	)
}

// serverNote says how an inference server is to be started in its slice; empty if nothing is known
// of one.
func serverNote(r *advise.Recommendation) string {
	if r.Predicted == nil || r.Predicted.Server == nil {
		return ""
	}

	s := r.Predicted.Server

	return fmt.Sprintf(
		"Its server reserves a fraction of its device. In the same change, set %s to %.2f, of %s.",
		s.Flag,
		s.Value,
		r.Recommended,
	)
}
