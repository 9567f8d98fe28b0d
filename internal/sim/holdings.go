package sim

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// Holding is a device that was given to a container of a live pod.
type Holding struct {
	Namespace, Pod, Container string
	PodUID                    string
	GPU                       gpu.UUID
	MIG                       gpu.MIGUUID // empty for a whole GPU
	// Init is set for an init container, running or ended: its pod holds the device until the pod
	// ends.
	Init bool
	// Present is set while the device exists. A destroyed device is not present, even if another
	// device was created in its place and has its UUID.
	Present bool
}

// Holdings returns the devices that live pods hold now, whether or not the kubelet knows of them.
// Tests compare reported holders with it. A claim for administrative access holds no device.
func (n *Node) Holdings() []Holding {
	n.lockAndCatchUp()
	defer n.mu.Unlock()

	var list []Holding

	for _, p := range n.pods {
		if p.ended {
			continue
		}

		for _, c := range p.containers {
			if c.spec.Admin {
				continue
			}

			for _, g := range c.granted {
				h := Holding{
					Namespace: p.spec.Namespace, Pod: p.name, Container: c.spec.Name, PodUID: p.uid,
					GPU: g.gpu.uuid, Init: c.spec.Init, Present: g.exists(),
				}
				if g.compute != nil {
					h.MIG = g.compute.UUID
				}

				list = append(list, h)
			}
		}
	}

	return list
}
