package migctl

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// specFile is the file in which the procedure keeps the recommended layouts. It can't ask for them
// again later: a report that is made half-way recommends other layouts.
const specFile = "mig-layouts.yaml"

// procedure writes the steps that bring the node to the recommended layouts, and executes none: a
// method such as writeCordon writes the command that an operator is to run.
type procedure struct {
	p       *page
	report  *advise.Report
	node    string              // the node's name, quoted for the shell
	steps   int                 // how many numbered steps are written
	done    map[int]bool        // the indices of the GPUs that have their slices
	changed map[advise.Key]bool // the owners whose change is written
	// Each of these warnings is written once; the field is true afterwards.
	warnedOfRequests, warnedOfPlugin, warnedOfMode, warnedOfRollout, warnedOfReach, warnedOfSliceReach bool
}

func newProcedure(p *page, report *advise.Report) *procedure {
	return &procedure{
		p:       p,
		report:  report,
		node:    QuoteForShell(report.Node),
		done:    map[int]bool{},
		changed: map[advise.Key]bool{},
	}
}

// write writes how to get to the recommended layouts: every command, in an order that works.
// Nothing is executed.
func (w *procedure) write() {
	if w.report.Packing == nil || len(w.report.Packing.GPUs) == 0 {
		return
	}

	w.p.line()

	if obstacle := singleObstacle(w.report); obstacle != "" {
		w.p.paragraph("", yellow, "No procedure: "+obstacle)
		return
	}

	w.p.line(text("Procedure. None of it is done automatically.").in(bold))

	if w.report.SingleStrategy {
		w.writeSingle()
		return
	}

	if !w.report.WithoutKubernetes && !w.usesClaims() {
		w.writeNote(
			"The device plugin must run with --mig-strategy=mixed. On GKE, where a node pool has one " +
				"partition size: a pool with gpuPartitionSize takes the place of all this, pods keep " +
				"nvidia.com/gpu and get the node selector cloud.google.com/gke-gpu-partition-size.",
		)
	}

	w.writeKeepLayouts()
	w.writeNote(
		"migctl plan with the same arguments as migctl apply below shows where the slices will be placed.",
	)

	ready, held := w.report.Stages()
	w.writeReady(ready)

	for i := range held {
		w.writeHeld(&held[i])
	}
}

func (w *procedure) writeStep(format string, args ...any) {
	w.steps++
	w.p.paragraph(fmt.Sprintf("%2d. ", w.steps), plain, fmt.Sprintf(format, args...))
}

func (w *procedure) writeNote(s string) { w.p.paragraph("    ", dim, s) }

// writeCommand writes a command on a line of its own, not cut.
func (w *procedure) writeCommand(command string) { w.p.uncut("      " + command) }

// writeKeepLayouts writes the command that keeps the layouts in a file. The command asks the server
// again, so that its report may be a newer one: the note has the time to compare.
func (w *procedure) writeKeepLayouts() {
	w.writeStep("Keep the layouts: later reports differ, since work has moved.")
	w.writeCommand("migctl recommend -o spec > " + specFile)
	w.writeNote(
		fmt.Sprintf(
			"Its first line has the time of its report, here %s. If they differ, compare the "+
				"layouts with "+
				"the steps below.",
			w.report.Time.UTC().Format(time.RFC3339),
		),
	)
}

// writeReady writes the steps for the GPUs that hold no pod: a workload that gets a slice there need
// not wait.
func (w *procedure) writeReady(ready []advise.Stage) {
	if len(ready) == 0 {
		return
	}

	var withoutMIG, all []int
	var changing []advise.Stage // the GPUs on which slices must be created

	for _, t := range ready {
		all = append(all, t.Index)
		if t.IsFree() {
			withoutMIG = append(withoutMIG, t.Index)
		}

		if slices.ContainsFunc(t.Slices, func(s advise.PackedSlice) bool { return !s.Exists }) {
			changing = append(changing, t)
		}
	}

	if len(changing) > 0 {
		w.writeStep(
			"GPU %s: create the slices, while no new %s.",
			joinNumbers(indexesOf(changing)),
			w.arrivingWork(),
		)
		w.writeCordon()
		w.writeModeOn(withoutMIG)

		for _, t := range changing {
			w.writeApply(t.Index)
		}

		w.writePluginRestart()
		w.writeUncordon()
	}

	for _, t := range ready {
		w.done[t.Index] = true
	}

	asks := "its owner asks for a slice instead of a GPU"
	if w.report.WithoutKubernetes {
		asks = "it starts again on a slice instead of a GPU"
	}

	w.writeStep("Move to GPU %s what gets a slice there: %s.", joinNumbers(all), asks)

	for _, t := range ready {
		w.writeArrivals(&t, -1)
	}

	w.writeWaitForSlices(ready)
}

func indexesOf(targets []advise.Stage) []int {
	list := make([]int, 0, len(targets))
	for _, t := range targets {
		list = append(list, t.Index)
	}

	return list
}

