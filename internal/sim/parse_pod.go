package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// podEntry is a pod: with one container whose keys are among the pod's, or with a list of containers.
type podEntry struct {
	PodSpec
	Containers []listedContainer `yaml:",omitempty"`
	Container  string            `default:"main"`
	containerEntry
}

// containerEntry is what a container asks for.
type containerEntry struct {
	Resource string     `yaml:",omitempty"`
	Count    int        `default:"1" range:"1..65536"`
	Device   *DevicePin `yaml:",omitempty"`
	Workload string     `yaml:",omitempty"`
	Admin    bool       `yaml:",omitempty"`
}

// listedContainer is a container of a list.
type listedContainer struct {
	Name string `default:"main"`
	containerEntry
	Init bool          `yaml:",omitempty"`
	For  time.Duration `yaml:",omitempty"`
}

// DecodeYAML reads an entry and adds its pod.
func (e *podEntry) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	type plain podEntry
	if !r.Decode(n, key, (*plain)(e)) {
		return
	}
	f, pod := fileOf(r), e.PodSpec
	checkName(r, n, key, "namespace", pod.Namespace)
	checkName(r, n, key, "name", pod.Name)
	if strictyaml.HasKey(n, "for") && pod.For == 0 {
		r.FailAt(n, key, "for", "expected more than no time; leave it out for a pod that stays")
	}
	if list := strictyaml.Value(n, "containers"); list != nil {
		for _, name := range []string{"container", "resource", "count", "device", "workload", "admin"} {
			if strictyaml.HasKey(n, name) {
				r.FailAt(n, key, name, "is set together with containers; expected one or the other")
			}
		}
		for i, c := range e.Containers {
			pod.Containers = append(pod.Containers, c.spec(r, list.Content[i], fmt.Sprintf("%s.containers[%d]", key, i)))
		}
	} else {
		checkName(r, n, key, "container", e.Container)
		pod.Containers = []ContainerSpec{e.containerEntry.spec(r, n, key, e.Container)}
	}
	f.checkPod(r, n, key, &pod)
	f.scenario.Pods = append(f.scenario.Pods, pod)
}

// checkPod checks a pod as a whole, and beside the pods before it.
func (f *scenarioFile) checkPod(r *strictyaml.Reader, n *strictyaml.Node, key string, pod *PodSpec) {
	for i, c := range pod.Containers {
		if slices.ContainsFunc(pod.Containers[:i], func(before ContainerSpec) bool { return before.Name == c.Name }) {
			r.Fail(n, key, "has two containers called %q", c.Name)
		}
	}
	if len(pod.Containers) > 0 && !slices.ContainsFunc(pod.Containers, func(c ContainerSpec) bool { return !c.Init }) {
		r.FailAt(n, key, "containers", "has init containers alone; expected one that is not")
	}
	name := pod.listedName(f.Node.Hostname)
	for _, before := range f.scenario.Pods {
		if before.Namespace == pod.Namespace && before.listedName(f.Node.Hostname) == name && overlap(before, *pod) {
			r.FailAt(n, key, "name", "is %q while a pod with this name and namespace exists already", pod.Name)
		}
	}
	if pod.Namespace == OwnNamespace && name == OwnPod {
		r.FailAt(n, key, "name", "is %q, the exporter's own pod in namespace %s; expected another name", pod.Name,
			OwnNamespace)
	}
	if pod.Static && pod.Owner != "" {
		r.FailAt(n, key, "owner", "is %q; expected none: a static pod is its node's", pod.Owner)
	}
	hasResource := slices.ContainsFunc(pod.Containers, func(c ContainerSpec) bool { return c.Resource != "" })
	if pod.Static && hasResource && f.Node.Allocator == AllocatorDRA {
		r.FailAt(n, key, "static",
			"is true; expected a pod of the API server: static pods cannot have claims (allocator dra)")
	}
}

func overlap(a, b PodSpec) bool {
	return (a.For == 0 || b.At < a.At+a.For) && (b.For == 0 || a.At < b.At+b.For)
}

// spec returns a container of a list.
func (e *listedContainer) spec(r *strictyaml.Reader, n *strictyaml.Node, key string) ContainerSpec {
	checkName(r, n, key, "name", e.Name)
	c := e.containerEntry.spec(r, n, key, e.Name)
	c.Init, c.For = e.Init, e.For
	hasFor := strictyaml.HasKey(n, "for")
	switch {
	case hasFor && !c.Init:
		r.FailAt(n, key, "for", "is given without init: true; expected it at the pod, or an init container")
	case c.Init && !hasFor:
		r.FailAt(n, key, "for", "is missing; expected how long the init container runs, such as 30s")
	case hasFor && c.For == 0:
		r.FailAt(n, key, "for", "expected more than no time")
	}
	return c
}

