package spec

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// Decode reads a spec from YAML or JSON, strictly: unknown and repeated keys, wrong types and anything but exactly one
// form are errors that name the line, the key and what was expected. The error is the first *strictyaml.Error.
func Decode(data []byte) (api.Spec, error) { return DecodeLayout(data, "") }

// DecodeLayout is Decode for a spec that asks for the given layout instead of its own, unless it is empty.
func DecodeLayout(data []byte, layout string) (api.Spec, error) {
	if len(data) > maxSpec {
		return api.Spec{}, wrong("", "%d bytes; expected at most %d", len(data), maxSpec)
	}
	d := document{chosen: layout}
	var first *strictyaml.Error
	if err := strictyaml.Decode("", data, &d); errors.As(err, &first) {
		return api.Spec{}, first
	}
	return d.spec(), nil
}

// document is a spec as it is written.
type document struct {
	chosen string // the layout in the place of its own; empty: its own

	Layout layoutName `yaml:",omitempty"`
	layoutDocument
	GPUs []selector `yaml:"gpus,omitempty" range:"0..256" expected:"a list of indexes, UUIDs or PCI bus ids of GPUs"`

	Devices map[profileName]deviceEntry `yaml:",omitempty" range:"0..64"`

	Demand []needEntry `yaml:",omitempty" range:"0..64" expected:"a list of needs such as {memory: 12GiB, count: 3}"`
}

// DecodeYAML reads a spec and checks its form.
func (d *document) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	type plain document
	if !r.Decode(n, key, (*plain)(d)) {
		return
	}
	if err := checkForm(d.spec()); err != nil {
		r.Fail(n, err.Key, "%s", err.Message)
	}
}

func (d *document) spec() api.Spec {
	return api.Spec{
		Layout: cmp.Or(d.chosen, string(d.Layout)), Version: d.Version, MIGConfigs: d.layouts(),
		GPUs:    convertList(d.GPUs, func(s selector) api.Selector { return api.Selector(s) }),
		Devices: convertMap(d.Devices, func(e deviceEntry) api.DeviceRequest { return api.DeviceRequest(e) }),
		Demand: convertList(d.Demand, func(e needEntry) api.Need {
			return api.Need{Memory: api.Bytes(e.Memory), SMs: e.SMs, Count: e.Count}
		}),
	}
}

// convertList converts the items of a list; nil stays nil.
func convertList[From, To any](list []From, convert func(From) To) []To {
	if list == nil {
		return nil
	}
	converted := make([]To, 0, len(list))
	for _, item := range list {
		converted = append(converted, convert(item))
	}
	return converted
}

// convertMap converts the values of a map; nil stays nil.
func convertMap[Key ~string, From, To any](m map[Key]From, convert func(From) To) map[string]To {
	if m == nil {
		return nil
	}
	converted := make(map[string]To, len(m))
	for name, value := range m {
		converted[string(name)] = convert(value)
	}
	return converted
}

// isName reports whether a text can be a name.
func isName(text string) bool { return text != "" && len(text) <= maxText }

// profileName is the key of a profile, its name or id, or that of a layout.
type profileName string

// UnmarshalText reads a name.
func (p *profileName) UnmarshalText(text []byte) error {
	if *p = profileName(text); !isName(string(text)) {
		return errors.New("a name")
	}
	return nil
}

// readText reads text that is not empty.
func readText(r *strictyaml.Reader, n *strictyaml.Node, key, expected string) string {
	if n.Kind != strictyaml.ScalarNode || n.Tag != "!!str" || !isName(n.Value) {
		r.Expected(n, key, "%s", expected)
	}
	return n.Value
}

// parseWhole reads a whole number of YAML in plain decimal digits.
func parseWhole(n *strictyaml.Node, highest uint32) (int, bool) {
	v, ok := gpu.ParseDecimal(n.Value)
	return int(v), ok && v <= highest && n.Kind == strictyaml.ScalarNode && n.Tag == "!!int"
}

// layoutName is the name of a layout of the spec or of the node.
type layoutName string

// DecodeYAML reads a name.
func (l *layoutName) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	*l = layoutName(readText(r, n, key, "the name of a layout"))
}

// selector is an index, a UUID or a PCI bus id of a GPU, or "all".
type selector string

// DecodeYAML reads a selector.
func (s *selector) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	*s = selector(n.Value)
	if _, ok := parseWhole(n, maxIndex); !ok {
		readText(r, n, key, `an index, a UUID or a PCI bus id of a GPU, or "all"`)
	}
}

// deviceEntry is a count of instances, a count with compute instances, or a list of these.
type deviceEntry api.DeviceRequest

// DecodeYAML reads all forms.
func (e *deviceEntry) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	if n.Kind != strictyaml.SequenceNode {
		*e = readRequest(r, n, key, `a count of 0 to 64, {count: 1, compute: ["1c", "2c"]}, or a list of these`)
		return
	}
	if len(n.Content) == 0 || len(n.Content) > maxCount {
		r.Fail(n, key, `has %d items; expected 1 to %d, each a count or {count: 1, compute: ["1c", "2c"]}`,
			len(n.Content), maxCount)
		return
	}
	var list []requestEntry
	r.Decode(n, key, &list)
	e.Each = convertList(list, func(e requestEntry) api.DeviceRequest { return api.DeviceRequest(e) })
}

// requestEntry is an item of a list of requests.
type requestEntry api.DeviceRequest

// DecodeYAML reads a request.
func (e *requestEntry) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	*e = requestEntry(readRequest(r, n, key, `a count of 0 to 64, or {count: 1, compute: ["1c", "2c"]}`))
}

// readRequest reads a number of instances that are split alike.
func readRequest(r *strictyaml.Reader, n *strictyaml.Node, key, expected string) deviceEntry {
	if n.Kind != strictyaml.MappingNode {
		count, ok := parseWhole(n, maxCount)
		if !ok {
			r.Expected(n, key, "%s", expected)
		}
		return deviceEntry{Count: count}
	}
	var request struct {
		Count   int           `default:"1" range:"0..64" expected:"a count of 0 to 64"`
		Compute []computeSize `yaml:",omitempty" range:"0..16" expected:"a list of compute instances, such as [1c, 2c]"`
	}
	r.Decode(n, key, &request)
	compute := convertList(request.Compute, func(c computeSize) string { return string(c) })
	return deviceEntry{Count: request.Count, Compute: compute}
}

// computeSize is the slices of a compute instance.
type computeSize string

// DecodeYAML reads text; Resolve checks it.
func (c *computeSize) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	*c = computeSize(readText(r, n, key, `the slices of a compute instance, such as "1c"`))
}

// needEntry is a need of a demand.
type needEntry struct {
	Memory memorySize `yaml:",omitempty"`
	SMs    int        `yaml:"sms,omitempty" range:"0..1048576" expected:"a number of SMs"`
	Count  int        `default:"1" range:"0..64" expected:"a count of 0 to 64"`
}

// memorySize is an amount of memory in bytes.
type memorySize api.Bytes

// UnmarshalText reads a number of bytes, or a size with a unit.
func (s *memorySize) UnmarshalText(text []byte) error {
	bytes, err := api.ParseBytes(string(text))
	if *s = memorySize(bytes); err != nil {
		return errors.New("a number of bytes or a size such as 12GiB or 20GB")
	}
	return nil
}

// wrong returns an error about a value that has not been read from a document.
func wrong(key, format string, args ...any) *strictyaml.Error {
	return &strictyaml.Error{Key: key, Message: fmt.Sprintf(format, args...)}
}
