package sim

import (
	"cmp"
	"slices"
	"time"
)

// The kubelet admits pods one after the other. If it learns of several at once, it begins with the
// oldest. While a device plugin allocates devices for one pod, all others wait. So a kubelet that
// has restarted does not list pods that are younger than the one that it is admitting, although
// those pods run on (pkg/kubelet/kubelet.go, HandlePodAdditions; seen with Kubernetes 1.34 and an
// Allocate of 25 s).

// slowAdmission is the admission of a pod for which a device plugin takes time to allocate.
type slowAdmission struct {
	pod        *pod
	begin, end time.Duration // since the start of the node
	restarts   int           // how often the kubelet had restarted when it began
}

// neverCreated is the creation time of a pod that is older than all pods of the scenario.
const neverCreated = -never

// createdAt returns when the pod was created at the API server, since the start of the node.
func (s *PodSpec) createdAt() time.Duration { return cmp.Or(s.Created, s.At) }

// allocationDelay returns how long device plugins take to allocate for a pod that is admitted now.
func (n *Node) allocationDelay(spec *PodSpec) (delay time.Duration) {
	asks := slices.ContainsFunc(spec.Containers, func(c ContainerSpec) bool { return c.Resource != "" })
	if !asks || n.scenario.Node.Allocator == AllocatorDRA {
		return 0
	}

	n.eachActiveFault(noSingleGPU, n.stateTime, func(f *FaultSpec) {
		if f.Kind == FaultPluginSlow {
			delay = max(delay, f.Delay)
		}
	})

	return delay
}

// busyUntil returns when the kubelet can admit the next pod: now, unless it is busy with a slow
// admission.
func (n *Node) busyUntil() time.Duration {
	sinceStart := n.sinceStart()
	if a := n.admission; a != nil && a.restarts == n.restartsBy(sinceStart) {
		return max(sinceStart, a.end)
	}

	return sinceStart
}

// restartsBy returns how often the kubelet has restarted by a time since the start.
func (n *Node) restartsBy(sinceStart time.Duration) int {
	restarts, _ := n.kubeletOutages.ended(sinceStart)
	return restarts
}

// admitSlowly begins the admission of a pod: the kubelet lists it without a device until the device
// plugin has allocated one. If the kubelet stops before that, it begins anew after its restart.
func (n *Node) admitSlowly(p *pod, delay time.Duration) {
	begin := n.sinceStart()
	a := &slowAdmission{pod: p, begin: begin, end: begin + delay, restarts: n.restartsBy(begin)}
	n.admission = a
	n.scheduleStart(n.start.Add(a.end), func() {
		ranThroughout := n.restartsBy(a.end) == a.restarts && n.kubeletOutages.upFrom(a.end) == a.end
		if ranThroughout {
			n.admission = nil
			if short := n.allocateFor(p); short != nil {
				n.reportEnd(p)
				n.record(Record{Pod: p.title(), Message: "refused: " + short.missing()})
			}

			return
		}

		if retry := n.admitsFrom(a.end, p.spec.Static); retry != never {
			n.scheduleStart(n.start.Add(retry), func() { n.admitSlowly(p, delay) })
		}
	})
}

// awaitsAdmission reports whether a kubelet that has restarted has not handled a pod yet because it
// is still admitting an older one.
func (n *Node) awaitsAdmission(p *pod, sinceStart time.Duration) bool {
	a := n.admission
	if a == nil || p.spec.Static || sinceStart >= a.end || a.restarts == 0 ||
		a.restarts != n.restartsBy(sinceStart) {
		return false
	}

	// Only pods that the kubelet learned of together with the admitted one are sorted by age.
	_, started := n.kubeletOutages.ended(a.begin)
	firstBatch := a.begin == n.listsFrom(started, false)

	return firstBatch && p.spec.createdAt() > a.pod.spec.createdAt()
}
