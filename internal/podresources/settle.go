package podresources

import (
	"time"
)

const (
	// settleAfter is how long the kubelet must list no new pod before its list is settled.
	settleAfter = 2 * time.Second
	// unaidedSettleAfter takes its place if no other source says which pods the node has: the API
	// server does not answer; or we do not ask it, have no checkpoint, and no list was settled
	// since this program started.
	unaidedSettleAfter = time.Minute
)

// checkSettled records the pods of a list, and reports whether it is settled: it has all pods of
// the node. Once a list is settled, all later ones are, until the kubelet restarts.
func (l *ledger) checkSettled(list *listing, now time.Time) bool {
	c := &l.completeness
	if c.settled {
		return true
	}

	c.recordPods(list.pods, l.isStatic, now)
	c.waitsFor = ""

	if !c.isQuiet(settleAfter, now) {
		return false
	}

	c.waitsFor = l.waitReason(now)
	if c.waitsFor != "" {
		return false
	}

	c.settled = true
	c.podsSeen = nil

	return true
}

// waitReason returns why a quiet list is not settled; empty if it is: it has every pod that we know
// to be on the node, and either another source knows the pods or the list has been quiet for
// unaidedSettleAfter.
func (l *ledger) waitReason(now time.Time) string {
	unlisted, aided := l.findUnlistedPod()
	if unlisted == "" && !aided && !l.completeness.isQuiet(unaidedSettleAfter, now) {
		return "no other source says which pods there are, and the list has not been the same for " +
			unaidedSettleAfter.String()
	}

	// This comes last because it reads a file of every process.
	if unlisted == "" {
		unlisted = l.findUnlistedLivePod()
	}

	if unlisted == "" {
		return ""
	}

	return unlisted + ", has not been listed"
}

// findUnlistedPod describes a pod that is on the node and that the kubelet has not listed since it
// started; unlisted is empty if there is none. A pod is on the node if it has held a device and
// nothing proves its end, or if the API server has bound it and it has not ended. aided is whether
// another source knows the node's pods: the API server, the checkpoint, or a settled list of an
// earlier kubelet.
func (l *ledger) findUnlistedPod() (unlisted string, aided bool) {
	seen := l.completeness.podsSeen
	for n := range l.holdings {
		h := &l.holdings[n]
		if !seen[h.podName()] && !h.dismissed && !h.admin.Or(false) {
			return "pod " + h.podName().String() + ", which held a device", true
		}
	}

	if l.metadata == nil {
		return "", l.completeness.settledBefore || l.checkpoint.coversNode()
	}

	bound, current := l.metadata.BoundPods(l.completeness.startedAt)
	for _, pod := range bound {
		if !seen[pod] {
			return "pod " + pod.String() + ", which the API server has bound to this node", true
		}
	}

	return "", current
}

// findUnlistedLivePod describes the first pod by name that has a running container and that the
// kubelet has not listed since it started; empty if we see none. An unlisted pod can also hold a
// device without a process, which we don't see here.
func (l *ledger) findUnlistedLivePod() string {
	first := ""
	for pod := range l.liveContainers().pods {
		if name := pod.String(); !l.completeness.podsSeen[pod] && (first == "" || name < first) {
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
func (l *ledger) liveContainers() *liveContainers {
	if l.cachedLive != nil {
		return l.cachedLive
	}

	l.cachedLive = newLiveContainers()
	if l.live != nil {
		l.cachedLive = l.live()
	}

	return l.cachedLive
}

// hasLiveContainer reports whether the container of a missing holding runs. If we do not know the
// pod's UID and the kubelet lists a pod of its name, the container that runs may be of a later pod:
// then hasLiveContainer returns false.
func (l *ledger) hasLiveContainer(h *holding, list *listing) bool {
	uid := l.pods.podUID(h)
	if uid == "" && list.pods[h.podName()] {
		return false
	}

	return l.liveContainers().has(h.Holder.Container, uid)
}
