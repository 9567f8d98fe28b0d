package spec

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// version is the only one of mig-parted's form that there is.
const version = "v1"

// LoadLayouts reads the named layouts of a file in mig-parted's form, version v1. Errors name the file.
func LoadLayouts(path string) (map[string][]api.LayoutRule, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("layouts: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("layouts of %s: %w", path, err)
	}
	layouts, err := decodeLayouts(data)
	if err != nil {
		return nil, fmt.Errorf("layouts of %s: %w", path, err)
	}
	return layouts, nil
}

func decodeLayouts(data []byte) (map[string][]api.LayoutRule, error) {
	root, err := document(data, maxFile)
	if err != nil {
		return nil, err
	}
	var r reader
	var s api.Spec
	for _, f := range r.fields(root, "", 2, "version", "mig-configs") {
		if f.name == "version" {
			s.Version = r.version(f)
		} else {
			s.MIGConfigs = r.layouts(f)
		}
	}
	if r.err == nil {
		s.Layout = "any"
		if r.err = checkDocument(s); r.err != nil {
			r.err.Line = root.Line
		}
	}
	if r.err == nil {
		r.err = checkLayouts(s.MIGConfigs)
	}
	if r.err != nil {
		return nil, r.err
	}
	return s.MIGConfigs, nil
}

func (r *reader) version(f field) string {
	if f.value.Kind != yaml.ScalarNode || f.value.Value != version {
		r.fail(f.value, f.key, "is %s; expected %s", kindOf(f.value), version)
	}
	return f.value.Value
}

func (r *reader) layouts(f field) map[string][]api.LayoutRule {
	m := map[string][]api.LayoutRule{}
	for _, l := range r.fields(f.value, f.key, maxLayouts) {
		rules := []api.LayoutRule{}
		for _, item := range r.items(l.value, l.key, maxRules, "a list of rules") {
			rules = append(rules, r.rule(item))
		}
		if len(rules) == 0 {
			r.fail(l.at, l.key, "has no rules; expected at least one")
		}
		if r.err != nil {
			return nil
		}
		m[l.name] = rules
	}
	return m
}

func (r *reader) rule(f field) api.LayoutRule {
	var rule api.LayoutRule
	var has []string
	for _, g := range r.fields(f.value, f.key, 4, "devices", "device-filter", "mig-enabled", "mig-devices") {
		has = append(has, g.name)
		switch g.name {
		case "devices":
			rule.Devices = r.deviceList(g)
		case "device-filter":
			rule.DeviceFilter = r.filter(g)
		case "mig-enabled":
			rule.MIGEnabled = r.boolean(g)
		case "mig-devices":
			rule.MIGDevices = map[string]int{}
			for _, d := range r.fields(g.value, g.key, maxKinds) {
				rule.MIGDevices[d.name] = r.number(d, maxCount, "a count of 0 to 64")
			}
		}
	}
	for _, name := range []string{"devices", "mig-enabled"} {
		if !slices.Contains(has, name) {
			r.fail(f.value, join(f.key, name), "is missing")
		}
	}
	switch {
	case rule.MIGEnabled && rule.MIGDevices == nil:
		r.fail(f.value, join(f.key, "mig-devices"), "is missing; expected counts by profile, {} for no instances")
	case !rule.MIGEnabled && len(rule.MIGDevices) > 0:
		r.fail(f.value, join(f.key, "mig-devices"), "has instances where mig-enabled is false")
	}
	return rule
}

func (r *reader) deviceList(f field) api.DeviceList {
	const expected = "all or a list of indexes of GPUs"
	if f.value.Kind == yaml.ScalarNode && f.value.Value == "all" {
		return api.DeviceList{All: true}
	}
	list := api.DeviceList{Indexes: []int{}}
	for _, item := range r.items(f.value, f.key, maxList, expected) {
		list.Indexes = append(list.Indexes, r.number(item, 1<<30, "the index of a GPU"))
	}
	return list
}

// filter reads a device filter; as in mig-parted an empty one lets everything through.
func (r *reader) filter(f field) api.Strings {
	const expected = "a PCI device id such as \"0x20B010DE\", or a list of them"
	if f.value.Kind == yaml.ScalarNode && f.value.Tag == "!!str" && f.value.Value == "" {
		return api.Strings{}
	}
	items := []field{f}
	if f.value.Kind != yaml.ScalarNode {
		items = r.items(f.value, f.key, maxList, expected)
	}
	list := api.Strings{}
	for _, item := range items {
		text := r.text(item, expected)
		if _, ok := pciDevice(text); text != "" && !ok {
			r.fail(item.value, item.key, "is %s; expected %s", kindOf(item.value), expected)
		}
		list = append(list, text)
	}
	return list
}

func known(layouts map[string][]api.LayoutRule) string {
	if len(layouts) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(layouts)), ", ")
}
