package sim

import "slices"

// The exporter's own pod. The kubelet of every simulated node lists it beside the pods of the
// scenario. It holds no device.
const (
	OwnNamespace = "mig-exporter"
	OwnPod       = "mig-exporter-sim"
	OwnContainer = "mig-exporter"
)

// newOwnPod returns the exporter's own pod; nil on a node without Kubernetes.
func (n *Node) newOwnPod() *pod {
	if !n.scenario.Node.Kubernetes {
		return nil
	}

	p := n.newPod(&PodSpec{
		Namespace:  OwnNamespace,
		Name:       OwnPod,
		Owner:      "DaemonSet/mig-exporter",
		Created:    neverCreated,
		Containers: []ContainerSpec{{Name: OwnContainer}},
	}, "own pod", n.scenario.Seed)
	n.announceToAPI(p)

	return p
}

// Containers returns what the kubelet's pod-resources API shows now: the containers of the pods that
// the kubelet knows, except init containers. The kubelet lists a pod for 2 seconds after its end
// (lingering), without processes; its successor on the same device may be listed at the same time.
func (n *Node) Containers() []Container {
	sinceStart := n.lockAndCatchUp().Sub(n.start)
	defer n.mu.Unlock()

	var list []Container

	for _, p := range n.allPods() {
		if !n.knowsPods(sinceStart, p.spec.Static) || n.awaitsAdmission(p, sinceStart) {
			continue
		}

		for _, c := range p.containers {
			if !c.spec.Init {
				list = append(list, p.describe(c))
			}
		}
	}

	return list
}

// Running returns the containers of all pods on the node, init containers included, whether or not
// the kubelet knows of them.
func (n *Node) Running() []Container {
	n.lockAndCatchUp()
	defer n.mu.Unlock()

	var list []Container

	for _, p := range n.allPods() {
		for _, c := range p.containers {
			list = append(list, p.describe(c))
		}
	}

	return list
}

// allPods returns the pods of the scenario and the exporter's own.
func (n *Node) allPods() []*pod {
	pods := slices.Clone(n.pods)
	if n.admission != nil {
		pods = append(pods, n.admission.pod)
	}

	if n.own != nil {
		pods = append(pods, n.own)
	}

	return pods
}

// describe returns a container as the kubelet shows it. Its labels are the scenario's and must not
// be modified.
func (p *pod) describe(c *container) Container {
	d := Container{
		Namespace: p.spec.Namespace, Pod: p.name, Name: c.spec.Name,
		Owner: p.spec.Owner, Labels: p.spec.Labels,
		PodUID: p.uid, ID: c.id,
		Claims: slices.Clone(c.claims),
	}
	for _, g := range c.deviceIDs {
		d.Devices = append(d.Devices, DeviceGrant{Resource: g.Resource, IDs: slices.Clone(g.IDs)})
	}

	if c.process != nil && len(c.process.tasks) > 0 {
		d.PIDs = []uint32{c.process.pid}
	}

	return d
}
