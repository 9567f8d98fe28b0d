package spec

import (
	"go.yaml.in/yaml/v3"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// Decode reads a spec from YAML or JSON, strictly: unknown and repeated keys, wrong types and anything but exactly one form
// are errors that name the line, the key and what was expected. Errors are *Error.
func Decode(data []byte) (api.Spec, error) {
	root, err := document(data, maxSpec)
	if err != nil {
		return api.Spec{}, err
	}
	var r reader
	s := r.spec(root)
	if r.err == nil {
		if r.err = checkForm(s); r.err != nil {
			r.err.Line = root.Line
		}
	}
	if r.err != nil {
		return api.Spec{}, r.err
	}
	return s, nil
}

func (r *reader) spec(root *yaml.Node) api.Spec {
	var s api.Spec
	for _, f := range r.fields(root, "", maxKinds, "layout", "version", "mig-configs", "gpus", "devices", "demand") {
		switch f.name {
		case "layout":
			s.Layout = r.text(f, "the name of a layout")
		case "version":
			s.Version = r.version(f)
		case "mig-configs":
			s.MIGConfigs = r.layouts(f)
		case "gpus":
			s.GPUs = r.selectors(f)
		case "devices":
			s.Devices = r.devices(f)
		case "demand":
			s.Demand = r.demand(f)
		}
	}
	return s
}

func (r *reader) selectors(f field) []api.Selector {
	const expected = `an index, a UUID or a PCI bus id of a GPU, or "all"`
	list := []api.Selector{}
	for _, item := range r.items(f.value, f.key, maxList, "a list of GPUs, each "+expected) {
		if _, ok := wholeNumber(item.value, 1<<30); ok {
			list = append(list, api.Selector(item.value.Value))
		} else {
			list = append(list, api.Selector(r.text(item, expected)))
		}
	}
	return list
}

func (r *reader) devices(f field) map[string]api.DeviceRequest {
	const expected = `a count of 0 to 64, {count: 1, compute: ["1c", "2c"]}, or a list of these`
	m := map[string]api.DeviceRequest{}
	for _, d := range r.fields(f.value, f.key, maxKinds) {
		if d.value.Kind != yaml.SequenceNode {
			m[d.name] = r.request(d, expected)
			continue
		}
		list := api.DeviceRequest{Each: []api.DeviceRequest{}}
		for _, item := range r.items(d.value, d.key, maxCount, expected) {
			list.Each = append(list.Each, r.request(item, `a count of 0 to 64, or {count: 1, compute: ["1c", "2c"]}`))
		}
		if len(list.Each) == 0 {
			r.fail(d.value, d.key, `is an empty list; expected at least one count or {count: 1, compute: ["1c", "2c"]}`)
		}
		m[d.name] = list
	}
	return m
}

// request reads a number of instances that are split alike.
func (r *reader) request(d field, expected string) api.DeviceRequest {
	if _, ok := wholeNumber(d.value, maxCount); ok {
		return api.DeviceRequest{Count: r.number(d, maxCount, "")}
	}
	request := api.DeviceRequest{Count: 1}
	if d.value.Kind != yaml.MappingNode {
		r.fail(d.value, d.key, "is %s; expected %s", kindOf(d.value), expected)
		return request
	}
	for _, g := range r.fields(d.value, d.key, 2, "count", "compute") {
		if g.name == "count" {
			request.Count = r.number(g, maxCount, "a count of 0 to 64")
			continue
		}
		request.Compute = []string{}
		for _, item := range r.items(g.value, g.key, maxCompute, `a list of compute instances, such as ["1c", "2c"]`) {
			request.Compute = append(request.Compute, r.text(item, `the slices of a compute instance, such as "1c"`))
		}
	}
	return request
}

func (r *reader) demand(f field) []api.Need {
	list := []api.Need{}
	for _, item := range r.items(f.value, f.key, maxKinds, "a list of needs such as {memory: 12GiB, sms: 20, count: 3}") {
		need := api.Need{Count: 1}
		for _, g := range r.fields(item.value, item.key, 3, "memory", "sms", "count") {
			switch g.name {
			case "memory":
				need.Memory = r.bytes(g)
			case "sms":
				need.SMs = r.number(g, 1<<20, "a number of SMs")
			case "count":
				need.Count = r.number(g, maxCount, "a count of 0 to 64")
			}
		}
		list = append(list, need)
	}
	return list
}

func (r *reader) bytes(f field) api.Bytes {
	var b api.Bytes
	if f.value.Kind == yaml.ScalarNode && (f.value.Tag == "!!int" || f.value.Tag == "!!str") {
		if n, err := api.ParseBytes(f.value.Value); err == nil {
			return n
		}
	}
	r.fail(f.value, f.key, "is %s; expected a number of bytes or a size such as 12GiB or 20GB", kindOf(f.value))
	return b
}
