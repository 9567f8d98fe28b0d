package spec

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/mig"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// Resolve turns a spec into the planner's types. It looks up a named layout in what layouts returns,
// which are the node's, or only in the spec's own mig-configs if it has any. Errors are
// *strictyaml.Error.
func Resolve(s api.Spec, layouts func() map[string][]api.LayoutRule) (mig.Spec, error) {
	if err := checkForm(s); err != nil {
		return mig.Spec{}, err
	}

	var resolved mig.Spec
	var err *strictyaml.Error

	switch {
	case s.Demand != nil:
		resolved.Demand, err = resolveDemand(s.Demand)
	case s.Devices != nil:
		resolved.Rules, err = resolveCounts(s)
	default:
		resolved.Rules, err = resolveLayout(s, layouts)
	}

	if err != nil {
		return mig.Spec{}, err
	}

	return resolved, nil
}

// Rules turns a layout into the planner's types. Errors are *strictyaml.Error.
func Rules(layout []api.LayoutRule) ([]mig.Rule, error) {
	rules, err := resolveRules("rules", layout)
	if err != nil {
		return nil, err
	}

	return rules, nil
}

func resolveLayout(
	s api.Spec,
	layouts func() map[string][]api.LayoutRule,
) ([]mig.Rule, *strictyaml.Error) {
	key := "layout"
	known := s.MIGConfigs

	if known == nil {
		known = layouts()
	} else {
		key = "mig-configs"

		if s.Layout == "" {
			for name := range known { // checkForm has seen to it that there is only one
				s.Layout = name
			}
		}
	}

	layout, ok := known[s.Layout]
	if !ok && s.MIGConfigs == nil {
		return nil, newError(
			"layout",
			"this node has no layout %.80q; migctl layouts lists those that it has",
			s.Layout,
		)
	}

	if !ok {
		return nil, newError(
			"layout", "%.80q is not known; expected one of: %s", s.Layout, joinNames(known))
	}

	return resolveRules(strictyaml.Join(key, s.Layout), layout)
}

// joinNames lists the names of layouts for a message.
func joinNames(layouts map[string][]api.LayoutRule) string {
	return strings.Join(slices.Sorted(maps.Keys(layouts)), ", ")
}

// checkLayouts returns an error if the planner cannot take one of the layouts.
func checkLayouts(layouts map[string][]api.LayoutRule) *strictyaml.Error {
	for _, name := range slices.Sorted(maps.Keys(layouts)) {
		if _, err := resolveRules(strictyaml.Join("mig-configs", name), layouts[name]); err != nil {
			return err
		}
	}

	return nil
}

// resolveRules turns the rules of a layout into the planner's. key is the layout's place in the
// document, for errors.
func resolveRules(key string, layout []api.LayoutRule) ([]mig.Rule, *strictyaml.Error) {
	if len(layout) == 0 || len(layout) > maxRules {
		return nil, newError(key, "has %d rules; expected 1 to %d", len(layout), maxRules)
	}

	var rules []mig.Rule

	for i, l := range layout {
		at := fmt.Sprintf("%s[%d]", key, i)
		rule := mig.Rule{Enabled: l.MIGEnabled}

		switch {
		case l.MIGEnabled && l.MIGDevices == nil:
			return nil, newError(
				strictyaml.Join(at, "mig-devices"),
				"is missing; expected counts by profile, {} for no instances",
			)
		case !l.MIGEnabled && len(l.MIGDevices) > 0:
			return nil, newError(
				strictyaml.Join(at, "mig-devices"),
				"has instances while mig-enabled is false",
			)
		case !l.Devices.All && l.Devices.Indexes == nil:
			return nil, newError(strictyaml.Join(at, "devices"), "is missing")
		case len(l.Devices.Indexes) > maxList || len(l.DeviceFilter) > maxList:
			return nil, newError(at, "has more than %d devices or device filters", maxList)
		}

		if l.Devices.All {
			rule.GPUs = []string{mig.AllGPUs}
		}

		for _, index := range l.Devices.Indexes {
			rule.GPUs = append(rule.GPUs, strconv.Itoa(index))
		}

		for _, filter := range l.DeviceFilter {
			id, ok := pciDevice(filter)
			if !ok {
				return nil, newError(
					strictyaml.Join(at, "device-filter"),
					`has %.60q; expected a PCI device id such as "0x20B010DE"`,
					filter,
				)
			}

			rule.PCIDevices = append(rule.PCIDevices, id)
		}

		devices := map[string]api.DeviceRequest{}
		for name, count := range l.MIGDevices {
			devices[name] = api.DeviceRequest{Count: count}
		}

		var err *strictyaml.Error

		rule.Want, err = resolveDevices(strictyaml.Join(at, "mig-devices"), devices)
		if err != nil {
			return nil, err
		}

		rules = append(rules, rule)
	}

	return rules, nil
}

// pciDevice parses a PCI device id as NVIDIA's files write it: 0x20B010DE is device 20B0 of vendor
// 10DE.
func pciDevice(s string) (uint32, bool) {
	digits, ok := strings.CutPrefix(strings.ToLower(s), "0x")
	n, err := strconv.ParseUint(digits, 16, 32)

	return uint32(n), ok && err == nil && len(digits) == 8
}

func resolveCounts(s api.Spec) ([]mig.Rule, *strictyaml.Error) {
	if len(s.GPUs) > maxList {
		return nil, newError("gpus", "has %d items; expected at most %d", len(s.GPUs), maxList)
	}

	rule := mig.Rule{Enabled: true}

	for i, selector := range s.GPUs {
		if selector == "" || len(selector) > maxText {
			return nil, newError(fmt.Sprintf("gpus[%d]", i),
				`is %.60q; expected an index, a UUID or a PCI bus id of a GPU, or "all"`, selector)
		}

		rule.GPUs = append(rule.GPUs, string(selector))
	}

	var err *strictyaml.Error
	if rule.Want, err = resolveDevices("devices", s.Devices); err != nil {
		return nil, err
	}

	return []mig.Rule{rule}, nil
}

func resolveDemand(needs []api.Need) ([]mig.Need, *strictyaml.Error) {
	if len(needs) > maxKinds {
		return nil, newError("demand", "has %d needs; expected at most %d", len(needs), maxKinds)
	}

	var list []mig.Need
	total := 0

	for i, n := range needs {
		if n.Count < 0 || n.Count > maxCount || n.SMs < 0 {
			return nil, newError(
				fmt.Sprintf("demand[%d]", i),
				"count %d, sms %d; expected a count of 0 to %d and no negative number",
				n.Count,
				n.SMs,
				maxCount,
			)
		}

		total += n.Count
		list = append(list, mig.Need{MemoryBytes: uint64(n.Memory), SMs: n.SMs, Count: n.Count})
	}

	if total == 0 || total > maxCount {
		return nil, newError("demand", "asks for %d instances; expected 1 to %d", total, maxCount)
	}

	return list, nil
}
