package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"
)

// pod is a pod that the simulated kubelet has admitted.
type pod struct {
	spec       *PodSpec
	uid        string
	containers []*container
	ended      bool
}

// container is a container of an admitted pod. What it was given is fixed at its admission: its ids stay in the
// kubelet's list even where the device is gone.
type container struct {
	spec    *ContainerSpec
	id      string
	grants  []grant
	devices []DeviceGrant
	claims  []Claim
	process *process // nil where it has no work
}

// lingering is for how long the kubelet still lists a pod that has ended: "a poll or two" was seen.
const lingering = 2 * time.Second

// draDriver is the name of NVIDIA's DRA driver.
const draDriver = "gpu.nvidia.com"

// admit is the kubelet's decision on a pod: every container gets what it asks for, or the pod is refused.
func (n *Node) admit(number int, spec *PodSpec) {
	p := &pod{spec: spec, uid: uuidOf("pod", n.scenario.Seed, number)}
	name := spec.Namespace + "/" + spec.Name
	n.pods = append(n.pods, p)
	for i := range spec.Containers {
		c := &container{spec: &spec.Containers[i]}
		id := sha256.Sum256([]byte(fmt.Sprintln(p.uid, c.spec.Name)))
		c.id = hex.EncodeToString(id[:])
		if c.spec.Resource != "" {
			c.grants = n.choose(c.spec)
			if c.grants == nil {
				n.pods = slices.DeleteFunc(n.pods, func(o *pod) bool { return o == p })
				n.record(Record{Pod: name, Message: fmt.Sprintf("refused: no free device of %s for %d of container %s",
					c.spec.Resource, c.spec.Count, c.spec.Name)})
				return
			}
		}
		p.containers = append(p.containers, c)
		n.describeGrants(p, c)
	}
	n.record(Record{Pod: name, Message: "admitted"})
	for _, c := range p.containers {
		n.startContainer(p, c)
	}
	if spec.For > 0 {
		end := n.at.Add(spec.For)
		n.later(end, rankEnd, func() { n.end(p) })
		n.later(end.Add(lingering), rankEnd, func() {
			n.pods = slices.DeleteFunc(n.pods, func(o *pod) bool { return o == p })
		})
	}
}

// describeGrants fixes how the allocator names what a container was given.
func (n *Node) describeGrants(p *pod, c *container) {
	if len(c.grants) == 0 {
		return
	}
	if n.scenario.Node.Allocator != AllocatorDRA {
		d := DeviceGrant{Resource: c.spec.Resource}
		for _, g := range c.grants {
			d.IDs = append(d.IDs, n.deviceID(g))
		}
		c.devices = []DeviceGrant{d}
		return
	}
	for k, g := range c.grants {
		name := p.spec.Name + "-" + c.spec.Name
		if k > 0 {
			name = fmt.Sprintf("%s-%d", name, k)
		}
		c.claims = append(c.claims, Claim{
			Name: name, Namespace: p.spec.Namespace,
			Driver: draDriver, Pool: n.scenario.Node.Hostname, Device: claimDevice(g),
		})
	}
}

func (n *Node) startContainer(p *pod, c *container) {
	if len(c.grants) == 0 || c.spec.Workload == nil {
		return
	}
	c.process = &process{pid: n.newPID(p.uid, c.spec.Name), pod: p.spec.Namespace + "/" + p.spec.Name}
	var places []place
	for _, g := range c.grants {
		places = append(places, g.place)
	}
	n.run(c.process, c.spec.Workload, places)
}

// end is when a pod's containers have succeeded: its devices are free at once, the kubelet's list lags behind.
func (n *Node) end(p *pod) {
	p.ended = true
	n.record(Record{Pod: p.spec.Namespace + "/" + p.spec.Name, Message: "ended"})
	for _, c := range p.containers {
		if c.process != nil {
			n.stop(c.process)
		}
	}
}

// Containers lists what the kubelet's pod-resources API shows now: the containers of every admitted pod. A pod that has ended lingers for 2 seconds, beside its
// successor on the same device, without processes.
func (n *Node) Containers() []Container {
	n.lock()
	defer n.mu.Unlock()
	var list []Container
	for _, p := range n.pods {
		for _, c := range p.containers {
			list = append(list, p.describe(c))
		}
	}
	return list
}

// PodMetadata is what an API server would say of a pod that the kubelet lists: its owner and labels, which must not be
// modified.
func (n *Node) PodMetadata(namespace, name string) (owner string, labels map[string]string, ok bool) {
	n.lock()
	defer n.mu.Unlock()
	for _, p := range n.pods {
		if p.spec.Namespace == namespace && p.spec.Name == name {
			return p.spec.Owner, p.spec.Labels, true
		}
	}
	return "", nil, false
}

func (p *pod) describe(c *container) Container {
	d := Container{
		Namespace: p.spec.Namespace, Pod: p.spec.Name, Name: c.spec.Name,
		Owner: p.spec.Owner, Labels: maps.Clone(p.spec.Labels),
		PodUID: p.uid, ID: c.id,
		Claims: slices.Clone(c.claims),
	}
	for _, g := range c.devices {
		d.Devices = append(d.Devices, DeviceGrant{Resource: g.Resource, IDs: slices.Clone(g.IDs)})
	}
	if c.process != nil && len(c.process.tasks) > 0 {
		d.PIDs = []uint32{c.process.pid}
	}
	return d
}
