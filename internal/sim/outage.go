package sim

import (
	"math"
	"slices"
	"time"
)

// This file computes when the kubelet and the API server answer, and which pods the kubelet knows
// after a restart. All of it depends only on the scenario and the time since the start.

// never is later than every time of a scenario.
const never = time.Duration(math.MaxInt64)

// A restarted kubelet lists nothing at first, then its static pods, then also the pods of the API
// server (seen with Kubernetes 1.34). If the API server does not answer at that time, the kubelet
// gets its pods 40 s after the API server is back.
const (
	staticPodsAfter = time.Second
	apiPodsAfter    = 2 * time.Second
	askAgainAfter   = 40 * time.Second
)

// outage is a period since the start of the node: from begin on, until just before end.
type outage struct{ begin, end time.Duration }

type outages []outage

// outages returns the periods of the faults of some kinds. A fault without a duration does not end,
// except FaultKubeletRestart, which is an instant.
func (s *Scenario) outages(kinds ...FaultKind) outages {
	var list outages

	for i := range s.Faults {
		f := &s.Faults[i]
		if !slices.Contains(kinds, f.Kind) {
			continue
		}

		end := f.At + f.For
		if f.For == 0 && f.Kind != FaultKubeletRestart {
			end = never
		}

		list = append(list, outage{f.At, end})
	}

	return list
}

// upFrom returns the first time from t on at which no outage holds: t itself, the end of an outage,
// or never.
func (o outages) upFrom(t time.Duration) time.Duration {
	for moved := true; moved; { // until t is in none of them: they can overlap, in any order
		moved = false

		for _, x := range o {
			if x.begin <= t && t < x.end {
				t = x.end
				moved = true
			}
		}
	}

	return t
}

// downSince returns the beginning of the outages that hold at t, with all outages that led up to
// them without a gap. It returns t if none holds then.
func (o outages) downSince(t time.Duration) time.Duration {
	if o.upFrom(t) == t {
		return t
	}

	for moved := true; moved; {
		moved = false

		for _, x := range o {
			if x.begin < t && t <= x.end {
				t = x.begin
				moved = true
			}
		}
	}

	return t
}

// ended returns how many outages have ended by t, and when the last of them did.
func (o outages) ended(t time.Duration) (count int, last time.Duration) {
	for _, x := range o {
		if x.end <= t {
			count++
			last = max(last, x.end)
		}
	}

	return count, last
}

// listsFrom returns when a kubelet that was started at a time first lists its static pods, or all of
// its pods if static is not set.
func (n *Node) listsFrom(started time.Duration, static bool) time.Duration {
	if static {
		return started + staticPodsAfter
	}

	t := started + apiPodsAfter
	for {
		up := n.apiOutages.upFrom(t)
		if up == t || up == never {
			return up
		}

		t = up + askAgainAfter
	}
}

// knowsPods reports whether at time t the kubelet knows its static pods, or the API server's pods if
// static is not set. When a node starts, its kubelet knows both.
func (n *Node) knowsPods(t time.Duration, static bool) bool {
	if n.kubeletOutages.upFrom(t) != t {
		return false
	}

	restarts, started := n.kubeletOutages.ended(t)

	return restarts == 0 || t >= n.listsFrom(started, static)
}

// admitsFrom returns the first time from t on at which the kubelet can admit a static pod, or, if
// static is not set, a pod of the API server, which must answer at that time. It can be never.
func (n *Node) admitsFrom(t time.Duration, static bool) time.Duration {
	for t != never {
		next := n.kubeletOutages.upFrom(t)
		if restarts, started := n.kubeletOutages.ended(next); restarts > 0 && next != never {
			next = max(next, n.listsFrom(started, static))
		}

		if !static {
			next = n.apiOutages.upFrom(next)
		}

		if next == t {
			return t
		}

		t = next
	}

	return never
}

// KubeletState is the state of the node's kubelet under the active faults.
type KubeletState struct {
	Down     bool
	Delay    time.Duration // real time that every answer takes
	Restarts int           // so far
}

// Kubelet returns the state of the node's kubelet. It is down during kubelet-down and
// kubelet-restart faults, and starts again at the end of each.
func (n *Node) Kubelet() KubeletState {
	now := n.lockAndCatchUp()
	defer n.mu.Unlock()

	sinceStart := now.Sub(n.start)
	state := KubeletState{Down: n.kubeletOutages.upFrom(sinceStart) != sinceStart}
	state.Restarts, _ = n.kubeletOutages.ended(sinceStart)
	n.eachActiveFault(noSingleGPU, now, func(f *FaultSpec) {
		if f.Kind == FaultKubeletSlow {
			state.Delay = max(state.Delay, f.Delay)
		}
	})

	return state
}
