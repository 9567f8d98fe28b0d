package web

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// holderView is a pod that holds a device. Unconfirmed says why this is not known; it is empty if it is.
type holderView struct{ Name, Unconfirmed string }

// sharedView is one container that shares a device.
type sharedView struct {
	holderView
	Memory string
}

// unconfirmedView is why it is not known whether some pods hold a device.
type unconfirmedView struct{ Pods, Reason string }

// unmatchedView is a device id that names no device of the node, and the container it was given to.
type unmatchedView struct{ ID, Resource, Holder string }

// hasKubelet reports whether holders come from a kubelet. Without one nothing is said of devices of which it is not known
// whether they are held.
func hasKubelet(snap *gpu.Snapshot) bool {
	return slices.ContainsFunc(snap.Sources, func(s gpu.SourceState) bool { return s.Name == gpu.SourceKubelet })
}

// podText names the pod of a holder, by its UID if its name is unknown.
func podText(h *gpu.Holder) string {
	if h.Pod == "" {
		return "pod " + h.PodUID
	}
	return h.Namespace + "/" + h.Pod
}

func holderViews(holders []gpu.Holder) []holderView {
	return each(holders, func(h *gpu.Holder) holderView { return holderView{Name: podText(h), Unconfirmed: h.Unconfirmed} })
}

// sharedViews lists the containers that share a GPU, with their memory where it is known.
func sharedViews(g *gpu.GPU) []sharedView {
	memory := make(map[gpu.Container]uint64, len(g.Containers))
	for _, c := range g.Containers {
		if used, ok := c.MemoryUsed.Get(); ok {
			memory[c.Container] += used
		}
	}
	return each(g.Holders, func(h *gpu.Holder) sharedView {
		v := sharedView{holderView: holderView{Name: podText(h) + " " + h.Name, Unconfirmed: h.Unconfirmed}}
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
	return plural(len(holders), "container") + " (" + how + ")"
}

// unconfirmedViews lists the unconfirmed holders of a GPU and of its instances by reason.
func unconfirmedViews(g *gpu.GPU) []unconfirmedView {
	var reasons []string
	pods := map[string][]string{}
	add := func(holders []gpu.Holder) {
		for i := range holders {
			reason, pod := holders[i].Unconfirmed, podText(&holders[i])
			if reason == "" || slices.Contains(pods[reason], pod) {
				continue
			}
			if pods[reason] == nil {
				reasons = append(reasons, reason)
			}
			pods[reason] = append(pods[reason], pod)
		}
	}
	add(g.Holders)
	for i := range g.Instances {
		add(g.Instances[i].Holders)
		for c := range g.Instances[i].ComputeInstances {
			add(g.Instances[i].ComputeInstances[c].Holders)
		}
	}
	return each(reasons, func(reason *string) unconfirmedView {
		return unconfirmedView{Pods: strings.Join(pods[*reason], ", "), Reason: *reason}
	})
}

// maxUnmatched is how many unmatched devices the page names.
const maxUnmatched = 10

// holderNotices says what is wrong with who holds the devices.
func holderNotices(snap *gpu.Snapshot) []notice {
	var notices []notice
	if n := len(snap.Unmatched); n > 0 {
		shown := snap.Unmatched[:min(n, maxUnmatched)]
		notices = append(notices, notice{
			Class: "warn", Title: plural(n, "device id") + " without a device",
			Text: "Pods were given devices that this node does not have. They run without them.",
			Unmatched: each(shown, func(a *gpu.Assignment) unmatchedView {
				return unmatchedView{ID: nodedoc.ShortText(a.ID), Resource: nodedoc.ShortText(a.Holder.Resource), Holder: podText(&a.Holder) + " " + a.Holder.Name}
			}),
			More: n - len(shown),
			Hint: "Restart the device plugin, so that it no longer offers such devices, then delete the pods.",
		})
	}
	if snap.HoldersIncomplete != "" {
		notices = append(notices, notice{
			Class: "warn", Title: "Not all holders are known", Text: snap.HoldersIncomplete,
			Hint: "A device without a holder may be held all the same: it is shown as unknown.",
		})
	}
	return notices
}

// freeTile counts the GPUs that no pod holds a part of, and those of which this is not known. It returns false if nothing is
// known of holders.
func freeTile(snap *gpu.Snapshot) (tile, bool) {
	free, unknown := 0, 0
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

// each maps a list.
func each[T, V any](list []T, view func(*T) V) []V {
	views := make([]V, 0, len(list))
	for i := range list {
		views = append(views, view(&list[i]))
	}
	return views
}
