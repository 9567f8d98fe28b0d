package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// pod reads a pod: with one container whose keys stand beside the pod's, or with a list of containers.
func (p *parser) pod(n *yaml.Node, key string, s *Scenario) {
	own := []string{"container", "resource", "count", "device", "workload", "admin"}
	o := p.object(n, key, append([]string{"namespace", "name", "owner", "static", "labels", "at", "for", "containers"}, own...)...)
	if o.fields == nil {
		return
	}
	pod := PodSpec{
		Namespace: o.named("namespace", o.text("namespace", "default")),
		Name:      o.named("name", o.required("name")),
		Owner:     o.text("owner", ""),
		Static:    o.boolean("static", false),
		Labels:    o.labels(),
		At:        o.duration("at"),
		For:       o.duration("for"),
	}
	if o.has("for") && pod.For == 0 {
		p.fail(o.at("for"), o.sub("for"), "expected more than no time; leave it out for a pod that stays")
	}
	if o.has("containers") {
		for _, name := range own {
			if o.has(name) {
				p.fail(o.at(name), o.sub(name), "stands beside containers; expected one or the other")
			}
		}
		for _, item := range o.list("containers") {
			c := p.object(item.node, item.key, "name", "resource", "count", "device", "workload", "admin", "init", "for")
			spec := p.container(c, "name", s)
			p.initContainer(c, &spec)
			pod.Containers = append(pod.Containers, spec)
		}
	} else {
		pod.Containers = []ContainerSpec{p.container(o, "container", s)}
	}
	for i, c := range pod.Containers {
		for _, before := range pod.Containers[:i] {
			if before.Name == c.Name {
				p.fail(n, key, "has two containers called %q", c.Name)
			}
		}
	}
	if len(pod.Containers) > 0 && !slices.ContainsFunc(pod.Containers, func(c ContainerSpec) bool { return !c.Init }) {
		p.fail(o.at("containers"), o.sub("containers"), "has init containers alone; expected one that is not")
	}
	name := pod.listedName(s.Node.Hostname)
	for _, before := range s.Pods {
		if before.Namespace == pod.Namespace && before.listedName(s.Node.Hostname) == name && overlap(before, pod) {
			p.fail(o.at("name"), o.sub("name"), "is %q while a pod with this name and namespace exists already", pod.Name)
		}
	}
	if pod.Namespace == OwnNamespace && name == OwnPod {
		p.fail(o.at("name"), o.sub("name"), "is %q, the exporter's own pod in namespace %s; expected another name", pod.Name, OwnNamespace)
	}
	if pod.Static {
		p.staticPod(o, pod, s)
	}
	s.Pods = append(s.Pods, pod)
}

// staticPod checks what a static pod cannot have.
func (p *parser) staticPod(o object, pod PodSpec, s *Scenario) {
	if o.has("owner") {
		p.fail(o.at("owner"), o.sub("owner"), "is %q; expected none: a static pod is its node's", pod.Owner)
	}
	if s.Node.Allocator == AllocatorDRA && slices.ContainsFunc(pod.Containers, func(c ContainerSpec) bool { return c.Resource != "" }) {
		p.fail(o.at("static"), o.sub("static"), "is true; expected a pod of the API server: static pods cannot have claims (allocator dra)")
	}
}

// initContainer reads what makes a container of a list an init container.
func (p *parser) initContainer(o object, c *ContainerSpec) {
	c.Init, c.For = o.boolean("init", false), o.duration("for")
	switch {
	case o.has("for") && !c.Init:
		p.fail(o.at("for"), o.sub("for"), "is given without init: true; expected it at the pod, or an init container")
	case c.Init && !o.has("for"):
		p.fail(o.node, o.sub("for"), "is missing; expected how long the init container runs, such as 30s")
	case o.has("for") && c.For == 0:
		p.fail(o.at("for"), o.sub("for"), "expected more than no time")
	}
}

func overlap(a, b PodSpec) bool {
	return (a.For == 0 || b.At < a.At+a.For) && (b.For == 0 || a.At < b.At+b.For)
}

