package podresources

import (
	"time"
)

const (
	// settleAfter is how long a list must have no new pod before it is settled.
	settleAfter = 2 * time.Second
	// unaidedSettleAfter is the same while no other source says which pods the node has: the API
	// server does not answer, or we do not ask it, have no checkpoint and no list was settled since
	// this program started.
	unaidedSettleAfter = time.Minute
)

// settle reports whether a list has all pods of the node. Once it has reported so, it does until
// the kubelet restarts.
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

// awaitedBy returns why a quiet list is not settled; empty if it has every pod that we know to be
// on the node, and either another source knows them or the list has been quiet for
// unaidedSettleAfter.
func (g *ledger) awaitedBy(now time.Time) string {
	unlisted, aided := g.findUnlistedPod()
	if unlisted == "" && !aided && !g.completeness.isQuiet(unaidedSettleAfter, now) {
		return "no other source says which pods there are, and the list has not been the same for " +
			unaidedSettleAfter.String()
	}

	// This comes last: it reads a file of every process.
	if unlisted == "" {
		unlisted = g.findUnlistedLivePod()
	}

	if unlisted == "" {
		return ""
	}

	return unlisted + ", has not been listed"
}

// findUnlistedPod returns a pod that is on the node and that the kubelet has not listed since it
// started; empty if there is none. A pod is on the node if it has held a device and nothing proves
// its end, or if the API server has bound it and it has not ended. aided is whether a source
// besides the list knows the pods: the API server, the checkpoint, or a settled list of the kubelet
// before.
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

// findUnlistedLivePod returns the first pod by name that has a running container and that the
// kubelet has not listed since it started; empty if we see none. There may be one all the same: a
// pod can hold a device without a process.
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

// liveContainers returns the containers that have a process. It reads them at most once for each
// list.
func (g *ledger) liveContainers() *liveContainers {
	if g.seenLive != nil {
		return g.seenLive
	}

	g.seenLive = newLiveContainers()
	if g.live != nil {
		g.seenLive = g.live()
	}

	return g.seenLive
}

// hasLiveContainer reports whether the container of a missing holding runs. If we do not know the
// pod's UID and the kubelet lists a pod of its name, that may be its successor: then it returns
// false.
func (g *ledger) hasLiveContainer(h *holding, l *listing) bool {
	uid := g.pods.podUID(h)
	if uid == "" && l.pods[h.podName()] {
		return false
	}

	return g.liveContainers().has(h.Holder.Container, uid)
}
