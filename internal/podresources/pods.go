package podresources

import (
	"iter"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// metadataWait is how long a new pod stays undescribed while its metadata is looked up.
const metadataWait = time.Second

// podState is what we know about a pod that has holdings.
type podState struct {
	since       time.Time // when it was first listed; older metadata may be about an earlier pod of its name
	uid         string    // by the checkpoint; empty if unknown
	hasMetadata bool      // metadata is set
	metadata    gpu.PodMetadata
}

// describe adds to a holder what the API server says of its pod.
func describe(h *gpu.Holder, pod *gpu.PodMetadata) {
	h.Workload = pod.Workload
	h.Template = pod.Template
	h.Labels = pod.Labels
	h.Rightsizing = pod.Rightsizing
	h.Group = pod.Group
}

// podStates keeps what we know about the pods of holdings. A later pod may have the name of an
// earlier one, even if they have different owners.
type podStates struct {
	byName map[gpu.PodName]*podState
}

// updateStates updates the states after a list. holdings are sorted, and listNumber is the number
// of the list.
func (p *podStates) updateStates(holdings []holding, listNumber uint64, now time.Time) {
	states := make(map[gpu.PodName]*podState, len(p.byName))

	for group := range groupByPod(holdings) {
		name := group[0].podName()
		state := p.byName[name]
		uid := listedUID(group)

		if state == nil || isSuccessor(group, state, uid, listNumber) {
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

// listedUID returns the UID that the checkpoint has for the listed holdings of a pod; empty if it
// has none.
func listedUID(group []holding) string {
	for n := range group {
		if h := &group[n]; h.isListed() && h.Holder.PodUID != "" {
			return h.Holder.PodUID
		}
	}

	return ""
}

// podUID returns the UID of a holding's pod by the checkpoint or the API server; empty if neither
// has it.
func (p *podStates) podUID(h *holding) string {
	if state := p.byName[h.podName()]; h.Holder.PodUID == "" && state != nil && state.describes(h) {
		return state.metadata.UID
	}

	return h.Holder.PodUID
}

// describes reports whether the metadata is of the holding's pod, not of a later pod of the same
// name.
func (s *podState) describes(h *holding) bool { return s.hasMetadata && !h.LastListed.Before(s.since) }

// forgetClaims drops what we know about the claims of listed holdings: they belong to another pod,
// whose claims may have the same names.
func forgetClaims(group []holding) {
	for n := range group {
		if h := &group[n]; h.isListed() {
			h.admin = gpu.None[bool]()
			h.dismissed = false
		}
	}
}

// isSuccessor reports whether the listed holdings belong to a later pod of the same name than
// state: the pod has another UID, or all of its listed holdings are new in this list.
func isSuccessor(group []holding, state *podState, uid string, listNumber uint64) bool {
	if uid != "" && state.uid != "" && uid != state.uid {
		return true
	}

	anyListed := false

	for n := range group {
		if group[n].isListed() {
			if group[n].FirstListNumber != listNumber {
				return false
			}

			anyListed = true
		}
	}

	return anyListed
}

// fetchMetadata looks up the metadata of a listed pod. It ignores metadata with another UID than
// the checkpoint's. If the UID in the metadata has changed, the state becomes that of a later pod.
// pending is whether the metadata is missing but may still come.
func (s *podState) fetchMetadata(group []holding, m Metadata, now time.Time) (pending bool) {
	if m == nil ||
		!slices.ContainsFunc(group, func(h holding) bool { return h.isListed() }) {
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

// groupByPod yields the holdings of each pod, given holdings that are sorted by pod.
func groupByPod(holdings []holding) iter.Seq[[]holding] {
	return func(yield func([]holding) bool) {
		rest := holdings
		for len(rest) > 0 {
			n := 1
			for n < len(rest) && rest[n].podName() == rest[0].podName() {
				n++
			}

			if !yield(rest[:n:n]) {
				return
			}

			rest = rest[n:]
		}
	}
}