// container reads what a container asks for; nameKey is how its name is called there.
func (p *parser) container(o object, nameKey string, s *Scenario) ContainerSpec {
	c := ContainerSpec{
		Name:     o.named(nameKey, o.text(nameKey, "main")),
		Resource: o.text("resource", ""),
		Count:    int(o.integer("count", 1, 1, 1<<16)),
		Workload: o.workload(),
		Admin:    o.boolean("admin", false),
	}
	if c.Admin && s.Node.Allocator != AllocatorDRA {
		p.fail(o.at("admin"), o.sub("admin"), "is true; expected a node with allocator dra, not %s", s.Node.Allocator)
	}
	if n := o.fields["device"]; n != nil {
		pin, ok := p.pin(n, o.sub("device"), s)
		if ok {
			c.Device = gpu.Some(pin)
		}
		if c.Count != 1 {
			p.fail(n, o.sub("device"), "pins one device of %d", c.Count)
		}
	}
	if c.Resource == "" && o.fields != nil && (c.Workload != nil || c.Admin || o.has("count") || o.has("device")) {
		p.fail(o.node, o.sub("resource"), "is missing; expected a resource such as nvidia.com/gpu")
	}
	return c
}

// named checks a name that Kubernetes would take for a pod, a namespace or a container.
func (o object) named(key, name string) string {
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" {
		o.p.fail(o.at(key), o.sub(key), "is %q; expected lower-case letters, digits, - and . as in resnet-0", name)
	}
	return name
}

// labels reads the pod's labels.
func (o object) labels() map[string]string {
	n := o.fields["labels"]
	if n == nil {
		return nil
	}
	key := o.sub("labels")
	if n.Kind != yaml.MappingNode {
		o.p.fail(n, key, "is %s; expected a mapping from label names to values", kindOf(n))
		return nil
	}
	labels := make(map[string]string)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i].Value
		if _, ok := labels[name]; ok {
			o.p.fail(n.Content[i], key+"."+name, "stands here twice")
		}
		if text, ok := o.p.text(n.Content[i+1], key+"."+name); ok {
			labels[name] = text
		}
	}
	return labels
}

// process reads a process of a node without Kubernetes, or of the host.
func (p *parser) process(n *yaml.Node, key string, s *Scenario) {
	o := p.object(n, key, "gpu", "device", "workload", "at", "for")
	if o.fields == nil {
		return
	}
	spec := ProcessSpec{At: o.duration("at"), For: o.duration("for"), Workload: o.workload()}
	if !o.has("workload") {
		p.fail(n, o.sub("workload"), "is missing")
	}
	if o.has("gpu") == o.has("device") {
		p.fail(n, key, "expected either gpu, an index, or device, such as 2/3g.20gb@4")
		return
	}
	name := "device"
	if o.has("gpu") {
		name = "gpu"
	}
	spec.Device, _ = p.pin(o.fields[name], o.sub(name), s)
	s.Processes = append(s.Processes, spec)
}

// pin reads the place of a device.
func (p *parser) pin(n *yaml.Node, key string, s *Scenario) (DevicePin, bool) {
	bad := func() (DevicePin, bool) {
		p.fail(n, key, "is %s; expected a GPU's index from 0 to %d, alone or with a MIG device as in 2/3g.20gb@4 or 2/3g.20gb@4/1",
			kindOf(n), len(s.GPUs)-1)
		return DevicePin{}, false
	}
	if n.Kind != yaml.ScalarNode {
		return bad()
	}
	parts := strings.Split(n.Value, "/")
	index, ok := gpu.ParseDecimal(parts[0])
	if !ok || int(index) >= len(s.GPUs) || len(parts) > 3 {
		return bad()
	}
	pin := DevicePin{GPU: int(index)}
	if len(parts) > 1 {
		name, start, _ := strings.Cut(parts[1], "@")
		at, isNumber := gpu.ParseDecimal(start)
		if name == "" || !isNumber || at > 64 {
			return bad()
		}
		pin.Profile, pin.Start = name, int(at)
		if model := s.GPUs[index].board.mig; !slices.ContainsFunc(model.Profiles, func(o gpu.Profile) bool { return o.Name == name }) {
			p.fail(n, key, "names profile %q; expected one of %s's", name, model.Name)
			return DevicePin{}, false
		}
	}
	if len(parts) > 2 {
		ci, isNumber := gpu.ParseDecimal(parts[2])
		if !isNumber {
			return bad()
		}
		pin.Compute = gpu.ComputeID(ci)
	}
	return pin, true
}

// String is the pin as scenarios write it.
func (d DevicePin) String() string {
	if d.Profile == "" {
		return strconv.Itoa(d.GPU)
	}
	return fmt.Sprintf("%d/%s@%d/%d", d.GPU, d.Profile, d.Start, d.Compute)
}
