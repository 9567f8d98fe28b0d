package podresources

import (
	"time"
)

const (
	// settleAfter is how long no new pod must have appeared in the list before it is settled.
	settleAfter = 2 * time.Second
	// unaidedSettleAfter is the same while nothing but the list itself says which pods the node has: because no list was
	// settled since this program started and no source is there, or because the API server does not answer.
	unaidedSettleAfter = time.Minute
)

// settle decides whether a list has all pods of the node. Once one has, all later ones of the same kubelet have.
func (g *ledger) settle(l *listing, now time.Time) bool {
	s := &g.settlement
	if s.settled {
		return true
	}
	s.recordPods(l.pods, g.isStatic, now)
	s.awaited = ""
	if !s.isQuiet(settleAfter, now) {
		return false
	}

	unlisted, aided := g.findUnlistedPod()
	switch {
	case unlisted != "":
		s.awaited = unlisted + ", has not been listed"
		return false
	case !aided && !s.isQuiet(unaidedSettleAfter, now):
		s.awaited = "no other source says which pods there are, and the list has not been the same for " +
			unaidedSettleAfter.String()
		return false
	}
	s.settled, s.podsSeen = true, nil
	return true
}

// findUnlistedPod returns a pod that is on the node and has not been listed since the kubelet began; empty if there is
// none. A pod is on the node if it has held a device and has not been proved to have ended, if the API server has bound
// it and it has not ended, or if a container of it runs. aided reports whether there was a source besides the list: a
// restarted kubelet's list can be compared with what was listed before, but only once a list was settled.
func (g *ledger) findUnlistedPod() (unlisted string, aided bool) {
	seen := g.settlement.podsSeen
	for n := range g.holdings {
		h := &g.holdings[n]
		if !seen[h.podName()] && !h.dismissed && !h.admin.Or(false) {
			return "pod " + h.podName().String() + ", which held a device", true
		}
	}

	aided = g.settlement.settledBefore || g.checkpoint.readable()
	if g.metadata != nil {
		bound, known := g.metadata.BoundPods(g.settlement.startedAt)
		for _, pod := range bound {
			if !seen[pod] {
				return "pod " + pod.String() + ", which the API server has bound to this node", true
			}
		}
		aided = known
	}

	live, visible := g.liveContainers()
	for pod := range live.pods {
		if !seen[pod] {
			return "pod " + pod.String() + ", of which a container runs", true
		}
	}
	return "", aided || visible
}

// liveContainers returns the containers that have a process, and whether the host's processes are seen. They are read
// once for each list at most.
func (g *ledger) liveContainers() (*liveContainers, bool) {
	switch {
	case g.seenLive != nil:
	case g.live != nil:
		g.seenLive, g.seesProcesses = g.live()
	default:
		g.seenLive, g.seesProcesses = newLiveContainers(), false
	}
	return g.seenLive, g.seesProcesses
}

// hasLiveContainer reports whether the container of a missing holding runs. Without the pod's UID a listed pod of its
// name may be a successor, whose devices are listed.
func (g *ledger) hasLiveContainer(h *holding, l *listing) bool {
	uid := g.pods.podUID(h)
	if uid == "" && l.pods[h.podName()] {
		return false
	}
	live, _ := g.liveContainers()
	return live.has(h.Holder.Container, uid)
}
