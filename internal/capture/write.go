package capture

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.yaml.in/yaml/v3"
)

const head = `# What the NVIDIA driver of one node said, question by question, written by "mig-exporter capture".
#
#   mig-exporter --driver=sim --sim.scenario=THIS-FILE    serves the same metrics again (add --sim.clock=step to go poll by poll)
#
# In it: models, versions, PCI addresses, MIG layout, readings, events, the memory of processes, and every error of the driver.
# Not in it: names or command lines of processes, pods, users, files; nothing that the driver was not asked for metrics.
# %s
#
# An answer is a value, ok, or {error: NVML's code}. {moments: {0: A, 2: B}} is A from the first poll on and B from the third
# (2.2: what the second asking in that poll got). {hangs: 3, then: A}: the call returned in the fourth poll, {hangs: ever}: not
# while this was recorded.
`

// What the head says of identities.
const (
	saysPseudonyms = "UUIDs, serial numbers, process ids and the host's name are replaced by pseudonyms, the same throughout the file."
	saysKept       = "UUIDs, serial numbers, process ids and the host's name are THE NODE'S OWN (--capture.keep-identities)."
)

// What stands at identities.
const (
	identitiesPseudonyms = "pseudonyms"
	identitiesKept       = "kept"
)

// Bytes is the recording as a scenario file. The same recording gives the same bytes.
func (r *Recording) Bytes() ([]byte, error) {
	says, identities := saysKept, identitiesKept
	if r.Pseudonyms {
		says, identities = saysPseudonyms, identitiesPseudonyms
	}
	node := newMapping()
	node.add("hostname", textNode(r.Hostname))
	node.add("kubernetes", scalar("!!bool", "false"))
	moments := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, m := range r.Moments {
		moments.Content = append(moments.Content, textNode(m.String()))
	}
	recorded := block()
	recorded.add("by", textNode(r.By))
	recorded.add("start", textNode(r.Start.Format(time.RFC3339Nano)))
	recorded.add("moments", moments)
	recorded.add("identities", textNode(identities))
	recorded.add("node", r.node.encode())
	if len(r.events) > 0 {
		recorded.add("events", encodeEvents(r.events))
	}
	gpus := &yaml.Node{Kind: yaml.SequenceNode}
	for _, g := range r.gpus {
		gpus.Content = append(gpus.Content, g.encode())
	}
	recorded.add("gpus", gpus)
	root := block()
	root.add("version", intNode(1))
	root.add("node", node.node)
	root.add("recorded", recorded.node)

	var out bytes.Buffer
	fmt.Fprintf(&out, head, says)
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(root.node); err != nil {
		return nil, fmt.Errorf("encode recording: %w", err)
	}
	if err := encoder.Close(); err != nil {
		return nil, fmt.Errorf("encode recording: %w", err)
	}
	return out.Bytes(), nil
}

// block is a mapping with a line for each key.
func block() mapping { return mapping{&yaml.Node{Kind: yaml.MappingNode}} }

func (g gpuRecord) encode() *yaml.Node {
	m := block()
	m.add("gpu", textNode(g.name))
	m.add("answers", g.answers.encode())
	if len(g.devices) > 0 {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, index := range slices.Sorted(maps.Keys(g.devices)) {
			d := block()
			d.add("index", intNode(index))
			d.add("answers", g.devices[index].encode())
			list.Content = append(list.Content, d.node)
		}
		m.add("mig_devices", list)
	}
	if len(g.instances) > 0 {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, at := range slices.SortedFunc(maps.Keys(g.instances), compareSlots) {
			i := block()
			i.add("profile", encode(reflect.ValueOf(at.profile)))
			i.add("position", intNode(at.position))
			i.add("answers", g.instances[at].encode())
			list.Content = append(list.Content, i.node)
		}
		m.add("gpu_instances", list)
	}
	return m.node
}

func compareSlots(a, b slot) int {
	return cmp.Or(cmp.Compare(a.profile, b.profile), cmp.Compare(a.position, b.position))
}

// encode writes the answers to each question, by question.
func (a answers) encode() *yaml.Node {
	m := block()
	for _, question := range slices.SortedFunc(maps.Keys(a), compareNatural) {
		m.add(question, encodeEntries(a[question]))
	}
	if len(a) == 0 {
		m.node.Style = yaml.FlowStyle
	}
	return m.node
}

// encodeEntries writes those that differ from the one before them; one that holds throughout stands alone.
func encodeEntries(entries []entry) *yaml.Node {
	changes := newMapping()
	last := ""
	for _, e := range entries {
		n := e.encode(e.moment)
		text := flat(n)
		if text == last {
			continue
		}
		last = text
		at := strconv.Itoa(e.moment)
		if e.nth > 1 {
			at += "." + strconv.Itoa(e.nth)
		}
		changes.node.Content = append(changes.node.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: at}, n)
	}
	if len(changes.node.Content) == 2 {
		return changes.node.Content[1]
	}
	m := newMapping()
	m.add("moments", changes.node)
	return m.node
}

// flat is a node's content as text, to compare.
func flat(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode {
		return n.Tag + strconv.Quote(n.Value)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%d(", n.Kind)
	for _, c := range n.Content {
		out.WriteString(flat(c) + ",")
	}
	return out.String() + ")"
}

// encode writes an answer to a question of a moment.
func (a answer) encode(moment int) *yaml.Node {
	if a.until == never {
		m := newMapping()
		m.add("hangs", textNode("ever"))
		return m.node
	}
	n := a.encodeSaid()
	if a.until <= moment {
		return n
	}
	m := newMapping()
	m.add("hangs", intNode(a.until))
	m.add("then", n)
	return m.node
}

func (a answer) encodeSaid() *yaml.Node {
	if a.ret == nvml.SUCCESS {
		return encode(reflect.ValueOf(a.value))
	}
	m := newMapping()
	m.add("error", textNode(returnName(a.ret)))
	return m.node
}

func encodeEvents(events []eventRecord) *yaml.Node {
	list := &yaml.Node{Kind: yaml.SequenceNode}
	for _, e := range events {
		m := newMapping()
		m.add("before", intNode(e.before))
		if e.ret != nvml.SUCCESS {
			m.add("error", textNode(returnName(e.ret)))
			list.Content = append(list.Content, m.node)
			continue
		}
		if e.gpu != "" {
			m.add("gpu", textNode(e.gpu))
		}
		m.add("type", textNode(eventArg().name(e.event.Type)))
		m.add("data", encode(reflect.ValueOf(e.event.Data)))
		m.add("gpu_instance_id", encode(reflect.ValueOf(e.event.GPUInstanceID)))
		m.add("compute_instance_id", encode(reflect.ValueOf(e.event.ComputeInstanceID)))
		list.Content = append(list.Content, m.node)
	}
	return list
}

// compareNatural orders text with the numbers in it by their size: f(9) is before f(10).
func compareNatural(a, b string) int {
	for a != "" && b != "" {
		na, nb := leadingDigits(a), leadingDigits(b)
		if na > 0 && nb > 0 {
			x, y := strings.TrimLeft(a[:na], "0"), strings.TrimLeft(b[:nb], "0")
			if c := cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)); c != 0 {
				return c
			}
			a, b = a[na:], b[nb:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func leadingDigits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}
