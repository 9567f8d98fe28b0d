package migctl

import (
	"fmt"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// incomplete says what makes an answer provisional; incompleteBecause follows it.
const incomplete = "by evidence that is not complete yet"

// week is how long a workload must be known for an answer that is not provisional.
const week = 7 * 24 * time.Hour

// incompleteBecause says what the evidence of provisional answers lacks, in brackets. It is empty if
// they lack different things: --explain has that of each.
func incompleteBecause(report *advise.Report, indexes []int) string {
	why := ""

	for _, index := range indexes {
		r := report.OfWhole(index)
		if r == nil {
			return ""
		}

		lacks := lackOfEvidence(report, r)
		if why != "" && lacks != why {
			return ""
		}

		why = lacks
	}

	return " (" + why + ")"
}

// lackOfEvidence says why an answer is provisional, as far as the report shows it: if it shows
// several possible causes, all of them.
func lackOfEvidence(report *advise.Report, r *advise.Recommendation) string {
	e := r.Evidence
	if e != nil && report.Time.Sub(e.Since) < week {
		return "less than seven days"
	}

	possible := []string{"fewer than five of the last eight days were observed"}

	if e != nil && e.ActivityHours > 0 {
		sample := fmt.Sprintf("SM activity was read in %.1f hours of busy time alone", e.ActivityHours)
		possible = append(possible, sample)
	}

	// The latency of a whole GPU's requests is absent if we don't know it, and if there are none.
	isWhole := !r.Instance.Present()
	if isWhole && (r.Predicted == nil || r.Predicted.Latency == advise.Latency{}) {
		possible = append(possible, "no hour has shown how long requests wait")
	}

	if isWhole && report.SingleStrategy {
		possible = append(possible, "another GPU of the node lacks evidence, and all get slices at once")
	}

	last := len(possible) - 1
	if last == 0 {
		return possible[0]
	}

	return strings.Join(possible[:last], ", ") + ", or " + possible[last]
}

// writeProvisional names the GPUs with a provisional answer, which the packing leaves out.
// nothingMoves says that no other workload is to move.
func writeProvisional(p *page, report *advise.Report, indexes []int, nothingMoves bool) {
	what := nodedoc.Count(len(indexes), "slice", "slices")
	gpus := "for GPU " + joinNumbers(indexes)
	why := incomplete + incompleteBecause(report, indexes)

	if nothingMoves {
		are := nodedoc.Count(len(indexes), "slice is", "slices are")
		p.paragraph("", yellow,
			fmt.Sprintf("No workload is to move yet: %s recommended provisionally, %s, %s.", are, why, gpus))

		return
	}

	p.paragraph("", yellow,
		fmt.Sprintf("Recommended provisionally, %s, and not moved yet: %s, %s.", why, what, gpus))
}
