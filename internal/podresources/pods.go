package podresources

import (
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// describeWait is how long a new pod is not named while the API server is asked about it.
const describeWait = time.Second

// podState is what is known of a pod that has holdings.
type podState struct {
	since time.Time // its first listing: what the API server said before may be about another pod of that name
	uid   string    // as the checkpoint has it; empty if unknown
	known bool      // the API server has told of it
	meta  gpu.PodMetadata
}

// pods remembers the pods of holdings by name. A name is used again, by another owner, too.
type pods struct {
	states map[podName]*podState
}

// update follows the holdings, in which those of one pod stand together.
func (p *pods) update(held []holding, round uint64, now time.Time) {
	states := make(map[podName]*podState, len(p.states))
	for group := range groupByPod(held) {
		name := group[0].pod()
		state, uid := p.states[name], listedUID(group)
		if state == nil || isSuccessor(group, state, uid, round) {
			state = &podState{since: now}
			forgetClaims(group)
		}
		if state.uid == "" {
			state.uid = uid
		}
		states[name] = state
	}
	p.states = states
}

// listedUID returns the UID that the checkpoint has of a pod that is listed; empty if it has none.
func listedUID(group []holding) string {
	for n := range group {
		if h := &group[n]; h.missing.IsZero() && h.Holder.PodUID != "" {
			return h.Holder.PodUID
		}
	}
	return ""
}

// uid returns the UID of a holding's pod, by the checkpoint or by the API server; empty if neither has told.
func (p *pods) uid(h *holding) string {
	if state := p.states[h.pod()]; h.Holder.PodUID == "" && state != nil && state.describes(h) {
		return state.meta.UID
	}
	return h.Holder.PodUID
}

// describes reports whether a holding is that of the state's pod, not of one that had its name before.
func (s *podState) describes(h *holding) bool { return s.known && !h.Listed.Before(s.since) }

// forgetClaims forgets what was known of the claims of listed holdings: those of another pod have their names.
func forgetClaims(group []holding) {
	for n := range group {
		if h := &group[n]; h.missing.IsZero() {
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
		if group[n].missing.IsZero() {
			if group[n].Seen != round {
				return false
			}
			listed++
		}
	}
	return listed > 0
}

// describe asks what the API server knows of a pod that is listed, and reports whether that is awaited. A pod of the name that has
// another UID than the one before is another pod.
func (s *podState) describe(group []holding, m Metadata, now time.Time) (awaited bool) {
	if m == nil || !slices.ContainsFunc(group, func(h holding) bool { return h.missing.IsZero() }) {
		return false
	}
	meta, ok := m.PodMetadata(group[0].Holder.Namespace, group[0].Holder.Pod, s.since)
	if ok && (s.uid == "" || meta.UID == s.uid) {
		if s.known && meta.UID != s.meta.UID {
			s.since = now
			forgetClaims(group)
		}
		s.meta, s.known = meta, true
	}
	return !s.known && now.Sub(s.since) < describeWait
}

// groupByPod yields the holdings of one pod after the other.
func groupByPod(held []holding) func(yield func([]holding) bool) {
	return func(yield func([]holding) bool) {
		for len(held) > 0 {
			n := 1
			for n < len(held) && held[n].pod() == held[0].pod() {
				n++
			}
			if !yield(held[:n:n]) {
				return
			}
			held = held[n:]
		}
	}
}
