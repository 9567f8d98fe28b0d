package podresources

import (
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// completeness records which pods the kubelet has listed since its socket was created, to decide
// whether its list has all pods of the node. A restarting kubelet lists none at first, then the
// static pods, then those of the API server, which it admits one by one, the oldest first: a device
// plugin that takes long to allocate for one pod holds up all younger ones. So the list is settled
// once
//
//   - it has had a pod of the API server, the witness,
//   - and every pod that we know to be on the node (ledger.findUnlistedPod), and
//   - no other pod has appeared for settleAfter.
type completeness struct {
	witness string // "namespace/name", or a prefix of it that ends in "*"; if empty, no list is ever settled
	// names of this node: a pod whose name ends in one of them is static and no witness
	nodes             []string
	startedAt         time.Time
	sinceProgramStart bool                 // startedAt is the start of this program, not of the kubelet
	witnessListed     bool                 // since startedAt
	podsSeen          map[gpu.PodName]bool // listed since startedAt; nil once the list is settled
	lastNewPod        time.Time            // when one of podsSeen was first listed last
	awaited           string               // what a quiet list waits for; empty if it is settled or not quiet
	settled           bool
	settledBefore     bool // an earlier kubelet's list was settled: we know which pods held devices then
}

func (s *completeness) reset(now time.Time) {
	*s = completeness{
		witness:           s.witness,
		nodes:             s.nodes,
		sinceProgramStart: s.startedAt.IsZero(),
		startedAt:         now,
		podsSeen:          map[gpu.PodName]bool{},
		lastNewPod:        now,
		settledBefore:     s.settledBefore || s.settled,
	}
}

// recordPods records the pods of a list.
func (s *completeness) recordPods(
	listed map[gpu.PodName]bool,
	isStatic func(gpu.PodName) bool,
	now time.Time,
) {
	for pod := range listed {
		if !s.podsSeen[pod] {
			s.podsSeen[pod] = true
			s.lastNewPod = now
		}
	}

	s.witnessListed = s.witnessListed || s.hasWitness(listed, isStatic)
}

// isQuiet reports whether the kubelet has listed the witness, and no new pod for span.
func (s *completeness) isQuiet(span time.Duration, now time.Time) bool {
	return s.witnessListed && now.Sub(s.lastNewPod) >= span
}

// hasWitness reports whether the witness is among the pods. Static pods do not count: the kubelet
// lists them before the others.
func (s *completeness) hasWitness(listed map[gpu.PodName]bool, isStatic func(gpu.PodName) bool) bool {
	if s.witness == "" {
		return false
	}

	prefix, isPrefix := strings.CutSuffix(s.witness, "*")

	for pod := range listed {
		name := pod.String()
		if name != s.witness && !(isPrefix && strings.HasPrefix(name, prefix)) {
			continue
		}

		if !s.isNamedAfterNode(pod) && !isStatic(pod) {
			return true
		}
	}

	return false
}

// isNamedAfterNode reports whether a pod has the name of a static one.
func (s *completeness) isNamedAfterNode(pod gpu.PodName) bool {
	return slices.ContainsFunc(
		s.nodes,
		func(node string) bool { return strings.HasSuffix(pod.Name, "-"+node) },
	)
}

// unsettledReason returns why the list is not settled.
func (s *completeness) unsettledReason() string {
	began := "this exporter"
	if !s.sinceProgramStart {
		began = "the kubelet"
	}

	began += " began at " + formatTime(s.startedAt)

	const prefix = "the kubelet's list may lack pods: "

	switch {
	case s.witness == "":
		return "the kubelet's list may lack pods, and no pod is named whose presence would show that " +
			"it is complete (--kubernetes.witness-pod)"
	case !s.witnessListed:
		return prefix + "pod " + s.witness +
			" (--kubernetes.witness-pod) has not been listed since " + began + ", or it is a static pod"
	case s.awaited != "":
		return prefix + s.awaited + " since " + began
	}

	return prefix + "new ones still appear since " + began
}
