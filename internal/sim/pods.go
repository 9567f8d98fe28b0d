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

	// When the API server creates the pod, reports it, learns of its end, and deletes it: times
	// since the start.
	created, known, endKnown, deleted time.Duration
}

// container is a container of an admitted pod. Its devices are fixed at the admission: the kubelet
// lists their ids even after they were destroyed.
type container struct {
	spec    *ContainerSpec
	id      string
	grants  []grant
	devices []DeviceGrant
	claims  []Claim
	process *process // nil if it has no work
	done    bool     // it is an init container that has ended
}

// lingering is how long the kubelet still lists a pod that has ended. Real ones took "a poll or
// two".
const lingering = 2 * time.Second

// draDriver is the name of NVIDIA's DRA driver.
const draDriver = "gpu.nvidia.com"

// schedulePods puts the pods of the scenario on the schedule, each when the kubelet first handles
// it. If several had to wait for the kubelet, it handles the oldest first.
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
				scheduledEvent{n.start.Add(at), rankStart, func() { n.receivePod(i, spec) }},
			)
		}
	}
}

// newPod returns a pod that holds nothing yet. The kubelet adds the node's name to a static pod's,
// and gives it a hash of its file instead of a UID (pkg/kubelet/config/common.go, applyDefaults).
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

// listedName returns the name under which the kubelet of a node lists the pod.
func (s *PodSpec) listedName(hostname string) string {
	if s.Static {
		return s.Name + "-" + hostname
	}

	return s.Name
}

// title names the pod in records, as the scenario does.
func (p *pod) title() string { return p.spec.Namespace + "/" + p.spec.Name }

// receivePod handles a new pod of the scenario: the kubelet admits it, lets it wait or refuses it.
// While the kubelet is busy, it does so later.
func (n *Node) receivePod(number int, spec *PodSpec) {
	if until := n.busyUntil(); until > n.at.Sub(n.start) {
		if at := n.handledFrom(until, spec.Static); at != never {
			n.scheduleStart(n.start.Add(at), func() { n.receivePod(number, spec) })
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

// admitPod admits a pod if every container gets what it asks for. It returns a container for which
// there is too little; nil if there is none, or if the allocation takes time and is not decided
// yet.
func (n *Node) admitPod(spec *PodSpec, identity ...any) *ContainerSpec {
	p := n.newPod(spec, identity...)
	if delay := n.allocationDelay(spec); delay > 0 {
		n.introduce(p)
		n.admitSlowly(p, delay)

		return nil
	}

	return n.allocateFor(p)
}

// allocateFor gives a pod what it asks for, and starts it. It returns a container for which there
// is too little, or nil.
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
		n.scheduleEnd(end, func() { n.endPod(p) })
		n.scheduleEnd(end.Add(lingering), func() { n.unlistPod(p) })
	}

	return nil
}

// unlistPod removes a pod that has ended from the kubelet's list.
func (n *Node) unlistPod(p *pod) {
	n.pods = slices.DeleteFunc(n.pods, func(o *pod) bool { return o == p })
}

// describeGrants sets the ids or claims under which the allocator gives a container its devices.
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

// startContainers starts the pod's init containers one after the other, then all others at once.
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

// endPod ends a pod whose containers have succeeded. Its devices are free at once; the kubelet
// lists it a while longer.
func (n *Node) endPod(p *pod) {
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
