package spec

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// Decode reads a spec from YAML or JSON, strictly: unknown and repeated keys, wrong types and
// anything but exactly one form are errors that name the line, the key and what was expected. The
// error is the first *strictyaml.Error.
func Decode(data []byte) (api.Spec, error) { return DecodeLayout(data, "") }

// DecodeLayout is Decode, but replaces the spec's layout by the given one, unless that is empty.
func DecodeLayout(data []byte, layout string) (api.Spec, error) {
	if len(data) > maxSpec {
		return api.Spec{}, newError("", "%d bytes; expected at most %d", len(data), maxSpec)
	}

	d := document{chosen: layout}

	var first *strictyaml.Error
	if err := strictyaml.Decode("", data, &d, forms()...); errors.As(err, &first) {
		return api.Spec{}, first
	}

	return d.Spec, nil
}

// document is a spec that is being read.
type document struct {
	api.Spec
	chosen string // the layout that replaces the spec's own, unless it is empty
}

// FinishYAML checks a spec, as far as that is possible without the node.
func (d *document) FinishYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	d.Layout = cmp.Or(d.chosen, d.Layout)
	if err := check(d.Spec); err != nil {
		r.FailFound(n, key, err)
	}
}

// forms returns the readers of types that documents may have in several forms.
func forms() []strictyaml.Form {
	return []strictyaml.Form{
		strictyaml.FormOf(readSelector),
		strictyaml.FormOf(readBytes),
		strictyaml.FormOf(readRequests),
		strictyaml.FormOf(readDeviceList),
		strictyaml.FormOf(readFilters),
		strictyaml.FormOf(readComputeSizes),
		strictyaml.FormOf(byName(decode[api.DeviceRequest])),
		strictyaml.FormOf(byName(decode[[]api.LayoutRule])),
		strictyaml.FormOf(
			byName(wholeNumber(maxCount, fmt.Sprintf("a count of 0 to %d", maxCount))),
		),
	}
}

// reader reads a node into a value, or reports to r what it expected. key is the node's place in the
// document, for errors.
type reader[T any] func(r *strictyaml.Reader, n *strictyaml.Node, key string, into *T)

func decode[T any](r *strictyaml.Reader, n *strictyaml.Node, key string, into *T) {
	r.Decode(n, key, into)
}

// byName returns a reader of a mapping whose keys are names or ids of profiles, or names of layouts.
func byName[T any](read reader[T]) reader[map[string]T] {
	return func(r *strictyaml.Reader, n *strictyaml.Node, key string, into *map[string]T) {
		if !r.IsMapping(n, key, "a mapping") {
			return
		}

		*into = map[string]T{}

		for name, value := range strictyaml.Pairs(n) {
			at := strictyaml.Join(key, name.Value)
			if name.Kind != strictyaml.ScalarNode || name.Tag == "!!null" || !isName(name.Value) {
				r.Expected(name, at, "a name")
			} else if _, ok := (*into)[name.Value]; ok {
				r.Fail(name, at, "duplicate key")
			}

			var item T
			read(r, value, at, &item)
			(*into)[name.Value] = item
		}
	}
}

// readList reads the items of a list.
func readList[T any](r *strictyaml.Reader, n *strictyaml.Node, key string, read reader[T]) []T {
	if n.Kind != strictyaml.SequenceNode {
		r.Expected(n, key, "a list")
	}

	list := make([]T, len(n.Content))
	for i, item := range n.Content {
		read(r, item, fmt.Sprintf("%s[%d]", key, i), &list[i])
	}

	return list
}

// isName reports whether a text can be a name.
func isName(text string) bool { return text != "" && len(text) <= maxText }

// isText reports whether a node is text that can be a name.
func isText(n *strictyaml.Node) bool {
	return n.Kind == strictyaml.ScalarNode && n.Tag == "!!str" && isName(n.Value)
}

// parseWhole reads a whole number of YAML in plain decimal digits.
func parseWhole(n *strictyaml.Node, highest uint32) (int, bool) {
	v, ok := gpu.ParseDecimal(n.Value)
	return int(v), ok && v <= highest && n.Kind == strictyaml.ScalarNode && n.Tag == "!!int"
}

// wholeNumber returns a reader of numbers up to a highest one.
func wholeNumber(highest uint32, expected string) reader[int] {
	return func(r *strictyaml.Reader, n *strictyaml.Node, key string, into *int) {
		var ok bool
		if *into, ok = parseWhole(n, highest); !ok {
			r.Expected(n, key, "%s", expected)
		}
	}
}

func readSelector(r *strictyaml.Reader, n *strictyaml.Node, key string, into *api.Selector) {
	*into = api.Selector(n.Value)
	if _, ok := parseWhole(n, maxIndex); !ok && !isText(n) {
		r.Expected(n, key, `an index, a UUID or a PCI bus id of a GPU, or "all"`)
	}
}

func readBytes(r *strictyaml.Reader, n *strictyaml.Node, key string, into *api.Bytes) {
	var err error
	if *into, err = api.ParseBytes(n.Value); err != nil {
		r.Expected(n, key, "a number of bytes or a size such as 12GiB or 20GB")
	}
}

func readComputeSizes(r *strictyaml.Reader, n *strictyaml.Node, key string, into *[]string) {
	*into = readList(
		r,
		n,
		key,
		func(r *strictyaml.Reader, n *strictyaml.Node, key string, into *string) {
			if *into = n.Value; !isText(n) {
				r.Expected(n, key, `the slices of a compute instance, such as "1c"`)
			}
		},
	)
}

// readRequests reads a count of instances, a count with compute instances, or a list of these.
func readRequests(r *strictyaml.Reader, n *strictyaml.Node, key string, into *api.DeviceRequest) {
	if n.Kind == strictyaml.SequenceNode {
		into.Each = readList(
			r,
			n,
			key,
			requestReader(`a count of 0 to 64, or {count: 1, compute: ["1c", "2c"]}`),
		)

		return
	}

	requestReader(`a count of 0 to 64, {count: 1, compute: ["1c", "2c"]}, or a list of these`)(
		r,
		n,
		key,
		into,
	)
}

// requestReader returns a reader of a count, or of a count with compute instances.
func requestReader(expected string) reader[api.DeviceRequest] {
	return func(r *strictyaml.Reader, n *strictyaml.Node, key string, into *api.DeviceRequest) {
		type plain api.DeviceRequest // has no reader of its own, so that this one is not called again

		if n.Kind == strictyaml.MappingNode {
			r.Decode(n, key, (*plain)(into))
			return
		}

		wholeNumber(maxCount, expected)(r, n, key, &into.Count)
	}
}

// newError returns an error about the value at a key. It has no line: we only know the value, not the
// document that it may be from.
func newError(key, format string, args ...any) *strictyaml.Error {
	return &strictyaml.Error{Key: key, Message: fmt.Sprintf(format, args...)}
}
