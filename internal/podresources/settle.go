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
	s := &g.completeness
	if s.settled {
		return true
	}

	s.recordPods(l.pods, g.isStatic, now)

	s.awaited = ""
	if !s.isQuiet(settleAfter, now) {
		return false
	}

	s.awaited = g.awaitedBy(now)
	if s.awaited != "" {
		return false
	}

	s.settled = true
	s.podsSeen = nil

	return true
}

// awaitedBy returns what a quiet list has to wait for; empty if it has every pod that is known to be on the node, and
// what knows them can be relied on.
func (g *ledger) awaitedBy(now time.Time) string {
	unlisted, aided := g.findUnlistedPod()
	if unlisted == "" && !aided && !g.completeness.isQuiet(unaidedSettleAfter, now) {
		return "no other source says which pods there are, and the list has not been the same for " +
			unaidedSettleAfter.String()
	}

	// To see what runs takes a file of every process, so it comes last.
	if unlisted == "" {
		unlisted = g.findUnlistedLivePod()
	}

	if unlisted == "" {
		return ""
	}

	return unlisted + ", has not been listed"
}

// findUnlistedPod returns a pod that is on the node and has not been listed since the kubelet began; empty if there is
// none. A pod is on the node if it has held a device and has not been proved to have ended, or if the API server has
// bound it and it has not ended. aided reports whether there was a source besides the list: a restarted kubelet's list
// can be compared with what was listed before, but only once a list was settled.
func (g *ledger) findUnlistedPod() (unlisted string, aided bool) {
	seen := g.completeness.podsSeen
	for n := range g.holdings {
		h := &g.holdings[n]
		if !seen[h.podName()] && !h.dismissed && !h.admin.Or(false) {
			return "pod " + h.podName().String() + ", which held a device", true
		}
	}

	if g.metadata == nil {
		return "", g.completeness.settledBefore || g.checkpoint.coversNode()
	}

	bound, current := g.metadata.BoundPods(g.completeness.startedAt)
	for _, pod := range bound {
		if !seen[pod] {
			return "pod " + pod.String() + ", which the API server has bound to this node", true
		}
	}

	return "", current
}

// findUnlistedLivePod returns the first pod by name of which a container runs and that has not been listed since the
// kubelet began; empty if none is seen. That none is seen proves nothing: a pod may hold a device without a process.
func (g *ledger) findUnlistedLivePod() string {
	first := ""
	for pod := range g.liveContainers().pods {
		if name := pod.String(); !g.completeness.podsSeen[pod] && (first == "" || name < first) {
			first = name
		}
	}

	if first == "" {
		return ""
	}

	return "pod " + first + ", of which a container runs"
}

// liveContainers returns the containers that have a process. They are read once for each list at most.
func (g *ledger) liveContainers() *liveContainers {
	if g.seenLive == nil {
		g.seenLive = newLiveContainers()
		if g.live != nil {
			g.seenLive = g.live()
		}
	}

	return g.seenLive
}

// hasLiveContainer reports whether the container of a missing holding runs. Without the pod's UID a listed pod of its
// name may be a successor, whose devices are listed.
func (g *ledger) hasLiveContainer(h *holding, l *listing) bool {
	uid := g.pods.podUID(h)
	if uid == "" && l.pods[h.podName()] {
		return false
	}

	return g.liveContainers().has(h.Holder.Container, uid)
}
