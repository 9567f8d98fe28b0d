package podresources

import (
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// metadataWait is how long a new pod is not named while the API server is asked about it.
const metadataWait = time.Second

// podState is what is known of a pod that has holdings.
type podState struct {
	since       time.Time // its first listing: what the API server said before may be about another pod of that name
	uid         string    // as the checkpoint has it; empty if unknown
	hasMetadata bool      // the API server has told of it
	metadata    gpu.PodMetadata
}

// podStates remembers the pods of holdings by name. A name is used again, by another owner, too.
type podStates struct {
	byName map[podName]*podState
}

// updateStates follows the holdings, in which those of one pod stand together.
func (p *podStates) updateStates(held []holding, round uint64, now time.Time) {
	states := make(map[podName]*podState, len(p.byName))
	for group := range groupByPod(held) {
		name := group[0].podName()
		state, uid := p.byName[name], listedUID(group)
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

// listedUID returns the UID that the checkpoint has of a pod that is listed; empty if it has none.
func listedUID(group []holding) string {
	for n := range group {
		if h := &group[n]; h.missingSince.IsZero() && h.Holder.PodUID != "" {
			return h.Holder.PodUID
		}
	}
	return ""
}

// podUID returns the UID of a holding's pod, by the checkpoint or by the API server; empty if neither has told.
func (p *podStates) podUID(h *holding) string {
	if state := p.byName[h.podName()]; h.Holder.PodUID == "" && state != nil && state.isOfPod(h) {
		return state.metadata.UID
	}
	return h.Holder.PodUID
}

// isOfPod reports whether a holding is that of the state's pod, not of one that had its name before.
func (s *podState) isOfPod(h *holding) bool { return s.hasMetadata && !h.Listed.Before(s.since) }

// forgetClaims forgets what was known of the claims of listed holdings: those of another pod have their names.
func forgetClaims(group []holding) {
	for n := range group {
		if h := &group[n]; h.missingSince.IsZero() {
			h.admin, h.dismissed = gpu.None[bool](), false
		}
	}
}

// isSuccessor reports whether the listed holdings of a name are another pod's than those that the state is of: another UID's,
// or all new.
func isSuccessor(group []holding, state *podState, uid string, round uint64) bool {
	if uid != "" && state.uid != "" && uid != state.uid {
		return true
	}
	listed := 0
	for n := range group {
		if group[n].missingSince.IsZero() {
			if group[n].Seen != round {
				return false
			}
			listed++
		}
	}
	return listed > 0
}

// fetchMetadata asks what the API server knows of a pod that is listed, and reports whether that is awaited. A pod of the name that has
// another UID than the one before is another pod.
func (s *podState) fetchMetadata(group []holding, m Metadata, now time.Time) (awaited bool) {
	if m == nil || !slices.ContainsFunc(group, func(h holding) bool { return h.missingSince.IsZero() }) {
		return false
	}
	meta, ok := m.PodMetadata(group[0].Holder.Namespace, group[0].Holder.Pod, s.since)
	if ok && (s.uid == "" || meta.UID == s.uid) {
		if s.hasMetadata && meta.UID != s.metadata.UID {
			s.since = now
			forgetClaims(group)
		}
		s.metadata, s.hasMetadata = meta, true
	}
	return !s.hasMetadata && now.Sub(s.since) < metadataWait
}

// groupByPod yields the holdings of one pod after the other.
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
