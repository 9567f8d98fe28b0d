package sim

import (
	"slices"
	"strings"
)

// offer is a device that the allocator gives to containers: to one, or to several if it is shared.
type offer struct {
	place
	resource string
	replicas int // 0: to one container alone
}

// hamiReplicas is the number of parts into which HAMi divides a GPU by default (deviceSplitCount).
const hamiReplicas = 10

// maxReplicas bounds the number of parts of a device.
const maxReplicas = 128

// offers returns the devices of the allocator, held or not, ordered by GPU and place.
func (n *Node) offers() []offer {
	if n.singleStrategyError() != "" {
		return nil
	}

	var list []offer

	for _, g := range n.gpus {
		if !g.migOn {
			list = append(list, n.offer(place{gpu: g}))
		}

		for _, i := range g.instances {
			for _, c := range i.ComputeInstances {
				list = append(list, n.offer(place{gpu: g, instance: i, compute: c}))
			}
		}
	}

	return list
}

// offer returns the offer of a device. GKE, HAMi and the MIG strategy "single" call every resource
// nvidia.com/gpu. The strategy "mixed" has a resource for each profile, with "." for "+":
// nvidia.com/mig-1g.10gb.me for 1g.10gb+me.
func (n *Node) offer(p place) offer {
	spec := &n.scenario.Node
	o := offer{place: p, resource: "nvidia.com/gpu", replicas: p.gpu.sharing.Replicas}

	byProfile := spec.Strategy != "single" &&
		(spec.Allocator == AllocatorDevicePlugin || spec.Allocator == AllocatorDRA)
	if p.compute != nil && byProfile {
		o.resource = "nvidia.com/mig-" + strings.ReplaceAll(p.compute.Profile, "+", ".")
	}

	if p.gpu.sharing.Rename {
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

// exists reports whether the device exists and containers can use it.
func (p place) exists() bool {
	if p.compute == nil {
		return !p.gpu.migOn
	}

	return slices.Contains(p.gpu.instances, p.instance) &&
		slices.Contains(p.instance.ComputeInstances, p.compute)
}

// uuid returns the device's UUID. A device that is created where another was destroyed has the same
// one.
func (p place) uuid() string {
	if p.compute == nil {
		return string(p.gpu.uuid)
	}

	return string(p.compute.UUID)
}

// part is a device, or one part of a shared one.
type part struct {
	uuid    string
	replica int
}

// takenDevices records which devices, or parts of them, containers have.
type takenDevices struct {
	taken map[part]bool
	users map[string]int // the number of taken parts of a device, by its UUID
}

func (n *Node) newTakenDevices() *takenDevices {
	d := &takenDevices{taken: make(map[part]bool), users: make(map[string]int)}

	for _, p := range n.pods {
		for _, c := range p.containers {
			for _, g := range c.grants {
				if !p.ended && !c.spec.Admin {
					d.markTaken(g)
				}
			}
		}
	}

	return d
}

func (d *takenDevices) markTaken(g grant) {
	if k := (part{g.uuid(), g.replica}); !d.taken[k] {
		d.taken[k] = true
		d.users[k.uuid]++
	}
}

// allocate gives a pod's containers what they ask for, init containers first. It returns the
// container for which there is too little; nil if there is none. Like the kubelet's device manager
// (pkg/kubelet/cm/devicemanager/manager.go, Allocate), it gives the devices of an init container to
// later containers of its pod, and to no other pod.
func (n *Node) allocate(p *pod) *container {
	taken := n.newTakenDevices()
	var reusable []grant

	for _, init := range []bool{true, false} {
		for _, c := range p.containers {
			if c.spec.Resource == "" || c.spec.Init != init {
				continue
			}

			c.grants = n.takeDevices(c.spec, taken, reusable)
			if c.grants == nil {
				return c
			}

			n.describeGrants(p, c)

			if c.spec.Admin || n.scenario.Node.Allocator == AllocatorDRA {
				continue
			}

			reusable = slices.DeleteFunc(reusable, func(g grant) bool {
				return slices.Contains(c.grants, g)
			})
			if init {
				reusable = append(reusable, c.grants...)
			}
		}
	}

	return nil
}

// takeDevices takes the devices that a container asks for: reusable ones first, then free ones, and
// of shared devices the least used. It returns nil if there are too few.
func (n *Node) takeDevices(spec *ContainerSpec, d *takenDevices, reusable []grant) []grant {
	offers := n.offersOf(spec)
	var grants []grant

	// Administrative access needs no free device.
	if spec.Admin {
		if len(offers) < spec.Count {
			return nil
		}

		for _, o := range offers[:spec.Count] {
			grants = append(grants, grant{place: o.place})
		}

		return grants
	}

	for _, g := range reusable {
		if len(grants) < spec.Count &&
			slices.ContainsFunc(offers, func(o offer) bool { return o.place == g.place }) {
			grants = append(grants, g)
		}
	}

	// Take devices without a user first, then devices with one user, and so on.
	for used := 0; used < maxReplicas && len(grants) < spec.Count; used++ {
		for _, o := range offers {
			if len(grants) == spec.Count || used >= max(o.replicas, 1) ||
				d.users[o.uuid()] != used {
				continue
			}

			g := grant{place: o.place, shared: o.replicas > 0}
			for d.taken[part{g.uuid(), g.replica}] {
				g.replica++
			}

			d.markTaken(g)
			grants = append(grants, g)
		}
	}

	if len(grants) < spec.Count {
		return nil
	}

	return grants
}

// offersOf returns the devices, free or not, of the resource that a container asks for: only the
// pinned one if it names one.
func (n *Node) offersOf(spec *ContainerSpec) []offer {
	pin, pinned := spec.Device.Get()

	return slices.DeleteFunc(n.offered(), func(o offer) bool {
		return o.resource != spec.Resource || pinned && !pin.names(o.place)
	})
}

// names reports whether the pin means a device.
func (d DevicePin) names(p place) bool {
	if d.GPU != p.gpu.index || (d.Profile == "") != (p.compute == nil) {
		return false
	}

	return p.compute == nil ||
		p.instance.Profile.Name == d.Profile && p.instance.Placement.Start == d.Start &&
			p.compute.ID == d.Compute
}

// offered returns the present offers. While a device plugin is stale, some may be of devices that
// no longer exist.
func (n *Node) offered() []offer {
	if n.freezes > 0 {
		return slices.Clone(n.frozen)
	}

	return n.offers()
}

func (n *Node) freezeOffers() {
	n.frozen = n.offered()
	n.freezes++
}

// thawOffers ends one freezeOffers: the device plugin restarts.
func (n *Node) thawOffers() { n.freezes-- }

// grants returns the device of an offer, or each of its replicas.
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

// Allocatable returns every device id of the allocator, by resource. DRA has no such resources:
// nil.
func (n *Node) Allocatable() []DeviceGrant {
	n.lock()
	defer n.mu.Unlock()

	return n.allocatable()
}

func (n *Node) allocatable() []DeviceGrant {
	if n.scenario.Node.Allocator == AllocatorDRA {
		return nil
	}

	var list []DeviceGrant
	for _, o := range n.offered() {
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
