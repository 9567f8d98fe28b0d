package podresources

import (
	"slices"
	"strings"
	"time"
)

// settlement decides whether the kubelet's list has all pods of the node. A restarting kubelet lists none at first,
// then the static pods, then those of the API server. So the list is settled once a pod of the API server, the witness,
// has been listed since the kubelet's socket was created, and no other pod has appeared for settleAfter: the kubelet
// adds its pods one by one, the oldest first.
type settlement struct {
	witness           string   // "namespace/name", or a prefix of it that ends in "*"; if empty, no list is ever settled
	nodes             []string // names of this node: a pod whose name ends in one of them is static and no witness
	startedAt         time.Time
	sinceProgramStart bool             // startedAt is the start of this program, not of the kubelet
	witnessListed     bool             // since startedAt
	podsSeen          map[podName]bool // listed since startedAt; nil once the list is settled
	lastNewPod        time.Time        // when one of podsSeen was first listed last
	settled           bool
}

func (s *settlement) reset(now time.Time) {
	*s = settlement{witness: s.witness, nodes: s.nodes, sinceProgramStart: s.startedAt.IsZero(), startedAt: now,
		podsSeen: map[podName]bool{}, lastNewPod: now}
}

// recordPods records the pods of a list and reports whether the list is settled.
func (s *settlement) recordPods(listed map[podName]bool, isStatic func(podName) bool, now time.Time) bool {
	if s.settled {
		return true
	}
	for pod := range listed {
		if !s.podsSeen[pod] {
			s.podsSeen[pod], s.lastNewPod = true, now
		}
	}
	s.witnessListed = s.witnessListed || s.hasWitness(listed, isStatic)
	if s.settled = s.witnessListed && now.Sub(s.lastNewPod) >= settleAfter; s.settled {
		s.podsSeen = nil
	}
	return s.settled
}

// hasWitness reports whether the witness is among the pods. Static pods do not count: the kubelet lists them before the
// others.
func (s *settlement) hasWitness(listed map[podName]bool, isStatic func(podName) bool) bool {
	if s.witness == "" {
		return false
	}
	prefix, isPrefix := strings.CutSuffix(s.witness, "*")
	for pod := range listed {
		name := pod.namespace + "/" + pod.name
		if name != s.witness && !(isPrefix && strings.HasPrefix(name, prefix)) {
			continue
		}
		static := slices.ContainsFunc(s.nodes, func(node string) bool { return strings.HasSuffix(pod.name, "-"+node) })
		if !static && !isStatic(pod) {
			return true
		}
	}
	return false
}

// unsettledReason returns why the list is not settled.
func (s *settlement) unsettledReason() string {
	began := "this exporter"
	if !s.sinceProgramStart {
		began = "the kubelet"
	}
	began += " began at " + formatTime(s.startedAt)
	switch {
	case s.witness == "":
		return "the kubelet's list may lack pods, and no pod is named whose presence would show that it is complete " +
			"(--kubernetes.witness-pod)"
	case !s.witnessListed:
		return "the kubelet's list may lack pods: pod " + s.witness +
			" (--kubernetes.witness-pod) has not been listed since " + began + ", or it is a static pod"
	}
	return "the kubelet's list may lack pods: new ones still appear since " + began
}
