package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// waitingPod is a pod that the kubelet has not admitted yet: there is no free device of its
// resource, or the kubelet still lists the pod that it replaces.
type waitingPod struct {
	spec     *PodSpec
	identity []any // see newPod
	recorded bool  // whether we have recorded that it waits
}

// ReplacePod replaces a pod as if its owner had changed the pod's request. It ends the pod. Once the
// kubelet no longer lists it, a new pod takes its place, with the same name, another UID and the new
// resource in all containers that ask for devices; it waits until a device of the resource is free.
// If the pod itself still waits, ReplacePod only changes its request. The error is gpu.ErrNotFound
// if there is no such pod.
func (n *Node) ReplacePod(namespace, name, resource string) error {
	n.lockAndCatchUp()
	defer n.mu.Unlock()

	if len(n.gpus) == 0 || n.replacerOf(namespace, name) == nil {
		return fmt.Errorf("replace pod %s/%s: %w", namespace, name, gpu.ErrNotFound)
	}

	op, err := n.begin(n.gpus[0])
	if err != nil {
		return fmt.Errorf("replace pod %s/%s: %w", namespace, name, err)
	}
	defer op.commitOrUndo()

	err = op.commit(Change{Op: opReplacePod, Namespace: namespace, Pod: name, Resource: resource})
	if err != nil {
		return fmt.Errorf("replace pod %s/%s: %w", namespace, name, err)
	}

	n.replacerOf(namespace, name)(resource)

	return nil
}

// replacerOf returns a function that changes the request of the named pod, which waits or runs; nil
// if there is none.
func (n *Node) replacerOf(namespace, name string) func(resource string) {
	named := func(s *PodSpec) bool {
		return s.Namespace == namespace && s.listedName(n.scenario.Node.Hostname) == name
	}
	for _, w := range n.waiting {
		if named(w.spec) {
			return func(resource string) {
				w.spec = w.spec.withRequest(resource)
				w.recorded = false
			}
		}
	}

	for _, p := range n.pods {
		if named(p.spec) && !p.ended {
			return func(resource string) { n.replace(p, resource) }
		}
	}

	return nil
}

func (n *Node) replace(p *pod, resource string) {
	n.endPod(p)
	n.record(Record{Pod: p.title(), Message: "replaced by one that asks for " + resource})
	gone := n.stateTime.Add(lingering)
	n.scheduleEnd(gone, func() { n.unlistPod(p) })

	n.replacements++
	w := &waitingPod{
		spec:     p.spec.withRequest(resource),
		identity: []any{"replacement", n.scenario.Seed, n.replacements},
	}
	n.waiting = append(n.waiting, w)
	n.scheduleStart(gone, func() { n.admitWaiting(w) })
}

// withRequest returns a copy of the spec that asks for another resource and waits for it.
func (s *PodSpec) withRequest(resource string) *PodSpec {
	asks := *s
	asks.Waits = true

	asks.Containers = slices.Clone(s.Containers)
	for i := range asks.Containers {
		if c := &asks.Containers[i]; c.Resource != "" {
			c.Resource = resource
			c.Device = gpu.Opt[DevicePin]{}
		}
	}

	return &asks
}

// admitWaiting admits a pod that waits, or schedules another try for the next full second. The try
// comes before the changes of clients at that time (rankStart), so that all processes of a shared
// node give the pod the same device.
func (n *Node) admitWaiting(w *waitingPod) {
	sinceStart := n.sinceStart()
	if from := n.admitsFrom(sinceStart, w.spec.Static); from != sinceStart {
		if from != never {
			n.scheduleStart(n.start.Add(from), func() { n.admitWaiting(w) })
		}

		return
	}

	if until := n.busyUntil(); until > sinceStart {
		// The kubelet may be down by then: admitWaiting looks again.
		n.scheduleStart(n.start.Add(until), func() { n.admitWaiting(w) })

		return
	}

	short := n.admitPod(w.spec, w.identity...)
	if short == nil {
		n.waiting = slices.DeleteFunc(n.waiting, func(o *waitingPod) bool { return o == w })
		return
	}

	if !w.recorded {
		w.recorded = true
		n.record(
			Record{Pod: w.spec.Namespace + "/" + w.spec.Name, Message: "waits: " + short.missing()},
		)
	}

	n.scheduleStart(
		n.start.Add(sinceStart.Truncate(time.Second)+time.Second),
		func() { n.admitWaiting(w) },
	)
}

// missing returns a message that says what the container lacks.
func (s *ContainerSpec) missing() string {
	return fmt.Sprintf("no free device of %s for %d of container %s", s.Resource, s.Count, s.Name)
}
