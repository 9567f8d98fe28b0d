package sim

import (
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// APIPod is a pod of the node as the API server has it. Do not modify its labels and annotations.
type APIPod struct {
	Namespace, Name string
	UID             string
	// Owner is the kind and name of the pod's owner, such as "Deployment/resnet". It is empty for a
	// bare pod and for a static one, which its node owns.
	Owner       string
	Labels      map[string]string
	Annotations map[string]string
	Ended       bool
}

// APIServer returns when the simulated API server last answered, by the node's clock (Now), and
// whether it answers now. The time is zero if it has not answered yet.
func (n *Node) APIServer() (answered time.Time, up bool) {
	now := n.lockAndCatchUp()
	defer n.mu.Unlock()

	return n.lastAnswer(now)
}

// lastAnswer is APIServer for a caller that holds n.mu.
func (n *Node) lastAnswer(now time.Time) (answered time.Time, up bool) {
	asOf, up := n.lastAnswerSinceStart(now)
	if asOf < 0 {
		return time.Time{}, false
	}

	return n.shown(n.start.Add(asOf)), up
}

// lastAnswerSinceStart returns when the API server last answered, as a time since the start of the
// node, and whether it answers now. The time is negative if it has not answered yet.
func (n *Node) lastAnswerSinceStart(now time.Time) (asOf time.Duration, up bool) {
	sinceStart := now.Sub(n.start)
	asOf = n.apiOutages.downSince(sinceStart)

	up = n.apiOutages.upFrom(sinceStart) == sinceStart
	if asOf == 0 && !up {
		asOf = -1
	}

	return asOf, up
}

// PodByName returns the named pod in the API server's last answer. It returns false if there is
// none, or if the API server does not answer now and its last answer is older than since, by the
// node's clock.
func (n *Node) PodByName(namespace, name string, since time.Time) (APIPod, bool) {
	now := n.lockAndCatchUp()
	defer n.mu.Unlock()

	if answered, up := n.lastAnswer(now); !up && (answered.IsZero() || answered.Before(since)) {
		return APIPod{}, false
	}

	return n.apiPod(
		now,
		func(p *pod) bool { return p.spec.Namespace == namespace && p.name == name },
	)
}

// PodByUID returns the pod with a UID in the API server's last answer.
func (n *Node) PodByUID(uid string) (APIPod, bool) {
	now := n.lockAndCatchUp()
	defer n.mu.Unlock()

	return n.apiPod(now, func(p *pod) bool { return p.uid == uid })
}

// apiPod returns the newest matching pod in the API server's last answer.
func (n *Node) apiPod(now time.Time, matches func(p *pod) bool) (APIPod, bool) {
	asOf, _ := n.lastAnswerSinceStart(now)
	for i := len(n.apiPods) - 1; i >= 0; i-- {
		p := n.apiPods[i]
		if p.known <= asOf && asOf < p.deleted && matches(p) {
			return APIPod{
				Namespace:   p.spec.Namespace,
				Name:        p.name,
				UID:         p.uid,
				Owner:       p.spec.Owner,
				Labels:      p.spec.Labels,
				Annotations: p.spec.Annotations,
				Ended:       p.endKnown <= asOf,
			}, true
		}
	}

	return APIPod{}, false
}

// RunningPods returns the names of the node's pods in the API server's last answer that had not
// ended.
func (n *Node) RunningPods() (pods []gpu.PodName, up bool) {
	now := n.lockAndCatchUp()
	defer n.mu.Unlock()

	asOf, up := n.lastAnswerSinceStart(now)
	for _, p := range n.apiPods {
		if p.known <= asOf && asOf < p.deleted && asOf < p.endKnown {
			pods = append(pods, gpu.PodName{Namespace: p.spec.Namespace, Name: p.name})
		}
	}

	return pods, up
}

// PodGone reports whether the API server answers and has no pod with the UID and none with the name.
// An empty name matches no pod. Pods that have ended do not count; pods that the API server does not
// report yet (FaultAPIServerSlow) do.
func (n *Node) PodGone(namespace, name, uid string) bool {
	now := n.lockAndCatchUp()
	defer n.mu.Unlock()

	asOf, up := n.lastAnswerSinceStart(now)
	if !up {
		return false
	}

	for _, p := range n.apiPods {
		named := name != "" && p.spec.Namespace == namespace && p.name == name
		runs := p.created <= asOf && asOf < p.deleted && asOf < p.endKnown

		if runs && (named || uid == p.uid) {
			return false
		}
	}

	return true
}

// AdminAccess reports whether the device of a claim was allocated for administrative access. The
// error is gpu.ErrUnavailable while the API server does not answer and gpu.ErrNotFound if it has no
// such claim.
func (n *Node) AdminAccess(d gpu.ClaimDevice) (bool, error) {
	now := n.lockAndCatchUp()
	defer n.mu.Unlock()

	asOf, up := n.lastAnswerSinceStart(now)
	if !up {
		return false, gpu.ErrUnavailable
	}

	for _, p := range n.apiPods {
		if asOf < p.created || p.deleted <= asOf {
			continue
		}

		for _, c := range p.containers {
			for _, claim := range c.claims {
				if (gpu.ClaimDevice{Namespace: claim.Namespace, Claim: claim.Name, Driver: claim.Driver, Pool: claim.Pool,
					Device: claim.Device}) == d {
					return claim.Admin, nil
				}
			}
		}
	}

	return false, gpu.ErrNotFound
}

// announceToAPI makes a pod that the kubelet admits now known to the API server: it sets when the API
// server has the pod, and when it reports it to clients. The API server gets the mirror pod of a
// static pod only when it answers.
func (n *Node) announceToAPI(p *pod) {
	p.created = n.apiOutages.upFrom(n.sinceStart())
	p.known = p.created
	p.endKnown = never
	p.deleted = never

	for i := range n.scenario.Faults {
		if f := &n.scenario.Faults[i]; f.Kind == FaultAPIServerSlow && p.created != never &&
			f.active(noSingleGPU, p.created) {
			p.known = max(p.known, p.created+f.Delay)
		}
	}

	n.apiPods = append(n.apiPods, p)
}

// reportEnd sets when the API server learns that a pod has ended. The kubelet reports it, once it
// knows the API server's pods.
func (n *Node) reportEnd(p *pod) {
	sinceStart := n.sinceStart()
	p.endKnown = n.admitsFrom(sinceStart, false)
	p.deleted = max(p.endKnown, sinceStart+lingering)
}
