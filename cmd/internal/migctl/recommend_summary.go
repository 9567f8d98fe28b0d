package migctl

import (
	"fmt"
	"math"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/fleet"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// writeSummary says what the recommendations come to.
func writeSummary(p *page, report *advise.Report, prices []fleet.Price) {
	p.line()

	packing := report.Packing
	switch {
	case packing == nil:
		p.line(text("No workload is to move from a whole GPU to a slice."))
	case len(packing.GPUs) == 0:
		p.para(
			"",
			yellow,
			"The recommended slices were not placed: they do not fit on GPUs that are free or become "+
				"free, or the search was stopped at its limit.",
		)
	default:
		writePacking(p, packing)
		writeRoom(p, report)
		writePrices(p, report, prices)
	}

	provisional, left := unplaced(report)
	if len(provisional) > 0 {
		p.para(
			"",
			yellow,
			fmt.Sprintf(
				"Provisionally recommended and not moved yet, with less than seven days of "+
					"evidence: %s, for GPU %s.",
				nodedoc.Count(len(provisional), "slice", "slices"),
				joinNumbers(provisional),
			),
		)
	}

	if len(left) > 0 {
		p.para(
			"",
			yellow,
			fmt.Sprintf("Not moved, although a slice would do: GPU %s.", joinNumbers(left)),
		)
	}
}

func writePacking(p *page, packing *advise.Packing) {
	freed := "none"
	if len(packing.FreedGPUs) > 0 {
		freed = "GPU " + joinNumbers(packing.FreedGPUs)
	}

	t := fmt.Sprintf(
		"The workloads to move hold %s now and need %d afterwards, not counting GPUs in MIG mode. Freed: %s.",
		nodedoc.Count(packing.InUse, "GPU", "GPUs"),
		packing.Needed,
		freed,
	)
	if !packing.Proven {
		t += " Not proven optimal: the search was stopped at its limit, or a model was left out."
	}

	p.para("", bold, t)
}

// writeRoom names the GPUs whose move frees none, with what it is good for.
func writeRoom(p *page, report *advise.Report) {
	gpus := map[string][]int{}

	for i := range report.Devices {
		if r := &report.Devices[i]; r.Gain != nil && r.Gain.FreedGPUs == 0 {
			gpus[r.Gain.String()] = append(gpus[r.Gain.String()], r.Index)
		}
	}

	for _, gain := range sortedKeys(gpus) {
		p.para("", plain, fmt.Sprintf("The move from GPU %s %s.", joinNumbers(gpus[gain]), gain))
	}
}

// hoursPerWeek is how long a GPU is paid for.
const hoursPerWeek = 7 * 24

// writePrices says what the GPUs cost that the node has free afterwards, on balance: a free one
// that gets slices is not free any more.
func writePrices(p *page, report *advise.Report, prices []fleet.Price) {
	if len(prices) == 0 {
		return
	}

	freed := map[string]float64{}

	for i := range report.Devices {
		if r := &report.Devices[i]; r.Gain != nil {
			freed[r.Model] += r.Gain.FreedGPUs
		}
	}

	hour := 0.
	priced := 0.
	unpriced := 0.

	for _, model := range sortedKeys(freed) {
		count := math.Round(freed[model])

		price, ok := fleet.PriceOf(prices, model)
		if !ok {
			unpriced += count
			continue
		}

		hour += count * price.Hour
		priced += count
	}

	if priced > 0 {
		p.para("", bold, fmt.Sprintf("On balance %s: %.2f an hour, %.2f a week.",
			nodedoc.Count(int(priced), "GPU becomes free", "GPUs become free"), hour, hour*hoursPerWeek))
	}

	if unpriced > 0 {
		p.para("", yellow, fmt.Sprintf("%s without a --price.",
			nodedoc.Count(int(unpriced), "GPU becomes free", "GPUs become free")))
	}
}
