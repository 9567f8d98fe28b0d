package web

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// holderView is a pod, or a container of it, that holds a device.
type holderView struct {
	Name        string
	Unconfirmed string // why it is uncertain that it holds the device; empty if it is certain
	Memory      string // how much it uses of a device that it shares, if we know it
}

// holdingView says whether a device is held, and by what.
type holdingView struct {
	Holders   []holderView
	Jobs      []string // batch jobs
	Held      string   // "2 processes", if the device is held but we know no pod or batch job
	Free      bool     // nothing holds the device or a part of it
	Confirmed bool     // the device is free because an operator has confirmed it
	Unknown   string   // why we do not know whether the device is held
	Empty     bool     // the device is a GPU instance without compute instances
}

// newHoldingView returns the view of a device's holders. uses says how much of the device each
// container uses.
func newHoldingView(d *gpu.Device, uses []gpu.ContainerUse, jobs []string,
	use nodedoc.UseEvidence) holdingView {
	view := holdingView{Holders: holderViews(d.Holders, uses), Jobs: jobs, Confirmed: d.ConfirmedFree}

	switch use.State() {
	case nodedoc.Free:
		view.Free = true
	case nodedoc.UnknownUse:
		view.Unknown = use.WhyUnknown()
	case nodedoc.Held:
		if len(view.Holders) == 0 && len(jobs) == 0 {
			view.Held = use.UnnamedHolder()
		}
	}

	return view
}

// unconfirmedView is a reason why it is uncertain whether pods hold a device.
type unconfirmedView struct{ Pods, Reason string }

// unmatchedView is a device id that names no device of the node, and the container it was given to.
type unmatchedView struct{ ID, Resource, Holder string }

// podText returns the name of a holder's pod, or its UID if the name is unknown.
func podText(h *gpu.Holder) string {
	if h.Pod == "" {
		return "pod " + h.PodUID
	}

	return h.Namespace + "/" + h.Pod
}

// isShared reports whether several containers may hold a device at once. All its holders then have the
// same kind of sharing.
func isShared(holders []gpu.Holder) bool {
	return len(holders) > 0 && holders[0].Sharing != gpu.SharingExclusive
}

// holderViews names the pods that hold a device. If the device is shared it names containers, since
// several of them may be in one pod.
func holderViews(holders []gpu.Holder, uses []gpu.ContainerUse) []holderView {
	if !isShared(holders) {
		return mapSlice(holders, func(h *gpu.Holder) holderView {
			return holderView{Name: podText(h), Unconfirmed: h.Unconfirmed}
		})
	}

	memory := make(map[gpu.Container]uint64, len(uses))

	for _, u := range uses {
		if used, ok := u.MemoryUsed.Get(); ok {
			memory[u.Container] += used
		}
	}

	return mapSlice(holders, func(h *gpu.Holder) holderView {
		v := holderView{Name: podText(h) + " " + h.Name, Unconfirmed: h.Unconfirmed}
		if h.Replica != "" {
			v.Name += " (" + h.Replica + ")"
		}

		if used, ok := memory[h.Container]; ok {
			v.Memory = bytesText(used)
		}

		return v
	})
}

// usesOf returns how much each container uses of a GPU instance, or of one compute instance of it.
func usesOf(g *gpu.GPU, instance gpu.InstanceID, compute gpu.Opt[gpu.ComputeID]) []gpu.ContainerUse {
	var uses []gpu.ContainerUse

	for _, u := range g.Containers {
		if u.Instance == gpu.Some(instance) && (!compute.Present() || u.Compute == compute) {
			uses = append(uses, u)
		}
	}

	return uses
}

// holderNames returns the names of the pods and batch jobs that hold a device. The strip shows the
// first; the search finds the device by each of them.
func holderNames(d *gpu.Device, jobs []string) []string {
	names := mapSlice(d.Holders, podText)

	for _, job := range jobs {
		names = append(names, "job "+job)
	}

	return names
}

// sharedText says how many containers share a device, and how.
func sharedText(holders []gpu.Holder) string {
	how := string(holders[0].Sharing)
	if holders[0].Sharing == gpu.SharingUnknown {
		how = "not known how"
	}

	return nodedoc.Count(len(holders), "container", "containers") + " (" + how + ")"
}

// unconfirmedViews lists the unconfirmed holders of a GPU and of its instances by reason.
func unconfirmedViews(g *gpu.GPU) []unconfirmedView {
	var reasons []string // the keys of pods, in the order in which we found them
	pods := map[string][]string{}

	for d := range g.Devices() {
		for i := range d.Holders {
			reason := d.Holders[i].Unconfirmed

			pod := podText(&d.Holders[i])
			if reason == "" || slices.Contains(pods[reason], pod) {
				continue
			}

			if pods[reason] == nil {
				reasons = append(reasons, reason)
			}

			pods[reason] = append(pods[reason], pod)
		}
	}

	return mapSlice(reasons, func(reason *string) unconfirmedView {
		return unconfirmedView{Pods: strings.Join(pods[*reason], ", "), Reason: *reason}
	})
}

// maxUnmatched is how many unmatched devices the page names.
const maxUnmatched = 10

// holderNotices returns what is wrong with the holders of devices.
func holderNotices(snap *gpu.Snapshot) []notice {
	var notices []notice

	if n := len(snap.Unmatched); n > 0 {
		shown := snap.Unmatched[:min(n, maxUnmatched)]
		notices = append(notices, notice{
			Class: "warn",
			Title: nodedoc.Count(n, "device id", "device ids") + " without a device",
			Text:  "Pods were given devices that this node does not have. They run without them.",
			Unmatched: mapSlice(shown, func(a *gpu.Assignment) unmatchedView {
				return unmatchedView{
					ID:       nodedoc.ShortText(a.ID),
					Resource: nodedoc.ShortText(a.Holder.Resource),
					Holder:   podText(&a.Holder) + " " + a.Holder.Name,
				}
			}),
			More: n - len(shown),
			Hint: "Restart the device plugin, so that it no longer offers such devices, then delete the pods.",
		})
	}

	if snap.HoldersIncomplete != "" {
		class := "warn"
		title := "Not all holders are known"

		kubelet, _ := sourceState(snap, gpu.SourceKubelet)
		if errors.Is(kubelet.Err, gpu.ErrNotConfigured) {
			class = "plain"
			title = "Holders are not known"
		}

		notices = append(notices, notice{
			Class: class, Title: title, Text: snap.HoldersIncomplete,
			Hint: "A device without a holder may be held all the same: it is shown as unknown.",
		})
	}

	return notices
}

// freeTile counts the GPUs that are free as a whole, and the GPUs of which we don't know it. It returns
// false if we know it of no GPU and the node has no kubelet that could say it.
func freeTile(doc *nodedoc.Document) (tile, bool) {
	kubelet := doc.HasKubelet()
	free := 0
	unknown := 0

	for i := range doc.GPUs {
		switch doc.GPUs[i].Evidence(kubelet).State() {
		case nodedoc.UnknownUse:
			unknown++
		case nodedoc.Free:
			free++
		case nodedoc.Held:
		}
	}

	t := tile{Label: "Free", Value: fmt.Sprint(free), Note: "held by nothing"}
	if unknown > 0 {
		t.Note += fmt.Sprintf(", %d unknown", unknown)
	}

	return t, unknown < len(doc.GPUs) || kubelet
}

// mapSlice returns the views of the elements of a list.
func mapSlice[T, V any](list []T, view func(*T) V) []V {
	views := make([]V, 0, len(list))
	for i := range list {
		views = append(views, view(&list[i]))
	}

	return views
}