// spec returns the container of an entry.
func (e *containerEntry) spec(r *strictyaml.Reader, n *strictyaml.Node, key, name string) ContainerSpec {
	f := fileOf(r)
	c := ContainerSpec{Name: name, Resource: e.Resource, Count: e.Count, Admin: e.Admin,
		Workload: f.workload(r, n, key, e.Workload)}
	if c.Admin && f.Node.Allocator != AllocatorDRA {
		r.FailAt(n, key, "admin", "is true; expected a node with allocator dra, not %s", f.Node.Allocator)
	}
	if e.Device != nil {
		c.Device = gpu.Some(*e.Device)
		if c.Count != 1 {
			r.FailAt(n, key, "device", "pins one device of %d", c.Count)
		}
	}
	asks := c.Workload != nil || c.Admin || strictyaml.HasKey(n, "count") || e.Device != nil
	if c.Resource == "" && asks {
		r.FailAt(n, key, "resource", "is missing; expected a resource such as nvidia.com/gpu")
	}
	return c
}

// workload returns the workload that a container or process names; nil if it names none.
func (f *scenarioFile) workload(r *strictyaml.Reader, n *strictyaml.Node, key, name string) *Workload {
	w := f.workloads[name]
	if w == nil && strictyaml.HasKey(n, "workload") {
		r.FailAt(n, key, "workload", "is %q; expected the name of one of the workloads", name)
	}
	return w
}

// checkName checks a name that Kubernetes would take for a pod, a namespace or a container.
func checkName(r *strictyaml.Reader, n *strictyaml.Node, key, field, name string) {
	if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" {
		r.FailAt(n, key, field, "is %q; expected lower-case letters, digits, - and . as in resnet-0", name)
	}
}

// processEntry is a process of a node without Kubernetes, or of the host.
type processEntry struct {
	GPU      *DevicePin `yaml:"gpu,omitempty"`
	Device   *DevicePin `yaml:",omitempty"`
	Workload string
	At       time.Duration `yaml:",omitempty"`
	For      time.Duration `yaml:",omitempty"`
}

// DecodeYAML reads an entry and adds its process.
func (e *processEntry) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	type plain processEntry
	if !r.Decode(n, key, (*plain)(e)) {
		return
	}
	if (e.GPU == nil) == (e.Device == nil) {
		r.Fail(n, key, "expected either gpu, an index, or device, such as 2/3g.20gb@4")
		return
	}
	f := fileOf(r)
	f.scenario.Processes = append(f.scenario.Processes,
		ProcessSpec{Device: *cmp.Or(e.GPU, e.Device), Workload: f.workload(r, n, key, e.Workload), At: e.At, For: e.For})
}

// DecodeYAML reads the place of a device.
func (d *DevicePin) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	gpus := fileOf(r).scenario.GPUs
	pin, ok := parsePin(n.Value)
	if n.Kind != strictyaml.ScalarNode || !ok || pin.GPU >= len(gpus) {
		r.Expected(n, key, "a GPU's index from 0 to %d, alone or with a MIG device as in 2/3g.20gb@4 or 2/3g.20gb@4/1",
			len(gpus)-1)
		return
	}
	model := gpus[pin.GPU].model.mig
	if pin.Profile != "" &&
		!slices.ContainsFunc(model.Profiles, func(p gpu.Profile) bool { return p.Name == pin.Profile }) {
		r.Fail(n, key, "names profile %q; expected one of %s's", pin.Profile, model.Name)
	}
	*d = pin
}

// parsePin reads GPU, GPU/PROFILE@START or GPU/PROFILE@START/CI.
func parsePin(text string) (pin DevicePin, ok bool) {
	parts := strings.Split(text, "/")
	index, ok := gpu.ParseDecimal(parts[0])
	pin.GPU = int(index)
	if len(parts) > 1 {
		name, start, _ := strings.Cut(parts[1], "@")
		at, isNumber := gpu.ParseDecimal(start)
		pin.Profile, pin.Start = name, int(at)
		ok = ok && name != "" && isNumber && at <= 64
	}
	if len(parts) > 2 {
		id, isNumber := gpu.ParseDecimal(parts[2])
		pin.Compute = gpu.ComputeID(id)
		ok = ok && isNumber
	}
	return pin, ok && len(parts) <= 3
}

// String is the pin as scenarios write it.
func (d DevicePin) String() string {
	if d.Profile == "" {
		return strconv.Itoa(d.GPU)
	}
	return fmt.Sprintf("%d/%s@%d/%d", d.GPU, d.Profile, d.Start, d.Compute)
}
