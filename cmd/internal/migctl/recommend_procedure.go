package migctl

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// specFile is the file of layouts that the procedure works from: a report that is made half-way
// recommends other ones.
const specFile = "mig-layouts.yaml"

// procedure writes the steps from the node as it is to the packed one.
type procedure struct {
	p       *page
	report  *advise.Report
	node    string // quoted for the shell
	steps   int
	done    map[int]bool // indices of GPUs that have their slices
	changed map[advise.Key]bool
	// Said once each.
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

	if why := singleObstacle(w.report); why != "" {
		w.p.para("", yellow, "No procedure: "+why)
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

	w.keepLayouts()
	w.writeNote(
		"migctl plan with the same arguments as migctl apply below shows where the slices will be placed.",
	)

	ready, held := w.report.Stages()
	w.writeReady(ready)

	for i := range held {
		w.writeHeld(&held[i])
	}
}

func (w *procedure) step(format string, args ...any) {
	w.steps++
	w.p.para(fmt.Sprintf("%2d. ", w.steps), plain, fmt.Sprintf(format, args...))
}

func (w *procedure) writeNote(s string) { w.p.para("    ", dim, s) }

// writeCommand writes a command on a line of its own, not cut.
func (w *procedure) writeCommand(command string) { w.p.whole("      " + command) }

// keepLayouts writes how the layouts are kept. They come from a request of their own, and so may
// their report.
func (w *procedure) keepLayouts() {
	w.step("Keep the layouts: later reports differ, since work has moved.")
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

// writeReady writes the steps for the GPUs that no pod must leave: what moves there does not wait.
func (w *procedure) writeReady(ready []advise.Stage) {
	if len(ready) == 0 {
		return
	}

	var off, all []int
	var changing []advise.Stage

	for _, t := range ready {
		all = append(all, t.Index)
		if t.IsFree() {
			off = append(off, t.Index)
		}

		if slices.ContainsFunc(t.Slices, func(s advise.PackedSlice) bool { return !s.Exists }) {
			changing = append(changing, t)
		}
	}

	if len(changing) > 0 {
		w.step(
			"GPU %s: create the slices, while no new %s.",
			joinNumbers(indexesOf(changing)),
			w.arrivals(),
		)
		w.cordon()
		w.switchOn(off)

		for _, t := range changing {
			w.apply(t.Index)
		}

		w.restartPlugin()
		w.uncordon()
	}

	for _, t := range ready {
		w.done[t.Index] = true
	}

	asks := "its owner asks for a slice instead of a GPU"
	if w.report.WithoutKubernetes {
		asks = "it starts again on a slice instead of a GPU"
	}

	w.step("Move to GPU %s what gets a slice there: %s.", joinNumbers(all), asks)

	for _, t := range ready {
		w.writeArrivals(&t, -1)
	}

	w.waitForSlices(ready)
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
	waits := !w.done[to]

	if waits {
		w.step(
			"GPU %d: %s leaves, and waits for its slice until the GPU is partitioned.",
			t.Index,
			holderText(t.Whole),
		)

		if to != t.Index {
			w.writeNote(
				fmt.Sprintf(
					"It gets it on GPU %d, which comes later: it waits until that one is partitioned, too.",
					to,
				),
			)
		}
	} else {
		w.step(
			"GPU %d: %s has moved to GPU %d. Wait until the old one has left.",
			t.Index,
			holderText(t.Whole),
			to,
		)
	}

	w.cordon()

	if waits {
		w.change(t.Whole)
		w.remove(t.Whole)

		if isOwnedBy(t.Whole, "Deployment") {
			w.writeNote(
				"Until the new pod runs, the Deployment keeps an old one as well: pending, or on another free GPU.",
			)
		}
	} else {
		w.waitUntilGone(t.Whole)

		if t.Whole.Pod != nil && isOwnedBy(t.Whole, "Deployment", "StatefulSet") {
			w.writeNote("If it stays, since the owner has replaced another replica first:")
			w.deletePod(t.Whole)
		}
	}

	w.step("Create the slices of GPU %d.", t.Index)
	w.switchOn([]int{t.Index})
	w.apply(t.Index)
	w.restartPlugin()
	w.uncordon()

	w.done[t.Index] = true
	if len(t.Slices) > 1 || t.Slices[0].From != t.Index {
		w.step("Move to GPU %d what gets a slice there.", t.Index)
		w.writeArrivals(t, t.Index)
	}

	w.waitForSlices([]advise.Stage{*t})
}

// writeArrivals writes how the workloads that get a slice on a GPU are moved there, but for the one
// that held it.
func (w *procedure) writeArrivals(t *advise.Stage, but int) {
	for _, slice := range t.Slices {
		r := w.report.OfWhole(slice.From)
		if slice.From == but || r == nil || r.Workload == nil {
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

		if c := w.change(r); !c.replaces {
			w.remove(r)
		}
	}
}

// switchOn writes how MIG mode is switched on. migctl mode on succeeds while the mode is pending.
func (w *procedure) switchOn(indexes []int) {
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

func (w *procedure) apply(index int) {
	w.writeCommand(fmt.Sprintf("migctl apply -f %s --layout "+layoutOfGPU, specFile, index))
}

// restartPlugin writes how the device plugin is made to offer the new devices. migctl apply waits
// for that.
func (w *procedure) restartPlugin() {
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

// usesClaims reports whether all pods have their devices by claims (DRA), for which no device
// plugin is asked.
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

// arrivals names what must not come while GPUs are repartitioned.
func (w *procedure) arrivals() string {
	if w.report.WithoutKubernetes {
		return "work comes"
	}

	return "pods come"
}

// cordon writes how new work is kept away; without Kubernetes there is no command that all
// schedulers have.
func (w *procedure) cordon() {
	if w.report.WithoutKubernetes {
		w.writeNote("Let no new work start on this node until then.")
		return
	}

	w.writeCommand("kubectl cordon " + w.node)
}

func (w *procedure) uncordon() {
	if w.report.WithoutKubernetes {
		w.writeNote("New work may start again.")
		return
	}

	w.writeCommand("kubectl uncordon " + w.node)
}
