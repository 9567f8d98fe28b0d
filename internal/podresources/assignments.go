package podresources

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// assignmentsAt returns the assignments as we know them at now. err is the error of the last call
// of the kubelet; nil if it answered.
func (l *ledger) assignmentsAt(err error, now time.Time) gpu.Assignments {
	out := gpu.Assignments{
		List:       make([]gpu.Assignment, 0, len(l.holdings)),
		Unreadable: l.unreadable,
		Incomplete: l.incompleteReason(err, now),
		Witness:    l.completeness.witness != "",
		Epoch:      l.epoch,
		Free:       slices.Clone(l.free),
	}
	var containerIndexes []int // the containerIndex of each assignment of a pod

	for group := range groupByPod(l.holdings) {
		firstOfPod := len(out.List)
		containerIndexes = containerIndexes[:0]
		state := l.pods.byName[group[0].podName()]
		metadataPending := state.fetchMetadata(group, l.metadata, now)
		allDescribed := true

		for n := range group {
			if a, holds := l.assignmentOf(&group[n], state, metadataPending, now); holds {
				out.List = append(out.List, a)
				containerIndexes = append(containerIndexes, group[n].containerIndex)
				allDescribed = allDescribed && state.describes(&group[n])
			}
		}

		if reserved := state.metadata.MIGDevices; len(reserved) > 0 && allDescribed {
			applyReservations(out.List[firstOfPod:], containerIndexes, reserved)
		}
	}

	if unlisted := l.unlisted.listAssignments(l.settled, l.checkpoint.readAt()); len(unlisted) > 0 {
		out.List = append(out.List, unlisted...)
		slices.SortFunc(out.List, func(a, b gpu.Assignment) int {
			return cmp.Or(compareAssignments(&a, &b), cmp.Compare(a.Holder.PodUID, b.Holder.PodUID))
		})
	}

	return out
}

// assignmentOf returns the assignment of a holding, with the metadata of its pod. holds is false if
// the container holds nothing: an operator has dismissed the holding, or its claim is for
// administrative access. metadataPending says that the metadata may still come.
func (l *ledger) assignmentOf(
	h *holding,
	state *podState,
	metadataPending bool,
	now time.Time,
) (a gpu.Assignment, holds bool) {
	a = h.Assignment
	a.Holder.PodUID = l.pods.podUID(h)

	if state.describes(h) {
		describe(&a.Holder, &state.metadata)
	}

	a.Holder.Undescribed = metadataPending

	// A holding that the kubelet lists needs no process to be certain.
	running := (h.dismissed || !h.isListed()) && l.isRunning(&h.Assignment)
	if !h.isListed() && !running {
		a.Holder.Unconfirmed = l.missingReason(h)
	}

	if h.fromPlugin() {
		return a, !h.dismissed || running
	}

	if !h.admin.Present() {
		admin, err := l.adminAccess(h.claim, state.since)
		if err != nil {
			a.Holder.Sharing = gpu.SharingUnknown
			a.Holder.Unconfirmed = cmp.Or(a.Holder.Unconfirmed,
				"its claim may be for administrative access, which reserves nothing: "+err.Error())

			// We wait for the claim as long as for the metadata.
			a.Holder.Undescribed = metadataPending ||
				l.metadata != nil && now.Sub(state.since) < metadataWait

			return a, !h.dismissed || running
		}

		h.admin = gpu.Some(admin)
		h.dismissed = h.dismissed && !h.isListed() // a listed holding is certain now
	}

	return a, !h.admin.Or(false) && (!h.dismissed || running)
}

// missingReason says what we know about a holding that the kubelet does not list.
func (l *ledger) missingReason(h *holding) string {
	reason := "the kubelet listed it last at " + formatTime(h.LastListed)
	if l.checkpoint.hasDevice(h) {
		reason += "; its checkpoint has it"
	}

	if uid := l.pods.podUID(h); l.metadata != nil && uid != "" {
		if _, _, ok := l.metadata.PodByUID(uid); ok {
			reason += "; the API server has the pod"
		}
	}

	return reason
}

var errNotAsked = errors.New("the API server is not asked (--kubernetes.node-name)")

// adminAccess reports whether a claim has a device for administrative access.
func (l *ledger) adminAccess(d gpu.ClaimDevice, since time.Time) (bool, error) {
	if l.metadata == nil {
		return false, errNotAsked
	}

	return l.metadata.AdminAccess(d, since)
}

// isRunning reports whether a process of the container runs on the device.
func (l *ledger) isRunning(a *gpu.Assignment) bool { return l.running != nil && l.running(a) }

// maxSilence is for how long the kubelet may fail to answer before its last list no longer proves
// that a device is free.
const maxSilence = 5 * time.Second

// incompleteReason returns why a device without a known holder may have one nevertheless; empty if
// we know all holders.
func (l *ledger) incompleteReason(err error, now time.Time) string {
	switch {
	case errors.Is(err, gpu.ErrNotConfigured):
		return "the kubelet is " + err.Error()
	case err != nil && (!l.settled || now.Sub(l.lastAnswer) >= maxSilence):
		return "the kubelet does not answer: " + clientMessage(err)
	case l.overflow:
		return fmt.Sprintf("more than %d devices have left the kubelet's list at once", maxMissing)
	case !l.settled:
		return l.completeness.unsettledReason()
	case len(l.unreadable) > 0:
		return fmt.Sprintf(
			"%d device ids that the kubelet gave out have no known form, the first is %q of resource %q",
			len(l.unreadable),
			l.unreadable[0].ID,
			l.unreadable[0].Holder.Resource,
		)
	}

	return ""
}

// clientMessage returns why the kubelet does not answer, as text for clients of this exporter: it
// has no paths of the node.
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
