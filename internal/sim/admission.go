package sim

import (
	"cmp"
	"time"
)

// The order in which the kubelet admits pods: one after the other, those that it learns of at once
// by their age. While a device plugin allocates for one, all others wait. So a kubelet that has
// restarted lists no pod that is younger than the one it is busy with, while those pods run on
// (pkg/kubelet/kubelet.go, HandlePodAdditions; seen with Kubernetes 1.34 and an Allocate of 25 s).

// slowAdmission is the admission of a pod for which a device plugin takes a time to allocate.
type slowAdmission struct {
	pod        *pod
	begin, end time.Duration
	restarts   int // of the kubelet before it
}

// neverCreated is the creation of a pod that is older than all pods of the scenario.
const neverCreated = -never

// createdAt is when the pod was created at the API server.
func (s *PodSpec) createdAt() time.Duration { return cmp.Or(s.Created, s.At) }

// allocationDelay returns how long device plugins take to allocate for a pod that is admitted now.
func (n *Node) allocationDelay(spec *PodSpec) (delay time.Duration) {
	asks := false
	for i := range spec.Containers {
		asks = asks || spec.Containers[i].Resource != ""
	}

	if !asks || n.scenario.Node.Allocator == AllocatorDRA {
		return 0
	}

	n.eachActiveFault(driverAsWhole, n.at, func(f *FaultSpec) {
		if f.Kind == FaultPluginSlow {
			delay = max(delay, f.Delay)
		}
	})

	return delay
}

// busyUntil returns until when the kubelet admits another pod: the present time if it admits none.
func (n *Node) busyUntil() time.Duration {
	passed := n.at.Sub(n.start)
	if a := n.admission; a != nil && a.restarts == n.restartsBy(passed) {
		return max(passed, a.end)
	}

	return passed
}

func (n *Node) restartsBy(passed time.Duration) int {
	restarts, _ := n.kubeletOutages.ended(passed)
	return restarts
}

// admitSlowly begins the admission of a pod: the kubelet lists it without a device until the device
// plugin has allocated one. A kubelet that ends before begins anew when it is started again.
func (n *Node) admitSlowly(p *pod, delay time.Duration) {
	begin := n.at.Sub(n.start)
	a := &slowAdmission{pod: p, begin: begin, end: begin + delay, restarts: n.restartsBy(begin)}
	n.admission = a
	n.scheduleStart(n.start.Add(a.end), func() {
		if n.restartsBy(a.end) == a.restarts && n.kubeletOutages.upFrom(a.end) == a.end {
			n.admission = nil
			if short := n.allocateFor(p); short != nil {
				n.reportEnd(p)
				n.record(Record{Pod: p.title(), Message: "refused: " + short.missing()})
			}

			return
		}

		if again := n.handledFrom(a.end, p.spec.Static); again != never {
			n.scheduleStart(n.start.Add(again), func() { n.admitSlowly(p, delay) })
		}
	})
}

// awaitsAdmission reports whether a kubelet that has restarted has not come to a pod yet, since it
// admits an older one.
func (n *Node) awaitsAdmission(p *pod, passed time.Duration) bool {
	a := n.admission
	if a == nil || p.spec.Static || passed >= a.end || a.restarts == 0 ||
		a.restarts != n.restartsBy(passed) {
		return false
	}

	_, started := n.kubeletOutages.ended(a.begin)
	firstBatch := a.begin == n.listsFrom(started, false)

	return firstBatch && p.spec.createdAt() > a.pod.spec.createdAt()
}
