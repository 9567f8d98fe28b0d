package spec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// version is the only one of mig-parted's form that there is.
const version = "v1"

// LoadLayouts reads the named layouts of a file in mig-parted's form, version v1. The error joins every
// *strictyaml.Error found, in the order of their lines.
func LoadLayouts(path string) (map[string][]api.LayoutRule, error) {
	data, err := strictyaml.ReadFile(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("layouts: %w", err)
	}
	var file layoutFile
	if err := strictyaml.Decode(path, data, &file); err != nil {
		return nil, fmt.Errorf("layouts: %w", err)
	}
	return file.layouts(), nil
}

// layoutDocument is mig-parted's form of layouts.
type layoutDocument struct {
	Version    string                `yaml:",omitempty" expected:"v1" oneof:"v1"`
	MIGConfigs map[profileName]rules `yaml:"mig-configs,omitempty" range:"0..1024"`
}

func (d *layoutDocument) layouts() map[string][]api.LayoutRule {
	return convertMap(d.MIGConfigs, func(list rules) []api.LayoutRule {
		return convertList(list, func(e ruleEntry) api.LayoutRule {
			return api.LayoutRule{
				Devices:      api.DeviceList(e.Devices),
				DeviceFilter: convertList(e.DeviceFilter, func(f pciFilter) string { return string(f) }), MIGEnabled: e.MIGEnabled,
				MIGDevices: convertMap(e.MIGDevices, func(c instanceCount) int { return int(c) }),
			}
		})
	})
}

// layoutFile is a file of layouts of which all must be valid.
type layoutFile struct{ layoutDocument }

// DecodeYAML reads a file and checks its layouts.
func (f *layoutFile) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	if !r.Decode(n, key, &f.layoutDocument) {
		return
	}
	layouts := f.layouts()
	err := checkDocument(api.Spec{Layout: "any", Version: f.Version, MIGConfigs: layouts})
	if err == nil {
		err = checkLayouts(layouts)
	}
	if err != nil {
		r.Fail(n, err.Key, "%s", err.Message)
	}
}

// rules are those of one layout.
type rules []ruleEntry

// DecodeYAML reads a list that is not empty.
func (l *rules) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	if entries := len(n.Content); n.Kind == strictyaml.SequenceNode && (entries == 0 || entries > maxRules) {
		r.Fail(n, key, "has %d rules; expected 1 to %d", entries, maxRules)
		return
	}
	r.Decode(n, key, (*[]ruleEntry)(l))
}

// ruleEntry is one rule of a layout.
type ruleEntry struct {
	Devices      deviceList                    `range:"0..256"`
	DeviceFilter deviceFilter                  `yaml:"device-filter,omitempty" range:"0..256"`
	MIGEnabled   bool                          `yaml:"mig-enabled"`
	MIGDevices   map[profileName]instanceCount `yaml:"mig-devices,omitempty" range:"0..64"`
}

// DecodeYAML reads a rule.
func (e *ruleEntry) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	type plain ruleEntry
	if !r.Decode(n, key, (*plain)(e)) {
		return
	}
	switch {
	case e.MIGEnabled && e.MIGDevices == nil:
		r.FailAt(n, key, "mig-devices", "is missing; expected counts by profile, {} for no instances")
	case !e.MIGEnabled && len(e.MIGDevices) > 0:
		r.FailAt(n, key, "mig-devices", "has instances where mig-enabled is false")
	}
}

// deviceList is all, or a list of indexes of GPUs.
type deviceList api.DeviceList

// DecodeYAML reads both forms.
func (d *deviceList) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	switch {
	case n.Kind == strictyaml.ScalarNode && n.Value == "all":
		d.All = true
	case n.Kind != strictyaml.SequenceNode:
		r.Expected(n, key, "all or a list of indexes of GPUs")
	default:
		var list []gpuIndex
		r.Decode(n, key, &list)
		d.Indexes = convertList(list, func(i gpuIndex) int { return int(i) })
	}
}

type (
	gpuIndex      int
	instanceCount int
)

// DecodeYAML reads the index of a GPU.
func (i *gpuIndex) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	index, ok := parseWhole(n, maxIndex)
	if *i = gpuIndex(index); !ok {
		r.Expected(n, key, "the index of a GPU")
	}
}

// DecodeYAML reads how many instances of a profile there are.
func (c *instanceCount) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	count, ok := parseWhole(n, maxCount)
	if *c = instanceCount(count); !ok {
		r.Expected(n, key, "a count of 0 to %d", maxCount)
	}
}

// deviceFilter is a PCI device id, or a list of them; as in mig-parted an empty one lets everything through.
type deviceFilter []pciFilter

// DecodeYAML reads both forms.
func (f *deviceFilter) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	*f = deviceFilter{}
	switch {
	case n.Kind == strictyaml.SequenceNode:
		r.Decode(n, key, (*[]pciFilter)(f))
	case n.Tag != "!!str" || n.Value != "":
		var filter pciFilter
		r.Decode(n, key, &filter)
		*f = deviceFilter{filter}
	}
}

// pciFilter is a PCI device id.
type pciFilter string

const expectedFilter = `a PCI device id such as "0x20B010DE", or a list of them`

// DecodeYAML reads a PCI device id.
func (f *pciFilter) DecodeYAML(r *strictyaml.Reader, n *strictyaml.Node, key string) {
	*f = pciFilter(n.Value)
	if _, ok := pciDevice(n.Value); !ok || n.Kind != strictyaml.ScalarNode || n.Tag != "!!str" {
		r.Expected(n, key, "%s", expectedFilter)
	}
}

func known(layouts map[string][]api.LayoutRule) string {
	if len(layouts) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(layouts)), ", ")
}
