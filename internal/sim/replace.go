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
	identity []any
	recorded bool // we have recorded that it waits
}

// ReplacePod replaces a pod as if its owner had changed its request: it deletes the pod and, once
// the kubelet no longer lists that, creates one with its name, another UID and the new resource in
// all its containers that ask for devices. The new pod waits until a device of the resource is
// free. If the pod itself still waits, ReplacePod only changes its request. The error is
// gpu.ErrNotFound if there is no such pod.
func (n *Node) ReplacePod(namespace, name, resource string) error {
	n.lock()
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
	gone := n.at.Add(lingering)
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

// admitWaiting admits a pod that waits, or tries again at the next full second: before the changes
// of clients at that time, so that all nodes of a shared state give the pod the same device.
func (n *Node) admitWaiting(w *waitingPod) {
	passed := n.at.Sub(n.start)
	if from := n.handledFrom(passed, w.spec.Static); from != passed {
		if from != never {
			n.scheduleStart(n.start.Add(from), func() { n.admitWaiting(w) })
		}

		return
	}

	if until := n.busyUntil(); until > passed {
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
		n.start.Add(passed.Truncate(time.Second)+time.Second),
		func() { n.admitWaiting(w) },
	)
}

// missing says for what there is no free device.
func (s *ContainerSpec) missing() string {
	return fmt.Sprintf("no free device of %s for %d of container %s", s.Resource, s.Count, s.Name)
}
