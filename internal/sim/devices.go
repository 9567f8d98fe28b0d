package sim

import (
	"slices"
	"strings"
)

// offer is a device that the allocator can give to one container, or to several if it is shared.
type offer struct {
	simDevice
	resource string
	replicas int // into how many parts it is shared; 0: it is not
}

// hamiReplicas is the number of parts into which HAMi divides a GPU by default (deviceSplitCount).
const hamiReplicas = 10

// maxReplicas is the highest number of parts of a device: scenarios have the same limit.
const maxReplicas = 128

// offers returns the devices of the allocator, held or not, ordered by GPU and place.
func (n *Node) offers() []offer {
	if n.singleStrategyError() != "" {
		return nil
	}

	var list []offer

	for _, g := range n.gpus {
		if !g.migOn {
			list = append(list, n.offer(simDevice{gpu: g}))
		}

		for _, i := range g.instances {
			for _, c := range i.ComputeInstances {
				list = append(list, n.offer(simDevice{gpu: g, instance: i, compute: c}))
			}
		}
	}

	return list
}

// offer returns the offer of a device. GKE, HAMi and the MIG strategy "single" call every resource
// nvidia.com/gpu. The strategy "mixed" has a resource for each profile, with "." for "+":
// nvidia.com/mig-1g.10gb.me for 1g.10gb+me.
func (n *Node) offer(d simDevice) offer {
	spec := &n.scenario.Node
	o := offer{simDevice: d, resource: "nvidia.com/gpu", replicas: d.gpu.sharing.Replicas}

	byProfile := spec.Strategy != "single" &&
		(spec.Allocator == AllocatorDevicePlugin || spec.Allocator == AllocatorDRA)
	if d.compute != nil && byProfile {
		o.resource = "nvidia.com/mig-" + strings.ReplaceAll(d.compute.Profile, "+", ".")
	}

	if d.gpu.sharing.Rename {
		o.resource += ".shared"
	}

	if spec.Allocator == AllocatorHAMi && o.replicas == 0 {
		o.replicas = hamiReplicas
	}

	return o
}

// grant is one device, or one part of a shared one, given to a container.
type grant struct {
	simDevice
	replica int  // which part of a shared device it is
	shared  bool // whether the device is shared
}

// exists reports whether the device exists and containers can use it.
func (d simDevice) exists() bool {
	if d.compute == nil {
		return !d.gpu.migOn
	}

	return slices.Contains(d.gpu.instances, d.instance) &&
		slices.Contains(d.instance.ComputeInstances, d.compute)
}

// uuid returns the device's UUID. A device that is created where another was destroyed gets the UUID
// of that.
func (d simDevice) uuid() string {
	if d.compute == nil {
		return string(d.gpu.uuid)
	}

	return string(d.compute.UUID)
}

// replicaKey names a device, or one part of a shared one.
type replicaKey struct {
	uuid    string // of the device
	replica int    // which part; 0 if it is not shared
}

// takenDevices records which devices, or parts of them, containers hold.
type takenDevices struct {
	replicas map[replicaKey]bool
	users    map[string]int // how many parts of a device are taken, by its UUID
}

func (n *Node) newTakenDevices() *takenDevices {
	d := &takenDevices{replicas: make(map[replicaKey]bool), users: make(map[string]int)}

	for _, p := range n.pods {
		for _, c := range p.containers {
			for _, g := range c.granted {
				if !p.ended && !c.spec.Admin {
					d.markTaken(g)
				}
			}
		}
	}

	return d
}

func (d *takenDevices) markTaken(g grant) {
	if key := (replicaKey{g.uuid(), g.replica}); !d.replicas[key] {
		d.replicas[key] = true
		d.users[key.uuid]++
	}
}

