package spec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// BuiltIn returns the layouts that every node knows, under the names that NVIDIA's mig-parted has
// for them: all-disabled, all-enabled, all-balanced, and for each profile as many instances of it
// as fit, "all-1g.10gb" or, with an attribute, "all-1g.10gb.me". They are those of the known
// models.
func BuiltIn() map[string][]api.LayoutRule {
	layouts := map[string][]api.LayoutRule{
		"all-disabled": {{Devices: api.DeviceList{All: true}}},
		"all-enabled":  {ruleOfAll(nil, map[string]int{})},
	}
	profiles := map[string][]builtIn{}

	var balanced []builtIn

	for _, m := range mig.Models() {
		for i := range m.Profiles {
			p := &m.Profiles[i]
			name := "all-" + strings.ReplaceAll(p.Name, "+", ".")

			if n := mostOf(m, p); n > 0 {
				profiles[name] = append(profiles[name], builtIn{m.PCIDeviceIDs, map[string]int{p.Name: n}})
			}
		}

		if devices := balancedDevices(m); devices != nil {
			balanced = append(balanced, builtIn{m.PCIDeviceIDs, devices})
		}
	}

	for name, list := range profiles {
		layouts[name] = rulesOf(list, isSame(list))
	}

	layouts["all-balanced"] = rulesOf(balanced, false)

	return layouts
}

// builtIn is what a layout gives the GPUs of one model.
type builtIn struct {
	ids     []uint32
	devices map[string]int
}

func (b *builtIn) text() string { return fmt.Sprint(b.devices) }

// isSame reports whether all models get the same.
func isSame(list []builtIn) bool {
	return !slices.ContainsFunc(list, func(b builtIn) bool { return b.text() != list[0].text() })
}

// rulesOf returns one rule for all GPUs or, if the models differ, one for the PCI devices of all
// models that get the same. Models whose PCI device ids are unknown have none then.
func rulesOf(list []builtIn, same bool) []api.LayoutRule {
	if same {
		return []api.LayoutRule{ruleOfAll(nil, list[0].devices)}
	}

	var rules []api.LayoutRule

	at := map[string]int{} // indexes of rules, by what they give

	for i := range list {
		b := &list[i]
		if len(b.ids) == 0 {
			continue
		}

		n, known := at[b.text()]
		if !known {
			n = len(rules)
			at[b.text()] = n
			rules = append(rules, ruleOfAll(nil, b.devices))
		}

		for _, id := range b.ids {
			rules[n].DeviceFilter = append(rules[n].DeviceFilter, fmt.Sprintf("0x%04X10DE", id))
		}
	}

	return rules
}

func ruleOfAll(filter api.Strings, devices map[string]int) api.LayoutRule {
	return api.LayoutRule{
		Devices: api.DeviceList{All: true}, DeviceFilter: filter, MIGEnabled: true, MIGDevices: devices,
	}
}

// mostOf returns how many instances of a profile alone fit on an empty GPU of a model, 0 if that is
// not known. Where no source has the placements, it is the number that drivers report, which they
// do wrongly for A30 alone.
func mostOf(m mig.Model, p *gpu.Profile) int {
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
// for every model: two of the smallest profile, one of two slices and, on GPUs of seven slices, one
// of three.
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

	if len(devices) < 2 || m.ComputeSlices != 7 && m.ComputeSlices != 4 {
		return nil
	}

	return devices
}
