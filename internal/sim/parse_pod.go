package sim

import (
	"fmt"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// podEntry is a pod in a scenario file. It lists its containers under "containers", or has the keys
// of its one container beside its own, as in {name: resnet-0, resource: nvidia.com/gpu}.
type podEntry struct {
	PodSpec
	Container string `default:"main" match:"[a-z0-9.-]+" expected:"lower-case letters, digits, - and . as in main"` //nolint:lll // a struct tag is one line
	resourceRequest
}

// FinishYAML adds the pod of an entry.
func (e *podEntry) FinishYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	f := fileOf(r)
	pod := e.PodSpec

	if strictyaml.HasKey(n, "containers") {
		for _, name := range []string{"container", "resource", "count", "device", "workload", "admin"} {
			if strictyaml.HasKey(n, name) {
				r.FailAt(n, key, name, "is set together with containers; expected one or the other")
			}
		}
	} else {
		e.resourceRequest.check(r, n, key)
		pod.Containers = []ContainerSpec{{Name: e.Container, resourceRequest: e.resourceRequest}}
	}

	f.checkPod(r, n, key, &pod)
	f.scenario.Pods = append(f.scenario.Pods, pod)
}

// checkPod checks a pod as a whole, and against the pods above it in the file.
func (f *scenarioFile) checkPod(
	r *strictyaml.Reader,
	n *strictyaml.Node,
	key string,
	pod *PodSpec,
) {
	for i, c := range pod.Containers {
		if slices.ContainsFunc(pod.Containers[:i], func(before ContainerSpec) bool {
			return before.Name == c.Name
		}) {
			r.Fail(n, key, "has two containers called %q", c.Name)
		}
	}

	if len(pod.Containers) > 0 &&
		!slices.ContainsFunc(pod.Containers, func(c ContainerSpec) bool { return !c.Init }) {
		r.FailAt(n, key, "containers", "has init containers alone; expected one that is not")
	}

	name := pod.listedName(f.Node.Hostname)
	for _, before := range f.scenario.Pods {
		if before.Namespace == pod.Namespace && before.listedName(f.Node.Hostname) == name &&
			overlap(before, *pod) {
			r.FailAt(
				n,
				key,
				"name",
				"is %q while a pod with this name and namespace exists already",
				pod.Name,
			)
		}
	}

	if pod.Namespace == OwnNamespace && name == OwnPod {
		r.FailAt(
			n,
			key,
			"name",
			"is %q, the exporter's own pod in namespace %s; expected another name",
			pod.Name,
			OwnNamespace,
		)
	}

	if pod.Created > pod.At {
		r.FailAt(
			n,
			key,
			"created",
			"is %s, later than at, %s; expected a time before it is bound to the node",
			pod.Created,
			pod.At,
		)
	}

	if pod.Static && pod.Owner != "" {
		r.FailAt(n, key, "owner", "is %q; expected none: a static pod is its node's", pod.Owner)
	}

	hasResource := slices.ContainsFunc(pod.Containers, func(c ContainerSpec) bool {
		return c.Resource != ""
	})
	if pod.Static && hasResource && f.Node.Allocator == AllocatorDRA {
		r.FailAt(
			n,
			key,
			"static",
			"is true; expected a pod of the API server: static pods cannot have claims (allocator dra)",
		)
	}
}

// overlap reports whether two pods run at the same time. A pod without For stays.
func overlap(a, b PodSpec) bool {
	return (a.For == 0 || b.At < a.At+a.For) && (b.For == 0 || a.At < b.At+b.For)
}

// FinishYAML checks a container of a list.
func (c *ContainerSpec) FinishYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	c.check(r, n, key)

	switch {
	case c.For > 0 && !c.Init:
		r.FailAt(
			n,
			key,
			"for",
			"is given without init: true; expected it at the pod, or an init container",
		)
	case c.For == 0 && c.Init:
		r.FailAt(
			n,
			key,
			"for",
			"is missing; expected how long the init container runs, such as 30s",
		)
	}
}

// check checks keys that depend on each other, and on the node.
func (q *resourceRequest) check(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	if allocator := fileOf(r).Node.Allocator; q.Admin && allocator != AllocatorDRA {
		r.FailAt(n, key, "admin", "is true; expected a node with allocator dra, not %s", allocator)
	}

	if q.Device.Present() && q.Count != 1 {
		r.FailAt(n, key, "device", "pins one device of %d", q.Count)
	}

	asks := q.Workload != nil || q.Admin || strictyaml.HasKey(n, "count") || q.Device.Present()
	if q.Resource == "" && asks {
		r.FailAt(n, key, "resource", "is missing; expected a resource such as nvidia.com/gpu")
	}
}

// processEntry is a process in a scenario file. It names its device under "device" or, if that is a
// whole GPU, under "gpu".
type processEntry struct {
	ProcessSpec
	GPU gpu.Opt[DevicePin] `yaml:"gpu,omitempty"`
}

// FinishYAML adds the process of an entry.
func (e *processEntry) FinishYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	if e.GPU.Present() == strictyaml.HasKey(n, "device") {
		r.Fail(n, key, "expected either gpu, an index, or device, such as 2/3g.20gb@4")
		return
	}

	e.Device = e.GPU.Or(e.Device)
	f := fileOf(r)
	f.scenario.Processes = append(f.scenario.Processes, e.ProcessSpec)
}

// Valid reports whether the scenario has the GPU, and its model the profile.
func (p DevicePin) Valid(root any) (valid bool, expected string) {
	gpus := root.(*scenarioFile).scenario.GPUs
	if len(gpus) == 0 {
		return true, "" // the GPUs themselves have an error, which is reported already
	}

	if p.GPU >= len(gpus) {
		return false, fmt.Sprintf(
			"a GPU's index from 0 to %d, alone or with a MIG device",
			len(gpus)-1,
		)
	}

	model := gpus[p.GPU].Model.mig
	known := slices.ContainsFunc(model.Profiles, func(f gpu.Profile) bool {
		return f.Name == p.Profile
	})
	expected = fmt.Sprintf("one of %s's profiles (%s)", model.Name, profileNames(model.Profiles))

	return known || p.Profile == "", expected
}