// allocate gives a pod's containers the devices that they ask for, init containers first. It returns
// the first container for which there are too few; nil if all got theirs. Like the kubelet's device manager
// (pkg/kubelet/cm/devicemanager/manager.go, Allocate), it gives the devices of an init container to
// later containers of its pod, and to no other pod.
func (n *Node) allocate(p *pod) *container {
	taken := n.newTakenDevices()
	var reusable []grant // of the pod's init containers

	for _, init := range []bool{true, false} {
		for _, c := range p.containers {
			if c.spec.Resource == "" || c.spec.Init != init {
				continue
			}

			c.granted = n.takeDevices(c.spec, taken, reusable)
			if c.granted == nil {
				return c
			}

			n.fillDeviceIDs(p, c)

			if c.spec.Admin || n.scenario.Node.Allocator == AllocatorDRA {
				continue
			}

			reusable = slices.DeleteFunc(reusable, func(g grant) bool {
				return slices.Contains(c.granted, g)
			})
			if init {
				reusable = append(reusable, c.granted...)
			}
		}
	}

	return nil
}

// takeDevices takes the devices that a container asks for: reusable ones first, then free ones, and
// of shared devices the least used. It returns nil if there are too few.
func (n *Node) takeDevices(spec *ContainerSpec, taken *takenDevices, reusable []grant) []grant {
	offers := n.offersOf(spec)
	var grants []grant

	// Administrative access needs no free device.
	if spec.Admin {
		if len(offers) < spec.Count {
			return nil
		}

		for _, o := range offers[:spec.Count] {
			grants = append(grants, grant{simDevice: o.simDevice})
		}

		return grants
	}

	for _, g := range reusable {
		if len(grants) < spec.Count &&
			slices.ContainsFunc(offers, func(o offer) bool { return o.simDevice == g.simDevice }) {
			grants = append(grants, g)
		}
	}

	// Take devices without a user first, then devices with one user, and so on.
	for used := 0; used < maxReplicas && len(grants) < spec.Count; used++ {
		for _, o := range offers {
			if len(grants) == spec.Count || used >= max(o.replicas, 1) ||
				taken.users[o.uuid()] != used {
				continue
			}

			g := grant{simDevice: o.simDevice, shared: o.replicas > 0}
			for taken.replicas[replicaKey{g.uuid(), g.replica}] {
				g.replica++
			}

			taken.markTaken(g)
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
		return o.resource != spec.Resource || pinned && !pin.names(o.simDevice)
	})
}

// names reports whether the pin names a device.
func (p DevicePin) names(d simDevice) bool {
	if p.GPU != d.gpu.index || (p.Profile == "") != (d.compute == nil) {
		return false
	}

	return d.compute == nil ||
		d.instance.Profile.Name == p.Profile && d.instance.Placement.Start == p.Start &&
			d.compute.ID == p.Compute
}

// offered returns what the allocator offers now. While a device plugin is stale
// (FaultPluginStale), that can include devices that no longer exist.
func (n *Node) offered() []offer {
	if n.freezes > 0 {
		return slices.Clone(n.frozen)
	}

	return n.offers()
}

// freezeOffers keeps the offers as they are until as many calls of thawOffers: faults can overlap.
func (n *Node) freezeOffers() {
	n.frozen = n.offered()
	n.freezes++
}

// thawOffers ends one freezeOffers: the device plugin restarts.
func (n *Node) thawOffers() { n.freezes-- }

// replicaGrants returns a grant of the offered device, or one of each part if it is shared.
func (o offer) replicaGrants() []grant {
	if o.replicas == 0 {
		return []grant{{simDevice: o.simDevice}}
	}

	list := make([]grant, 0, o.replicas)
	for k := range o.replicas {
		list = append(list, grant{simDevice: o.simDevice, replica: k, shared: true})
	}

	return list
}

// Allocatable returns every device id of the allocator, by resource. DRA has no such resources:
// nil.
func (n *Node) Allocatable() []DeviceGrant {
	n.lockAndCatchUp()
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

		for _, g := range o.replicaGrants() {
			list[at].IDs = append(list[at].IDs, n.deviceID(g))
		}
	}

	return list
}
