package spec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// BuiltIn returns the layouts that every node knows, for the known models, under the names of
// NVIDIA's mig-parted: all-disabled, all-enabled, all-balanced, and a layout for each profile with
// as many instances as fit. all-1g.10gb is one for 1g.10gb, all-1g.10gb.me one for 1g.10gb+me.
func BuiltIn() map[string][]api.LayoutRule {
	layouts := map[string][]api.LayoutRule{
		"all-disabled": {{Devices: api.DeviceList{All: true}}},
		"all-enabled":  {ruleOfAll(map[string]int{})},
	}
	profiles := map[string][]builtIn{}

	var balanced []builtIn

	for _, m := range mig.Models() {
		for i := range m.Profiles {
			p := &m.Profiles[i]
			name := "all-" + strings.ReplaceAll(p.Name, "+", ".")

			if n := maxInstances(m, p); n > 0 {
				profiles[name] = append(profiles[name], builtIn{m.PCIDeviceIDs, map[string]int{p.Name: n}})
			}
		}

		if devices := balancedDevices(m); devices != nil {
			balanced = append(balanced, builtIn{m.PCIDeviceIDs, devices})
		}
	}

	for profile, n := range earlyProfiles() {
		layouts["all-"+profile] = []api.LayoutRule{ruleOfAll(map[string]int{profile: n})}
	}

	for name, list := range profiles {
		if isSame(list) { // one rule without ids then suits also models whose ids are unknown
			layouts[name] = []api.LayoutRule{ruleOfAll(list[0].devices)}
		} else {
			layouts[name] = rulesByModel(list)
		}
	}

	layouts["all-balanced"] = rulesByModel(balanced)

	return layouts
}

// earlyProfiles returns profiles that early drivers offered on a GB200, whose drivers name them
// 3g.93gb, 4g.93gb and 7g.186gb since, with the number of instances that fit. The model table has the
// new names alone: it is the same GPU. Sources: gpu-operator PR 1303, mig-parted config-default.yaml.
func earlyProfiles() map[string]int { return map[string]int{"3g.95gb": 2, "4g.95gb": 1, "7g.189gb": 1} }

// builtIn is what a layout gives the GPUs of one model.
type builtIn struct {
	ids     []uint32       // the model's PCI device ids, without the vendor's
	devices map[string]int // numbers of instances, by profile
}

// text is the same for equal devices.
func (b *builtIn) text() string { return fmt.Sprint(b.devices) }

// isSame reports whether all models get the same devices.
func isSame(list []builtIn) bool {
	return !slices.ContainsFunc(list, func(b builtIn) bool { return b.text() != list[0].text() })
}

// rulesByModel returns a rule for each group of models that get the same devices. It selects the
// models by their PCI device ids, so it leaves out models whose ids are unknown.
func rulesByModel(list []builtIn) []api.LayoutRule {
	var rules []api.LayoutRule
	ruleOf := map[string]int{} // indexes of rules, by the text of their devices

	for i := range list {
		b := &list[i]
		if len(b.ids) == 0 {
			continue
		}

		n, known := ruleOf[b.text()]
		if !known {
			n = len(rules)
			ruleOf[b.text()] = n
			rules = append(rules, ruleOfAll(b.devices))
		}

		for _, id := range b.ids {
			rules[n].DeviceFilter = append(rules[n].DeviceFilter, fmt.Sprintf("0x%04X10DE", id))
		}
	}

	return rules
}

func ruleOfAll(devices map[string]int) api.LayoutRule {
	return api.LayoutRule{
		Devices: api.DeviceList{All: true}, MIGEnabled: true, MIGDevices: devices,
	}
}

// maxInstances returns how many instances of a profile alone fit on an empty GPU of a model, 0 if
// that is not known. If no source has the placements, it is the number that drivers report, which is
// wrong for A30 alone.
func maxInstances(m mig.Model, p *gpu.Profile) int {
	if len(p.Placements) == 0 {
		return p.MaxInstances
	}

	for _, c := range mig.CapacityOf(m.Profiles, nil).Profiles {
		if c.Name == p.Name {
			return c.Max
		}
	}

	return 0
}

// balancedDevices returns the instances of all-balanced, as NVIDIA's default configuration has them
// for every model: two of the smallest profile of one slice, one of the smallest of two slices and,
// where the model has profiles of three, one of the smallest of those.
func balancedDevices(m mig.Model) map[string]int {
	devices := map[string]int{}

	for _, want := range []struct{ slices, count int }{{1, 2}, {2, 1}, {3, 1}} {
		smallest := ""
		bytes := uint64(0)

		for i := range m.Profiles {
			p := &m.Profiles[i]

			n, err := mig.ParseName(p.Name)
			if err == nil && n.Attributes == "" && n.Slices == want.slices &&
				(smallest == "" || p.MemoryBytes < bytes) {
				smallest = p.Name
				bytes = p.MemoryBytes
			}
		}

		if smallest != "" {
			devices[smallest] = want.count
		}
	}

	// We know this rule for GPUs of 7 and of 4 compute slices only.
	if len(devices) < 2 || m.ComputeSlices != 7 && m.ComputeSlices != 4 {
		return nil
	}

	return devices
}
