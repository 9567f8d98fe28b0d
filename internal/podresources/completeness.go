package podresources

import (
	"slices"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// completeness decides whether the kubelet's list is settled, that is, has all pods of the node. A
// restarting kubelet lists no pods at first, then the static pods, then the pods of the API server.
// It admits those one by one, the oldest first: if a device plugin takes long to allocate for one
// pod, all younger pods wait. So the list is settled once
//
//   - it has had the witness, a pod of the API server,
//   - it has had every pod that we know to be on the node (ledger.findUnlistedPod), and
//   - no new pod has appeared for settleAfter.
type completeness struct {
	witness           string               // see Options.Witness
	nodes             []string             // see Options.NodeNames
	startedAt         time.Time            // when the kubelet started, or this program if that was later
	sinceProgramStart bool                 // startedAt is the start of this program
	witnessListed     bool                 // the kubelet has listed the witness since startedAt
	podsSeen          map[gpu.PodName]bool // all pods listed since startedAt; nil once the list is settled
	lastNewPod        time.Time            // when a pod was last added to podsSeen
	waitsFor          string               // why a quiet list is not settled; empty if it is, or is not quiet
	settled           bool
	settledBefore     bool // an earlier kubelet's list was settled: we know which pods held devices then
}

// reset begins anew with the list of another kubelet.
func (c *completeness) reset(now time.Time) {
	*c = completeness{
		witness:           c.witness,
		nodes:             c.nodes,
		sinceProgramStart: c.startedAt.IsZero(),
		startedAt:         now,
		podsSeen:          map[gpu.PodName]bool{},
		lastNewPod:        now,
		settledBefore:     c.settledBefore || c.settled,
	}
}

// recordPods records the pods that the kubelet has listed at now.
func (c *completeness) recordPods(
	listed map[gpu.PodName]bool,
	isStatic func(gpu.PodName) bool,
	now time.Time,
) {
	for pod := range listed {
		if !c.podsSeen[pod] {
			c.podsSeen[pod] = true
			c.lastNewPod = now
		}
	}

	c.witnessListed = c.witnessListed || c.hasWitness(listed, isStatic)
}

// isQuiet reports whether the kubelet has listed the witness, and no new pod for span.
func (c *completeness) isQuiet(span time.Duration, now time.Time) bool {
	return c.witnessListed && now.Sub(c.lastNewPod) >= span
}

// hasWitness reports whether the witness is among the pods. Static pods do not count: the kubelet
// lists them before the others.
func (c *completeness) hasWitness(listed map[gpu.PodName]bool, isStatic func(gpu.PodName) bool) bool {
	if c.witness == "" {
		return false
	}

	prefix, isPrefix := strings.CutSuffix(c.witness, "*")

	for pod := range listed {
		name := pod.String()
		if name != c.witness && !(isPrefix && strings.HasPrefix(name, prefix)) {
			continue
		}

		if !c.isNamedAfterNode(pod) && !isStatic(pod) {
			return true
		}
	}

	return false
}

// isNamedAfterNode reports whether a pod has the name of a static pod, which ends in the node's
// name.
func (c *completeness) isNamedAfterNode(pod gpu.PodName) bool {
	return slices.ContainsFunc(
		c.nodes,
		func(node string) bool { return strings.HasSuffix(pod.Name, "-"+node) },
	)
}

// unsettledReason returns why the list is not settled.
func (c *completeness) unsettledReason() string {
	started := "this exporter"
	if !c.sinceProgramStart {
		started = "the kubelet"
	}

	sinceStart := " since " + started + " began at " + formatTime(c.startedAt)

	const prefix = "the kubelet's list may lack pods: "

	switch {
	case c.witness == "":
		return "the kubelet's list may lack pods, and no pod is named whose presence would show that " +
			"it is complete (--kubernetes.witness-pod)"
	case !c.witnessListed:
		return prefix + "pod " + c.witness +
			" (--kubernetes.witness-pod) has not been listed" + sinceStart + ", or it is a static pod"
	case c.waitsFor != "":
		return prefix + c.waitsFor + sinceStart
	}

	return prefix + "new ones still appear" + sinceStart
}