// writeHeld writes the steps for a GPU that its pod must leave first.
func (w *procedure) writeHeld(t *advise.Stage) {
	to := w.report.Packing.TargetOf(t.Index)
	waits := !w.done[to] // its slice does not exist yet

	if waits {
		w.writeStep(
			"GPU %d: %s leaves, and waits for its slice until the GPU is partitioned.",
			t.Index,
			holderText(t.Whole),
		)

		if to != t.Index {
			w.writeNote(
				fmt.Sprintf(
					"Its slice is on GPU %d, which a later step partitions: until then it waits.",
					to,
				),
			)
		}
	} else {
		w.writeStep(
			"GPU %d: %s has moved to GPU %d. Wait until the old one has left.",
			t.Index,
			holderText(t.Whole),
			to,
		)
	}

	w.writeCordon()

	if waits {
		w.writeOwnerChange(t.Whole)
		w.writeRemoval(t.Whole)

		if isOwnedBy(t.Whole, "Deployment") {
			w.writeNote(
				"Until the new pod runs, the Deployment keeps an old one as well: pending, or on another free GPU.",
			)
		}
	} else {
		w.writeWaitUntilGone(t.Whole)

		if t.Whole.Pod != nil && isOwnedBy(t.Whole, "Deployment", "StatefulSet") {
			w.writeNote("If it stays, since the owner has replaced another replica first:")
			w.writeDeletion(t.Whole)
		}
	}

	w.writeStep("Create the slices of GPU %d.", t.Index)
	w.writeModeOn([]int{t.Index})
	w.writeApply(t.Index)
	w.writePluginRestart()
	w.writeUncordon()

	w.done[t.Index] = true
	if len(t.Slices) > 1 || t.Slices[0].From != t.Index {
		w.writeStep("Move to GPU %d what gets a slice there.", t.Index)
		w.writeArrivals(t, t.Index)
	}

	w.writeWaitForSlices([]advise.Stage{*t})
}

// writeArrivals writes how the workloads that get a slice on a GPU are moved there, except the one
// from the GPU movedAlready; -1 if there is none.
func (w *procedure) writeArrivals(t *advise.Stage, movedAlready int) {
	for _, slice := range t.Slices {
		r := w.report.OfWhole(slice.From)
		if slice.From == movedAlready || r == nil || r.Workload == nil {
			continue
		}

		w.writeNote(
			fmt.Sprintf(
				"GPU %d, %s: to %s of GPU %d.",
				slice.From,
				holderText(r),
				slice.Profile,
				t.Index,
			),
		)

		if c := w.writeOwnerChange(r); !c.replaces {
			w.writeRemoval(r)
		}
	}
}

// writeModeOn writes how MIG mode is switched on.
func (w *procedure) writeModeOn(indexes []int) {
	if len(indexes) == 0 {
		return
	}

	list := strings.ReplaceAll(joinNumbers(indexes), ",", "")
	w.writeCommand("migctl mode on " + list)
	w.writeCommand("migctl get " + list)
	w.writeNote(
		"Go on when it shows MIG on, without an asterisk: migctl mode on succeeds even while the mode is pending.",
	)

	if !w.warnedOfMode {
		w.writeNote(
			"On Ampere (A100, A30) the mode stays pending while a process has the GPU open: " +
				"end what migctl mode on lists, such as DCGM or dcgm-exporter, GPU feature " +
				"discovery, nvidia-persistenced and nvsm, then repeat it. If it waits for a " +
				"reset or a reboot, do what it says first.",
		)
		w.warnedOfMode = true
	}
}

func (w *procedure) writeApply(index int) {
	w.writeCommand(fmt.Sprintf("migctl apply -f %s --layout "+layoutOfGPU, specFile, index))
}

// writePluginRestart writes how to restart the device plugin, so that it offers the new devices.
// migctl apply waits until it does.
func (w *procedure) writePluginRestart() {
	if w.report.WithoutKubernetes || w.usesClaims() {
		return
	}

	if !w.warnedOfPlugin {
		w.writeNote(
			"While migctl apply waits for the kubelet, unless a hook does it (--control.hook), restart " +
				"the device plugin, in whatever namespace it is. The first label is the GPU operator's, the " +
				"second that of the plugin's own Helm chart: a command that finds no pod changes nothing.",
		)
		w.warnedOfPlugin = true
	}

	for _, label := range []string{
		"app=nvidia-device-plugin-daemonset",
		"app.kubernetes.io/name=nvidia-device-plugin",
	} {
		w.writeCommand(
			"kubectl delete pod --all-namespaces " + QuoteForShell("--selector="+label) + " " +
				QuoteForShell("--field-selector=spec.nodeName="+w.report.Node),
		)
	}
}

// usesClaims reports whether all pods with devices have them by claims (DRA), which don't come from
// a device plugin.
func (w *procedure) usesClaims() bool {
	claims := false

	for i := range w.report.Devices {
		pod := w.report.Devices[i].Pod
		if pod == nil || pod.Resource == "" {
			continue
		}

		if !strings.HasPrefix(pod.Resource, gpu.ClaimPrefix) {
			return false
		}

		claims = true
	}

	return claims
}

// arrivingWork names what must not come to the node while GPUs are repartitioned.
func (w *procedure) arrivingWork() string {
	if w.report.WithoutKubernetes {
		return "work comes"
	}

	return "pods come"
}

// writeCordon writes how new work is kept away. Without Kubernetes it is a note: there is no command
// that all schedulers have.
func (w *procedure) writeCordon() {
	if w.report.WithoutKubernetes {
		w.writeNote("Let no new work start on this node until then.")
		return
	}

	w.writeCommand("kubectl cordon " + w.node)
}

func (w *procedure) writeUncordon() {
	if w.report.WithoutKubernetes {
		w.writeNote("New work may start again.")
		return
	}

	w.writeCommand("kubectl uncordon " + w.node)
}
