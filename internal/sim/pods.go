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
	name       string // in the kubelet and the API server
	uid        string
	containers []*container
	ended      bool

	// When the API server creates the pod, begins to report it, learns of its end, and deletes it.
	// These are times since the start of the node, or never.
	created, known, endKnown, deleted time.Duration
}

// container is a container of an admitted pod. Its devices are fixed at the admission: the kubelet
// lists their ids even after they were destroyed.
type container struct {
	spec      *ContainerSpec
	id        string
	granted   []grant       // the devices that it was given
	deviceIDs []DeviceGrant // their ids; nil if the allocator uses claims
	claims    []Claim       // their claims; nil if the allocator uses ids
	process   *process      // nil if it has no workload
	done      bool          // it is an init container that has ended
}

// lingering is how long the kubelet still lists a pod that has ended. Real ones listed it for "a
// poll or two"; the time is our choice.
const lingering = 2 * time.Second

// draDriver is the name of NVIDIA's DRA driver.
const draDriver = "gpu.nvidia.com"

// schedulePods puts the pods of the scenario on the schedule, each at the time at which the kubelet
// first handles it. Of pods at the same time the oldest comes first: sortSchedule keeps the order of
// ties. A pod's UID derives from its number in the scenario.
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
		if at := n.admitsFrom(spec.At, spec.Static); at != never {
			n.schedule = append(
				n.schedule,
				scheduledEvent{n.start.Add(at), rankStart, func() { n.receivePod(i, spec) }},
			)
		}
	}
}

// newPod returns a pod without devices; its UID derives from the parts of identity. The kubelet adds
// the node's name to that of a static pod, and uses a hash of its file, without dashes, as UID
// (pkg/kubelet/config/common.go, applyDefaults).
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

// receivePod handles a new pod of the scenario: the kubelet admits it, lets it wait or refuses it. If
// the kubelet is busy with another pod, receivePod schedules itself for later.
func (n *Node) receivePod(number int, spec *PodSpec) {
	if until := n.busyUntil(); until > n.sinceStart() {
		if at := n.admitsFrom(until, spec.Static); at != never {
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

// admitPod admits a pod if every container gets the devices that it asks for. Otherwise it returns a
// container for which there are too few. It also returns nil if the allocation takes time, so that
// the outcome is open.
func (n *Node) admitPod(spec *PodSpec, identity ...any) *ContainerSpec {
	p := n.newPod(spec, identity...)
	if delay := n.allocationDelay(spec); delay > 0 {
		n.announceToAPI(p)
		n.admitSlowly(p, delay)

		return nil
	}

	return n.allocateFor(p)
}

// allocateFor gives a pod the devices that it asks for, and starts it. If there are too few, it
// returns a container that lacks some.
func (n *Node) allocateFor(p *pod) *ContainerSpec {
	if c := n.allocate(p); c != nil {
		return c.spec
	}

	n.pods = append(n.pods, p)
	if !slices.Contains(n.apiPods, p) {
		n.announceToAPI(p)
	}

	n.record(Record{Pod: p.title(), Message: "admitted"})
	n.checkpointPod(p)
	n.startContainers(p)

	if p.spec.For > 0 {
		end := n.stateTime.Add(p.spec.For)
		n.scheduleEnd(end, func() { n.endPod(p) })
		n.scheduleEnd(end.Add(lingering), func() { n.unlistPod(p) })
	}

	return nil
}

// unlistPod removes a pod that has ended from the kubelet's list.
func (n *Node) unlistPod(p *pod) {
	n.pods = slices.DeleteFunc(n.pods, func(o *pod) bool { return o == p })
}

// fillDeviceIDs sets the ids of the devices that a container was given, or the claims for them.
func (n *Node) fillDeviceIDs(p *pod, c *container) {
	if len(c.granted) == 0 {
		return
	}

	if n.scenario.Node.Allocator != AllocatorDRA {
		d := DeviceGrant{Resource: c.spec.Resource}
		for _, g := range c.granted {
			d.IDs = append(d.IDs, n.deviceID(g))
		}

		c.deviceIDs = []DeviceGrant{d}

		return
	}

	for k, g := range c.granted {
		name := p.spec.Name + "-" + c.spec.Name
		if k > 0 {
			name = fmt.Sprintf("%s-%d", name, k)
		}

		c.claims = append(c.claims, Claim{
			Name: name, Namespace: p.spec.Namespace, Admin: c.spec.Admin,
			Driver: draDriver, Pool: n.scenario.Node.Hostname, Device: claimDeviceName(g),
		})
	}
}

// startContainers starts the pod's init containers one after the other, then all others at once. The
// end of an init container calls it again.
func (n *Node) startContainers(p *pod) {
	if c := p.nextInit(); c != nil {
		n.startContainer(p, c)
		n.scheduleEnd(n.stateTime.Add(c.spec.For), func() {
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

// nextInit returns the pod's first init container that has not ended, nil if there is none.
func (p *pod) nextInit() *container {
	for _, c := range p.containers {
		if c.spec.Init && !c.done {
			return c
		}
	}

	return nil
}

// startContainer starts the container's process. Like the real runtime it does not start a container
// that was given a device that no longer exists. A container without a device has no process: we
// simulate only what uses GPUs.
func (n *Node) startContainer(p *pod, c *container) {
	if len(c.granted) == 0 {
		return
	}

	var devices []simDevice

	for _, g := range c.granted {
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

		devices = append(devices, g.simDevice)
	}

	if c.spec.Workload == nil {
		return
	}

	c.process = &process{
		pid:       n.newPID(p.uid, c.spec.Name),
		podName:   p.title(),
		pod:       p,
		container: c.spec.Name,
	}
	n.startTask(c.process, c.spec.Workload, devices)
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
		return // ReplacePod has ended it before its scheduled end
	}

	p.ended = true
	n.reportEnd(p)
	n.record(Record{Pod: p.title(), Message: "ended"})

	for _, c := range p.containers {
		n.stopContainer(c)
	}
}
