package sim

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
)

// pod is a pod that the simulated kubelet has admitted.
type pod struct {
	spec       *PodSpec
	name       string // as the kubelet and the API server have it
	uid        string
	containers []*container
	ended      bool

	// Of the API server, as times since the start: from when on it has the pod and reports it, when it learns of the
	// end, and when it has the pod no more.
	created, known, endKnown, deleted time.Duration
}

// container is a container of an admitted pod. What it was given is fixed at its admission: its ids stay in the
// kubelet's list even if the device is gone.
type container struct {
	spec    *ContainerSpec
	id      string
	grants  []grant
	devices []DeviceGrant
	claims  []Claim
	process *process // nil if it has no work
	done    bool     // an init container has ended
}

// lingering is for how long the kubelet still lists a pod that has ended: "a poll or two" was seen.
const lingering = 2 * time.Second

// draDriver is the name of NVIDIA's DRA driver.
const draDriver = "gpu.nvidia.com"

// schedulePods puts the pods of the scenario on the schedule, each for when the kubelet admits it. Those that had to
// wait are admitted by their age, as the kubelet does.
func (n *Node) schedulePods() {
	numbers := make([]int, len(n.scenario.Pods))
	for i := range numbers {
		numbers[i] = i
	}

	slices.SortStableFunc(numbers, func(a, b int) int {
		return cmp.Compare(n.scenario.Pods[a].createdAt(), n.scenario.Pods[b].createdAt())
	})

	for _, i := range numbers {
		spec := &n.scenario.Pods[i]
		if at := n.handledFrom(spec.At, spec.Static); at != never {
			n.schedule = append(
				n.schedule,
				scheduledEvent{n.start.Add(at), rankStart, func() { n.arrive(i, spec) }},
			)
		}
	}
}

// newPod returns a pod that holds nothing yet. The kubelet names a static pod after its node as well, and by a hash
// of its file instead of a UID (pkg/kubelet/config/common.go, applyDefaults).
func (n *Node) newPod(spec *PodSpec, identity ...any) *pod {
	p := &pod{spec: spec, name: spec.listedName(n.scenario.Node.Hostname), uid: uuidOf(identity...)}
	if spec.Static {
		p.uid = strings.ReplaceAll(p.uid, "-", "")
	}

	for i := range spec.Containers {
		c := &container{spec: &spec.Containers[i]}
		id := sha256.Sum256([]byte(fmt.Sprintln(p.uid, c.spec.Name)))
		c.id = hex.EncodeToString(id[:])
		p.containers = append(p.containers, c)
	}

	return p
}

// listedName is the pod's name on a node.
func (s *PodSpec) listedName(hostname string) string {
	if s.Static {
		return s.Name + "-" + hostname
	}

	return s.Name
}

// title names the pod in records, as the scenario does.
func (p *pod) title() string { return p.spec.Namespace + "/" + p.spec.Name }

// arrive is when a pod of the scenario comes: it is admitted, waits or is refused.
func (n *Node) arrive(number int, spec *PodSpec) {
	if until := n.busyUntil(); until > n.at.Sub(n.start) {
		if at := n.handledFrom(until, spec.Static); at != never {
			n.scheduleStart(n.start.Add(at), func() { n.arrive(number, spec) })
		}

		return
	}

	identity := []any{"pod", n.scenario.Seed, number}
	if spec.Waits {
		w := &waitingPod{spec: spec, identity: identity}
		n.waiting = append(n.waiting, w)
		n.admitWaiting(w)

		return
	}

	if short := n.admitPod(spec, identity...); short != nil {
		n.record(
			Record{Pod: spec.Namespace + "/" + spec.Name, Message: "refused: " + short.missing()},
		)
	}
}

// admitPod is the kubelet's decision on a pod: every container gets what it asks for, or the pod is not admitted. It
// returns the container for which there is too little, nil if there is none or it is not known yet.
func (n *Node) admitPod(spec *PodSpec, identity ...any) *ContainerSpec {
	p := n.newPod(spec, identity...)
	if delay := n.allocationDelay(spec); delay > 0 {
		n.introduce(p)
		n.admitSlowly(p, delay)

		return nil
	}

	return n.allocateFor(p)
}

// allocateFor gives a pod what it asks for, and starts it.
func (n *Node) allocateFor(p *pod) *ContainerSpec {
	if c := n.allocate(p); c != nil {
		return c.spec
	}

	n.pods = append(n.pods, p)
	if !slices.Contains(n.known, p) {
		n.introduce(p)
	}

	n.record(Record{Pod: p.title(), Message: "admitted"})
	n.checkpointPod(p)
	n.startContainers(p)

	if p.spec.For > 0 {
		end := n.at.Add(p.spec.For)
		n.scheduleEnd(end, func() { n.end(p) })
		n.scheduleEnd(end.Add(lingering), func() { n.forget(p) })
	}

	return nil
}

// forget takes a pod that has ended off the kubelet's list.
func (n *Node) forget(p *pod) {
	n.pods = slices.DeleteFunc(n.pods, func(o *pod) bool { return o == p })
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
			Name: name, Namespace: p.spec.Namespace, Admin: c.spec.Admin,
			Driver: draDriver, Pool: n.scenario.Node.Hostname, Device: claimDevice(g),
		})
	}
}

// startContainers starts the pod's init containers, one after the other, then all others at once.
func (n *Node) startContainers(p *pod) {
	for _, c := range p.containers {
		if !c.spec.Init || c.done {
			continue
		}

		n.startContainer(p, c)
		n.scheduleEnd(n.at.Add(c.spec.For), func() {
			c.done = true

			if p.ended {
				return
			}

			n.stopContainer(c)
			n.startContainers(p)
		})

		return
	}

	for _, c := range p.containers {
		if !c.spec.Init {
			n.startContainer(p, c)
		}
	}
}

func (n *Node) startContainer(p *pod, c *container) {
	if len(c.grants) == 0 {
		return
	}

	var places []place

	for _, g := range c.grants {
		if !g.exists() {
			n.record(Record{
				Pod: p.title(),
				Message: fmt.Sprintf(
					"container %s does not start: it was given %s, which does not exist",
					c.spec.Name,
					n.deviceID(g),
				),
			})

			return
		}

		places = append(places, g.place)
	}

	if c.spec.Workload == nil {
		return
	}

	c.process = &process{
		pid:       n.newPID(p.uid, c.spec.Name),
		pod:       p.title(),
		of:        p,
		container: c.spec.Name,
	}
	n.startTask(c.process, c.spec.Workload, places)
}

func (n *Node) stopContainer(c *container) {
	if c.process != nil {
		n.stopProcess(c.process)
	}
}

// end is when a pod's containers have succeeded: its devices are free at once, the kubelet's list lags behind.
func (n *Node) end(p *pod) {
	if p.ended {
		return // replaced before its time
	}

	p.ended = true
	n.reportEnd(p)
	n.record(Record{Pod: p.title(), Message: "ended"})

	for _, c := range p.containers {
		n.stopContainer(c)
	}
}
