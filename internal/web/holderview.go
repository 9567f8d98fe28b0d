package web

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// holderView is a pod that holds a device. Unconfirmed says why that is uncertain; it is empty if it is certain.
type holderView struct{ Name, Unconfirmed string }

// holdingView is whether and by what a device is held.
type holdingView struct {
	Holders   []holderView
	Free      bool // no pod holds it or a part of it
	Confirmed bool // it is free because an operator has confirmed it
	Unknown   bool // it is not known whether a pod holds it
	Empty     bool // a GPU instance without compute instances
}

// newHoldingView returns the view of a device's holders. kubelet is set if the node has one: see hasKubelet.
func newHoldingView(d *gpu.Device, kubelet bool) holdingView {
	return holdingView{
		Holders:   holderViews(d.Holders),
		Free:      !d.Allocated.Or(true),
		Confirmed: d.ConfirmedFree,
		Unknown:   kubelet && !d.Allocated.Present(),
	}
}

// sharedView is one container that shares a device.
type sharedView struct {
	holderView
	Memory string
}

// unconfirmedView is a reason why it is uncertain whether pods hold a device.
type unconfirmedView struct{ Pods, Reason string }

// unmatchedView is a device id that names no device of the node, and the container it was given to.
type unmatchedView struct{ ID, Resource, Holder string }

// hasKubelet reports whether a kubelet is a source of holders. Without one the page does not show devices as unknown.
func hasKubelet(snap *gpu.Snapshot) bool {
	return slices.ContainsFunc(snap.Sources, func(s gpu.SourceState) bool {
		return s.Name == gpu.SourceKubelet
	})
}

// podText returns the name of a holder's pod, or its UID if the name is unknown.
func podText(h *gpu.Holder) string {
	if h.Pod == "" {
		return "pod " + h.PodUID
	}

	return h.Namespace + "/" + h.Pod
}

func holderViews(holders []gpu.Holder) []holderView {
	return mapSlice(holders, func(h *gpu.Holder) holderView {
		return holderView{Name: podText(h), Unconfirmed: h.Unconfirmed}
	})
}

// sharedViews lists the containers that share a GPU, with their memory if it is known.
func sharedViews(g *gpu.GPU) []sharedView {
	memory := make(map[gpu.Container]uint64, len(g.Containers))
	for _, c := range g.Containers {
		if used, ok := c.MemoryUsed.Get(); ok {
			memory[c.Container] += used
		}
	}

	return mapSlice(g.Holders, func(h *gpu.Holder) sharedView {
		v := sharedView{
			holderView: holderView{Name: podText(h) + " " + h.Name, Unconfirmed: h.Unconfirmed},
		}
		if h.Replica != "" {
			v.Name += " (" + h.Replica + ")"
		}

		if used, ok := memory[h.Container]; ok {
			v.Memory = bytesText(used)
		}

		return v
	})
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
	var reasons []string
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

// freeTile counts the GPUs of which no pod holds any part, and those for which that is unknown. It returns false if
// no holders are known.
func freeTile(snap *gpu.Snapshot) (tile, bool) {
	free := 0
	unknown := 0

	for i := range snap.GPUs {
		switch allocated, known := snap.GPUs[i].Allocated.Get(); {
		case !known:
			unknown++
		case !allocated:
			free++
		}
	}

	t := tile{Label: "Free", Value: fmt.Sprint(free), Note: "held by no pod"}
	if unknown > 0 && hasKubelet(snap) {
		t.Note += fmt.Sprintf(", %d unknown", unknown)
	}

	return t, unknown < len(snap.GPUs) || hasKubelet(snap)
}

// mapSlice returns the views of the elements of a list.
func mapSlice[T, V any](list []T, view func(*T) V) []V {
	views := make([]V, 0, len(list))
	for i := range list {
		views = append(views, view(&list[i]))
	}

	return views
}
