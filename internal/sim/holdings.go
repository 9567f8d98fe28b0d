package sim

import "github.com/mig-exporter/mig-exporter/internal/gpu"

// Holding is a device that a container of a live pod was given.
type Holding struct {
	Namespace, Pod, Container string
	PodUID                    string
	GPU                       gpu.UUID
	MIG                       gpu.MIGUUID // empty for a whole GPU
	// Init is set for an init container, running or ended: the device is its pod's until the pod
	// ends.
	Init bool
	// Present is set while the device exists. One that was destroyed is not present, even if
	// another was created in its place and has its UUID.
	Present bool
}

// Holdings returns the devices that live pods hold now, whatever the kubelet knows of them: the
// truth by which a test judges what is reported of holders. Devices of claims for administrative
// access are not held.
func (n *Node) Holdings() []Holding {
	n.lock()
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

			for _, g := range c.grants {
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
