package podresources

import (
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// metadataWait is how long a new pod stays undescribed while its metadata is looked up.
const metadataWait = time.Second

// podState is what we know about a pod that has holdings.
type podState struct {
	since       time.Time // its first listing; earlier metadata may be about another pod of the name
	uid         string    // by the checkpoint; empty if unknown
	hasMetadata bool      // metadata is set
	metadata    gpu.PodMetadata
}

// podStates keeps the pods of holdings by name. Another pod may reuse a name, even of another
// owner.
type podStates struct {
	byName map[gpu.PodName]*podState
}

// updateStates updates the states from the sorted holdings. round is the number of the list.
func (p *podStates) updateStates(held []holding, round uint64, now time.Time) {
	states := make(map[gpu.PodName]*podState, len(p.byName))

	for group := range groupByPod(held) {
		name := group[0].podName()
		state := p.byName[name]
		uid := listedUID(group)

		if state == nil || isSuccessor(group, state, uid, round) {
			state = &podState{since: now}
			forgetClaims(group)
		}

		if state.uid == "" {
			state.uid = uid
		}

		states[name] = state
	}

	p.byName = states
}

// listedUID returns the UID of a listed pod by the checkpoint; empty if it has none.
func listedUID(group []holding) string {
	for n := range group {
		if h := &group[n]; h.missingSince.IsZero() && h.Holder.PodUID != "" {
			return h.Holder.PodUID
		}
	}

	return ""
}

// podUID returns the UID of a holding's pod by the checkpoint or the API server; empty if neither
// has it.
func (p *podStates) podUID(h *holding) string {
	if state := p.byName[h.podName()]; h.Holder.PodUID == "" && state != nil && state.isOfPod(h) {
		return state.metadata.UID
	}

	return h.Holder.PodUID
}

// isOfPod reports whether the metadata is of the holding's pod, not of a later pod of the same
// name.
func (s *podState) isOfPod(h *holding) bool { return s.hasMetadata && !h.LastListed.Before(s.since) }

// forgetClaims drops what we know about the claims of listed holdings: another pod has claims of
// the same names.
func forgetClaims(group []holding) {
	for n := range group {
		if h := &group[n]; h.missingSince.IsZero() {
			h.admin = gpu.None[bool]()
			h.dismissed = false
		}
	}
}

// isSuccessor reports whether the listed holdings belong to a later pod of the same name than the
// state: one with another UID, or with new holdings only.
func isSuccessor(group []holding, state *podState, uid string, round uint64) bool {
	if uid != "" && state.uid != "" && uid != state.uid {
		return true
	}

	listed := 0

	for n := range group {
		if group[n].missingSince.IsZero() {
			if group[n].FirstListNumber != round {
				return false
			}

			listed++
		}
	}

	return listed > 0
}

// fetchMetadata looks up the metadata of a listed pod, and reports whether to wait for it. If its
// UID is another than before, so is the pod.
func (s *podState) fetchMetadata(group []holding, m Metadata, now time.Time) (awaited bool) {
	if m == nil ||
		!slices.ContainsFunc(group, func(h holding) bool { return h.missingSince.IsZero() }) {
		return false
	}

	meta, ok := m.PodMetadata(group[0].Holder.Namespace, group[0].Holder.Pod, s.since)
	if ok && (s.uid == "" || meta.UID == s.uid) {
		if s.hasMetadata && meta.UID != s.metadata.UID {
			s.since = now
			forgetClaims(group)
		}

		s.metadata = meta
		s.hasMetadata = true
	}

	return !s.hasMetadata && now.Sub(s.since) < metadataWait
}

// groupByPod yields the holdings of each pod.
func groupByPod(held []holding) func(yield func([]holding) bool) {
	return func(yield func([]holding) bool) {
		for len(held) > 0 {
			n := 1
			for n < len(held) && held[n].podName() == held[0].podName() {
				n++
			}

			if !yield(held[:n:n]) {
				return
			}

			held = held[n:]
		}
	}
}
