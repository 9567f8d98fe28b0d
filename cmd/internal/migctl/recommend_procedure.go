package migctl

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// specFile is the file in which the operator keeps the recommended layouts. A report that the server
// makes halfway through the procedure would recommend other layouts.
const specFile = "mig-layouts.yaml"

// procedure writes the steps that bring the node to the recommended layouts, and executes none: a
// method such as writeCordon writes the command that an operator is to run.
type procedure struct {
	p       *page
	report  *advise.Report
	node    string              // the node's name, quoted for the shell
	steps   int                 // how many numbered steps are written
	done    map[int]bool        // the indices of the GPUs whose slices exist after the steps so far
	changed map[advise.Key]bool // the owners whose change is written

	// We write each of these warnings once; its field is true afterwards.
	warnedOfInit       bool
	warnedOfRequests   bool
	warnedOfPlugin     bool
	warnedOfMode       bool
	warnedOfRollout    bool
	warnedOfReach      bool
	warnedOfSliceReach bool
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

// write writes how to get to the recommended layouts: every command, in an order that works. It writes
// nothing if no layout is recommended.
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
			"The device plugin must run with --mig-strategy=mixed. On GKE a node pool has one partition " +
				"size: instead of these steps, create a pool with gpuPartitionSize. Its pods still ask for " +
				"nvidia.com/gpu, and need the node selector cloud.google.com/gke-gpu-partition-size.",
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

// writeCommand writes a command on a line of its own, however long, so that it can be copied.
func (w *procedure) writeCommand(command string) { w.p.uncut("      " + command) }

// writeKeepLayouts writes the command that keeps the layouts in specFile. The command asks the server
// again, and may get a newer report than the one that these steps are made from. The note says how the
// operator notices that.
func (w *procedure) writeKeepLayouts() {
	w.writeStep("Keep the layouts: later reports differ, since work has moved.")
	w.writeCommand("migctl recommend -o spec > " + specFile)
	w.writeNote(
		fmt.Sprintf(
			"Its first line has the time of its report. If it is not %s, compare the layouts with "+
				"the steps below.",
			w.report.Time.UTC().Format(time.RFC3339),
		),
	)
}

// writeReady writes the steps for the GPUs on which the slices can be created at once: their MIG mode is
// on, or nothing holds them. The workloads that get these slices can move without a pause.
func (w *procedure) writeReady(ready []advise.Stage) {
	if len(ready) == 0 {
		return
	}

	w.writeReadySlices(ready)

	for _, stage := range ready {
		w.done[stage.Index] = true
	}

	asks := "its owner asks for a slice instead of a GPU"
	if w.report.WithoutKubernetes {
		asks = "it starts again on a slice instead of a GPU"
	}

	w.writeStep("Move to GPU %s what gets a slice there: %s.", joinNumbers(indexesOf(ready)), asks)

	for _, stage := range ready {
		w.writeArrivals(&stage, -1)
	}

	w.writeWaitForSlices(ready)
}

// writeReadySlices writes the step that creates the slices that the GPUs lack; none if they have all.
func (w *procedure) writeReadySlices(ready []advise.Stage) {
	var withoutMIG []int
	var changing []advise.Stage

	for _, stage := range ready {
		// The others are ready because their MIG mode is on.
		if stage.IsFree() {
			withoutMIG = append(withoutMIG, stage.Index)
		}

		if slices.ContainsFunc(stage.Slices, func(s advise.PackedSlice) bool { return !s.Exists }) {
			changing = append(changing, stage)
		}
	}

	if len(changing) == 0 {
		return
	}

	w.writeStep("GPU %s: create the slices, while no new %s.",
		joinNumbers(indexesOf(changing)), w.arrivingWork())
	w.writeCordon()
	w.writeModeOn(withoutMIG)

	for _, stage := range changing {
		w.writeApply(stage.Index)
	}

	w.writePluginRestart()
	w.writeUncordon()
}

// indexesOf returns the indices of the stages' GPUs.
func indexesOf(stages []advise.Stage) []int {
	list := make([]int, 0, len(stages))
	for _, stage := range stages {
		list = append(list, stage.Index)
	}

	return list
}

// writeHeld writes the steps for a GPU that its workload must leave before we can create slices.
func (w *procedure) writeHeld(stage *advise.Stage) {
	w.writeDeparture(stage)

	w.writeStep("Create the slices of GPU %d.", stage.Index)
	w.writeModeOn([]int{stage.Index})
	w.writeApply(stage.Index)
	w.writePluginRestart()
	w.writeUncordon()

	w.done[stage.Index] = true

	// If the GPU's only slice is for the workload that has left it, nothing else moves there.
	if len(stage.Slices) > 1 || stage.Slices[0].From != stage.Index {
		w.writeStep("Move to GPU %d what gets a slice there.", stage.Index)
		w.writeArrivals(stage, stage.Index)
	}

	w.writeWaitForSlices([]advise.Stage{*stage})
}

// writeDeparture writes the step in which the workload of a GPU leaves it. If the workload's slice
// exists by then, an earlier step has moved it there. Otherwise it stops until the slice exists.
func (w *procedure) writeDeparture(stage *advise.Stage) {
	whole := stage.Whole
	target := w.report.Packing.TargetOf(stage.Index)

	if w.done[target] {
		w.writeStep("GPU %d: %s has moved to GPU %d. Wait until the old one has left.",
			stage.Index, holderText(whole), target)
		w.writeCordon()
		w.writeWaitUntilGone(whole)

		if whole.Pod != nil && isOwnedBy(whole, "Deployment", "StatefulSet") {
			w.writeNote("If it stays, since the owner has replaced another replica first:")
			w.writeDeletion(whole)
		}

		return
	}

	w.writeStep("GPU %d: %s leaves, and waits for its slice until the GPU is partitioned.",
		stage.Index, holderText(whole))

	if target != stage.Index {
		w.writeNote(fmt.Sprintf(
			"Its slice is on GPU %d, which a later step partitions: until then it waits.", target))
	}

	w.writeCordon()
	w.writeOwnerChange(whole)
	w.writeRemoval(whole)

	if isOwnedBy(whole, "Deployment") {
		w.writeNote(
			"Until the new pod runs, the Deployment keeps an old one as well: pending, or on another free GPU.",
		)
	}
}

// writeArrivals writes how the workloads that get a slice on a GPU move there. It leaves out the one
// from the GPU with the index movedAlready; -1 leaves out none.
func (w *procedure) writeArrivals(stage *advise.Stage, movedAlready int) {
	for _, slice := range stage.Slices {
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
				stage.Index,
			),
		)

		// Most owners don't replace their pods by themselves.
		if c := w.writeOwnerChange(r); !c.replaces {
			w.writeRemoval(r)
		}
	}
}

// writeModeOn writes how to switch MIG mode on; nothing if no GPU needs it.
func (w *procedure) writeModeOn(indexes []int) {
	if len(indexes) == 0 {
		return
	}

	list := strings.ReplaceAll(joinNumbers(indexes), ",", "") // arguments: "2 5 7"
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

// writePluginRestart writes how to restart the device plugin, so that it offers the new devices. The
// operator does that while migctl apply waits for them.
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

// usesClaims reports whether pods have devices, and all of them by claims (DRA): then no device plugin
// has to run.
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

// arrivingWork names what must not come to the node while we repartition: "pods come".
func (w *procedure) arrivingWork() string {
	if w.report.WithoutKubernetes {
		return "work comes"
	}

	return "pods come"
}

// writeCordon writes how to keep new work away. Without Kubernetes it is a note, since schedulers have
// no command in common.
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
