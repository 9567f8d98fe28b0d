package migctl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// singleReason says why no GPU of a node under the single strategy can be partitioned alone.
const singleReason = "under --mig-strategy=single all GPUs of a node have one MIG mode and one " +
	"profile, or the device plugin offers none of them."

// writeSingleReason says, if a slice is recommended for one of the devices on a node under the
// single strategy, that no GPU can be partitioned without the others.
func writeSingleReason(p *page, report *advise.Report, devices []advise.Recommendation) {
	wanted := func(r advise.Recommendation) bool { return r.Action == advise.ActionSlice }
	if report.SingleStrategy && slices.ContainsFunc(devices, wanted) {
		p.line()
		p.paragraph(
			"",
			yellow,
			"No GPU can be partitioned alone: "+singleReason+" migctl recommend without a GPU has the "+
				"procedure for the node.",
		)
	}
}

// writeSingleGain says what a node gains under the single strategy: slices, and no whole GPU.
// priced says that the operator has given prices, which are of whole GPUs.
func writeSingleGain(p *page, report *advise.Report, priced bool) {
	packing := report.Packing

	t := fmt.Sprintf(
		"The workloads to move hold %s now, and get slices of %s on %d.",
		nodedoc.Count(packing.InUse, "GPU", "GPUs"),
		packing.Profile(),
		packing.Needed,
	)
	if packing.FreeSlices > 0 {
		t += fmt.Sprintf(
			" The other GPUs of the node become %s of it.",
			nodedoc.Count(packing.FreeSlices, "free slice", "free slices"),
		)
	}

	p.paragraph("", bold, t+" No GPU of the node stays whole."+proofText(packing))
	p.paragraph(
		"",
		yellow,
		fmt.Sprintf(
			"A pod that asks for %s on this node gets one of these slices then. Keep pods away that need a "+
				"whole GPU.",
			wholeResource,
		),
	)

	if priced {
		p.paragraph("", yellow, "--price: no whole GPU becomes free, so there is none to count.")
	}
}

// singleObstacle returns why the GPUs of a node under the single strategy must not be partitioned
// yet. It is empty if they may be, or under another strategy. All GPUs are partitioned at once, so
// that one doubtful answer is an obstacle for all.
func singleObstacle(report *advise.Report) string {
	if !report.SingleStrategy {
		return ""
	}

	var provisional, notChecked []int

	for i := range report.Devices {
		r := &report.Devices[i]
		if r.Workload == nil || r.Instance.Present() {
			continue
		}

		switch r.WhyNotFinal() {
		case advise.ReasonProvisional:
			provisional = append(provisional, r.Index)
		case advise.ReasonMediaNotChecked:
			notChecked = append(notChecked, r.Index)
		}
	}

	var reasons []string
	if len(provisional) > 0 {
		reasons = append(reasons, fmt.Sprintf(
			"provisional for GPU %s, %s",
			joinNumbers(provisional),
			incomplete+incompleteBecause(report, provisional),
		))
	}

	if len(notChecked) > 0 {
		reasons = append(reasons, fmt.Sprintf(
			"not checked for GPU %s, whose use of media engines cannot be read",
			joinNumbers(notChecked),
		))
	}

	if len(report.NotJudged) > 0 {
		var unread []int
		for i := range report.NotJudged {
			unread = append(unread, report.NotJudged[i].Index)
		}

		reasons = append(reasons, fmt.Sprintf(
			"without GPU %s, which was not read",
			joinNumbers(unread),
		))
	}

	if len(reasons) == 0 {
		return ""
	}

	return "under --mig-strategy=single all GPUs of the node get slices at once, and the " +
		"recommendation is " + strings.Join(reasons, "; it is ") + "."
}

// writeSingle writes the steps under the single strategy: all GPUs are emptied and partitioned at
// once, and pods go on asking for nvidia.com/gpu.
func (w *procedure) writeSingle() {
	w.writeNote(
		fmt.Sprintf(
			"The device plugin runs with --mig-strategy=single: all GPUs get %s, all pods leave at once, "+
				"and what they ask for (%s) stays.",
			w.report.Packing.Profile(),
			wholeResource,
		),
	)
	w.writeKeepLayouts()
	w.writeStep("Empty the node.")
	w.writeCordon()

	all, held := w.wholeGPUs()
	for _, r := range held {
		if isOwnedBy(r, "DaemonSet") {
			w.writeNote(
				"A DaemonSet ignores the cordon: keep its pod away by its node selector until all GPUs are partitioned.",
			)
		}

		if r.Pod == nil || !isReplaceable(r) { // no command of writeRemoval names the GPU
			w.writeNote(fmt.Sprintf("GPU %d, %s:", r.Index, holderText(r)))
		}

		w.writeRemoval(r)
	}

	w.writeStep("Create the slices of all GPUs.")
	w.writeModeOn(all)
	w.writeCommand("migctl apply -f " + specFile)
	w.writePluginRestart()
	w.writeStep("Let the pods come back, each on a slice.")
	w.writeUncordon()
}

// wholeGPUs returns the GPUs without MIG mode, and the answers for those that are held. Workloads
// whose end must be waited for come first: the others can be deleted afterwards and run until then.
func (w *procedure) wholeGPUs() (all []int, held []*advise.Recommendation) {
	var ending, replaced []*advise.Recommendation

	for i := range w.report.Devices {
		r := &w.report.Devices[i]
		if r.Instance.Present() {
			continue
		}

		all = append(all, r.Index)
		switch {
		case r.Workload == nil:
		case isReplaceable(r):
			replaced = append(replaced, r)
		default:
			ending = append(ending, r)
		}
	}

	return all, append(ending, replaced...)
}
