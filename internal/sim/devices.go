package sim

import (
	"slices"
	"strings"
)

// offer is a device that the allocator gives to containers: to one, or to several where it is shared.
type offer struct {
	place
	resource string
	replicas int // 0: to one container alone
}

// hamiReplicas is into how many parts HAMi divides a GPU by default (deviceSplitCount).
const hamiReplicas = 10

// maxReplicas bounds into how many parts a device can be divided.
const maxReplicas = 128

// offers lists what the allocator has, by GPU and place.
func (n *Node) offers() []offer {
	var list []offer
	for _, b := range n.boards {
		if !b.migOn {
			list = append(list, n.offer(place{board: b}))
		}
		for _, i := range b.instances {
			for _, c := range i.computes {
				list = append(list, n.offer(place{board: b, instance: i, compute: c}))
			}
		}
	}
	return list
}

// offer names the resource of a device. GKE, HAMi and the MIG strategy "single" call everything nvidia.com/gpu; the
// strategy "mixed" gives each profile a resource, with "." for "+".
func (n *Node) offer(p place) offer {
	spec := &n.scenario.Node
	o := offer{place: p, resource: "nvidia.com/gpu", replicas: p.board.sharing.Replicas}
	byProfile := !spec.SingleStrategy && (spec.Allocator == AllocatorDevicePlugin || spec.Allocator == AllocatorDRA)
	if p.compute != nil && byProfile {
		o.resource = "nvidia.com/mig-" + strings.ReplaceAll(p.compute.profile(), "+", ".")
	}
	if p.board.sharing.Rename {
		o.resource += ".shared"
	}
	if spec.Allocator == AllocatorHAMi && o.replicas == 0 {
		o.replicas = hamiReplicas
	}
	return o
}

// grant is one device, or one part of a shared one, given to a container.
type grant struct {
	place
	replica int
	shared  bool
}

// choose finds free devices of a resource; nil where there are too few. Of shared devices it takes the least used.
func (n *Node) choose(spec *ContainerSpec) []grant {
	taken := make(map[grant]bool)
	users := make(map[place]int)
	for _, p := range n.pods {
		for _, c := range p.containers {
			for _, g := range c.grants {
				if !p.ended {
					taken[g] = true
					users[g.place]++
				}
			}
		}
	}
	offers := n.offersOf(spec)
	var grants []grant
	for used := 0; used < maxReplicas; used++ { // first those that nobody uses, then those with one user ...
		for _, o := range offers {
			if users[o.place] != used || used >= max(o.replicas, 1) {
				continue
			}
			g := grant{place: o.place, shared: o.replicas > 0}
			for taken[g] {
				g.replica++
			}
			taken[g] = true
			users[g.place]++
			if grants = append(grants, g); len(grants) == spec.Count {
				return grants
			}
		}
	}
	return nil
}

// offersOf lists the devices, free or not, of the resource that a container asks for: the pinned one alone where it
// names one.
func (n *Node) offersOf(spec *ContainerSpec) []offer {
	pin, pinned := spec.Device.Get()
	at, found := place{}, false
	if pinned {
		at, found = n.find(pin)
	}
	return slices.DeleteFunc(n.offers(), func(o offer) bool {
		return o.resource != spec.Resource || pinned && (!found || at != o.place)
	})
}

// grants lists what can be given of an offer: the device, or each of its replicas.
func (o offer) grants() []grant {
	if o.replicas == 0 {
		return []grant{{place: o.place}}
	}
	list := make([]grant, 0, o.replicas)
	for k := range o.replicas {
		list = append(list, grant{place: o.place, replica: k, shared: true})
	}
	return list
}

// Allocatable lists every device id that the allocator has, by resource. DRA has no resources of this kind.
func (n *Node) Allocatable() []DeviceGrant {
	n.lock()
	defer n.mu.Unlock()
	if n.scenario.Node.Allocator == AllocatorDRA {
		return nil
	}
	var list []DeviceGrant
	for _, o := range n.offers() {
		at := slices.IndexFunc(list, func(d DeviceGrant) bool { return d.Resource == o.resource })
		if at < 0 {
			list = append(list, DeviceGrant{Resource: o.resource})
			at = len(list) - 1
		}
		for _, g := range o.grants() {
			list[at].IDs = append(list[at].IDs, n.deviceID(g))
		}
	}
	return list
}
