package migctl

import (
	"fmt"
	"math"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/fleet"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// writeSummary says what the recommendations come to.
func writeSummary(p *page, report *advise.Report, prices []fleet.Price) {
	p.line()

	left := unplaced(report)
	unknown := unknownGPUs(report)
	provisional := left[advise.ReasonProvisional]
	packing := report.Packing

	switch {
	case packing == nil && len(provisional) > 0: // writeProvisional says so
	case packing == nil && len(left)+len(unknown) > 0:
		p.line(text("No workload is to move yet."))
	case packing == nil:
		p.line(text("No workload is to move from a whole GPU to a slice."))
	case len(packing.GPUs) == 0:
		p.paragraph(
			"",
			yellow,
			"The recommended slices were not placed: they do not fit on GPUs that are free or become "+
				"free, or the search was stopped at its limit.",
		)
	case report.SingleStrategy:
		writeSingleGain(p, report, len(prices) > 0)
	default:
		writePacking(p, packing)
		writeRoom(p, report)
		writePrices(p, report, prices)
	}

	if len(provisional) > 0 {
		writeProvisional(p, report, provisional, packing == nil)
	}

	if unchecked := left[advise.ReasonMediaNotChecked]; len(unchecked) > 0 {
		p.paragraph(
			"",
			yellow,
			fmt.Sprintf(
				"Not moved, since the use of media engines cannot be read, and the slice has fewer: GPU %s.",
				joinNumbers(unchecked),
			),
		)
	}

	if len(unknown) > 0 {
		p.paragraph("", yellow,
			fmt.Sprintf("It is not known whether a slice would do for the work of GPU %s.", joinNumbers(unknown)))
	}

	if noRoom := left[advise.ReasonNone]; len(noRoom) > 0 {
		p.paragraph(
			"",
			yellow,
			fmt.Sprintf("Not moved, although a slice would do: GPU %s.", joinNumbers(noRoom)),
		)
	}
}

// unknownGPUs returns the whole GPUs of which it is not known whether a slice would do, also those that could
// not be read.
func unknownGPUs(report *advise.Report) (indexes []int) {
	for i := range report.Devices {
		if r := &report.Devices[i]; !r.Instance.Present() && r.Reason.IsUnknown() {
			indexes = append(indexes, r.Index)
		}
	}

	for i := range report.NotJudged {
		indexes = append(indexes, report.NotJudged[i].Index)
	}

	slices.Sort(indexes)

	return indexes
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

	p.paragraph("", bold, t+proofText(packing))
}

// proofText follows what a packing comes to. It says if a better one may exist.
func proofText(packing *advise.Packing) string {
	if packing.Proven {
		return ""
	}

	return " Not proven optimal: the search was stopped at its limit, or a model was left out."
}

// writeRoom names the GPUs whose move frees no GPU, with what the move gains instead.
func writeRoom(p *page, report *advise.Report) {
	gpus := map[string][]int{} // by the text of the gain

	for i := range report.Devices {
		if r := &report.Devices[i]; r.Gain != nil && r.Gain.FreedGPUs == 0 {
			gpus[r.Gain.String()] = append(gpus[r.Gain.String()], r.Index)
		}
	}

	for _, gain := range sortedKeys(gpus) {
		p.paragraph("", plain, fmt.Sprintf("The move from GPU %s %s.", joinNumbers(gpus[gain]), gain))
	}
}

// hoursPerWeek is 168: a GPU is paid for around the clock.
const hoursPerWeek = 7 * 24

// writePrices says what the GPUs cost that become free on balance: those that the moves free, less
// those that are free now and get slices.
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

	hourly := 0. // price of the freed GPUs for an hour
	priced := 0. // GPUs
	unpriced := 0.

	for _, model := range sortedKeys(freed) {
		count := math.Round(freed[model])

		price, ok := fleet.PriceOf(prices, model)
		if !ok {
			unpriced += count
			continue
		}

		hourly += count * price.Hour
		priced += count
	}

	if priced > 0 {
		p.paragraph("", bold, fmt.Sprintf("On balance %s: %.2f an hour, %.2f a week.",
			nodedoc.Count(int(priced), "GPU becomes free", "GPUs become free"), hourly, hourly*hoursPerWeek))
	}

	if unpriced > 0 {
		p.paragraph("", yellow, fmt.Sprintf("%s without a --price.",
			nodedoc.Count(int(unpriced), "GPU becomes free", "GPUs become free")))
	}
}
