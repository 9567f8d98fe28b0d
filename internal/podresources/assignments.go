package podresources

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// assignmentsAt returns the assignments that we know at now. err is the error of the last call of
// the kubelet, if any.
func (g *ledger) assignmentsAt(err error, now time.Time) gpu.Assignments {
	out := gpu.Assignments{
		List:       make([]gpu.Assignment, 0, len(g.holdings)),
		Unreadable: g.unreadable,
		Incomplete: g.incompleteReason(err, now),
		Witness:    g.completeness.witness != "",
		Epoch:      g.epoch,
		Free:       slices.Clone(g.free),
	}
	var orders []int

	for group := range groupByPod(g.holdings) {
		first := len(out.List)
		orders = orders[:0]
		state := g.pods.byName[group[0].podName()]
		awaited := state.fetchMetadata(group, g.metadata, now)
		described := true

		for n := range group {
			if a, holds := g.assignmentOf(&group[n], state, awaited, now); holds {
				out.List = append(out.List, a)
				orders = append(orders, group[n].order)
				described = described && state.isOfPod(&group[n])
			}
		}

		if reserved := state.metadata.MIGDevices; len(reserved) > 0 && described {
			applyReservations(out.List[first:], orders, reserved)
		}
	}

	if rest := g.unlisted.listAssignments(g.settled, g.checkpoint.readAt()); len(rest) > 0 {
		out.List = append(out.List, rest...)
		slices.SortFunc(out.List, func(a, b gpu.Assignment) int {
			return cmp.Or(compareAssignments(&a, &b), cmp.Compare(a.Holder.PodUID, b.Holder.PodUID))
		})
	}

	return out
}

// assignmentOf returns the assignment of a holding, with the metadata of its pod; false if it holds
// nothing. awaited is whether the metadata may still come.
func (g *ledger) assignmentOf(
	h *holding,
	state *podState,
	awaited bool,
	now time.Time,
) (gpu.Assignment, bool) {
	a := h.Assignment
	a.Holder.PodUID = g.pods.podUID(h)

	if state.isOfPod(h) {
		a.Holder.Workload = state.metadata.Workload
		a.Holder.Labels = state.metadata.Labels
		a.Holder.Rightsizing = state.metadata.Rightsizing
		a.Holder.Group = state.metadata.Group
	}

	a.Holder.Undescribed = awaited

	// A listed holding is certain, also without a process.
	running := (h.dismissed || !h.missingSince.IsZero()) && g.isRunning(&h.Assignment)
	if !h.missingSince.IsZero() && !running {
		a.Holder.Unconfirmed = g.missingReason(h)
	}

	if (h.claim == gpu.ClaimDevice{}) {
		return a, !h.dismissed || running
	}

	if !h.admin.Present() {
		admin, err := g.adminAccess(h.claim, state.since)
		if err != nil {
			a.Holder.Sharing = gpu.SharingUnknown
			a.Holder.Unconfirmed = cmp.Or(a.Holder.Unconfirmed,
				"its claim may be for administrative access, which reserves nothing: "+err.Error())
			a.Holder.Undescribed = awaited ||
				g.metadata != nil && now.Sub(state.since) < metadataWait

			return a, !h.dismissed || running
		}

		h.admin = gpu.Some(admin)
		h.dismissed = h.dismissed && !h.missingSince.IsZero()
	}

	return a, !h.admin.Or(false) && (!h.dismissed || running)
}

// missingReason says what we know about a holding that the kubelet does not list.
func (g *ledger) missingReason(h *holding) string {
	reason := "the kubelet listed it last at " + formatTime(h.LastListed)
	if g.checkpoint.hasDevice(h) {
		reason += "; its checkpoint has it"
	}

	if uid := g.pods.podUID(h); g.metadata != nil && uid != "" {
		if _, _, ok := g.metadata.PodByUID(uid); ok {
			reason += "; the API server has the pod"
		}
	}

	return reason
}

var errNotAsked = errors.New("the API server is not asked (--kubernetes.node-name)")

func (g *ledger) adminAccess(d gpu.ClaimDevice, since time.Time) (bool, error) {
	if g.metadata == nil {
		return false, errNotAsked
	}

	return g.metadata.AdminAccess(d, since)
}

// isRunning reports whether a process of the container runs on the device.
func (g *ledger) isRunning(a *gpu.Assignment) bool { return g.running != nil && g.running(a) }

// maxSilence is how long the last list proves devices free while the kubelet does not answer.
const maxSilence = 5 * time.Second

// incompleteReason returns why a device without a known holder may have one nevertheless; empty if
// we know all holders.
func (g *ledger) incompleteReason(err error, now time.Time) string {
	switch {
	case errors.Is(err, gpu.ErrNotConfigured):
		return "the kubelet is " + err.Error()
	case err != nil && (!g.settled || now.Sub(g.lastAnswer) >= maxSilence):
		return "the kubelet does not answer: " + clientMessage(err)
	case g.overflow:
		return fmt.Sprintf("more than %d devices have left the kubelet's list at once", maxMissing)
	case !g.settled:
		return g.completeness.unsettledReason()
	case len(g.unreadable) > 0:
		return fmt.Sprintf(
			"%d device ids that the kubelet gave out have no known form, the first is %q of resource %q",
			len(g.unreadable),
			g.unreadable[0].ID,
			g.unreadable[0].Holder.Resource,
		)
	}

	return ""
}

// clientMessage returns why the kubelet does not answer. Clients see it, so it has no paths of the
// node.
func clientMessage(err error) string {
	switch {
	case errors.Is(err, gpu.ErrNotFound):
		return "there is no socket at --kubernetes.socket (is its folder mounted? An empty path says " +
			"that this node has no kubelet)"
	case errors.Is(err, gpu.ErrNoPermission):
		return "no permission to use its socket"
	case errors.Is(err, gpu.ErrTimeout):
		return gpu.ErrTimeout.Error()
	}

	return "its socket refuses the connection, or the call failed"
}

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }
