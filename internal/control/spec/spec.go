// Package spec reads what is wanted of a node, from YAML or JSON, and says it in the planner's
// terms.
package spec

import (
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// The bounds of what is read. No node comes near them; they keep a hostile or mistaken document
// from costing much.
const (
	maxSpec    = 256 << 10 // bytes
	maxFile    = 4 << 20   // bytes of a file of layouts
	maxRules   = 256       // of a layout
	maxList    = 256       // GPUs, device filters
	maxKinds   = 64        // profiles of one rule, needs of a demand
	maxCount   = 64        // instances of a profile, of a need
	maxCompute = 16        // compute instances of a GPU instance
	// of compute instances that are counted together, and of a GPU instance that they are in: no
	// GPU has more
	maxSlices = 16
	maxText   = 253
	maxIndex  = 1 << 30 // of a GPU
)

// check reports whether a spec is right in all that does not depend on the node.
func check(s api.Spec) *strictyaml.Error {
	err := checkForm(s)
	switch {
	case err != nil:
	case s.Demand != nil:
		_, err = resolveDemand(s.Demand)
	case s.Devices != nil:
		_, err = resolveCounts(s)
	default:
		err = checkLayouts(s.MIGConfigs)
	}

	return err
}

// checkForm reports whether a spec is in exactly one of its forms, and whole.
func checkForm(s api.Spec) *strictyaml.Error {
	var forms []string
	if s.Layout != "" || s.Version != "" || s.MIGConfigs != nil {
		forms = append(forms, "a layout")
	}

	if s.GPUs != nil || s.Devices != nil {
		forms = append(forms, "gpus with devices")
	}

	if s.Demand != nil {
		forms = append(forms, "a demand")
	}

	const expected = "expected exactly one of layout (or version and mig-configs), gpus with devices, and demand"

	switch {
	case len(s.Layout) > maxText:
		return wrong("layout", "is %.60q; expected the name of a layout", s.Layout)
	case len(forms) == 0:
		return wrong("", "nothing is asked for; %s", expected)
	case len(forms) > 1:
		return wrong("", "%s at once; %s", strings.Join(forms, " and "), expected)
	case s.MIGConfigs != nil || s.Version != "":
		return checkDocument(s)
	case s.GPUs != nil || s.Devices != nil:
		return checkCounts(s)
	case s.Demand != nil && len(s.Demand) == 0:
		return wrong("demand", "is empty; expected a list of needs")
	}

	return nil
}

// checkDocument is for mig-parted's form.
func checkDocument(s api.Spec) *strictyaml.Error {
	switch {
	case s.Version == "":
		return wrong("version", "is missing; expected %s", version)
	case s.Version != version:
		return wrong("version", "is %q; expected %s", s.Version, version)
	case len(s.MIGConfigs) == 0:
		return wrong("mig-configs", "is empty; expected layouts by name")
	case s.Layout == "" && len(s.MIGConfigs) > 1:
		return wrong(
			"layout",
			"is missing; expected which of the mig-configs: %s",
			known(s.MIGConfigs),
		)
	}

	return nil
}

func checkCounts(s api.Spec) *strictyaml.Error {
	switch {
	case len(s.GPUs) == 0:
		return wrong("gpus", `is empty; expected indexes, UUIDs or PCI bus ids of GPUs, or ["all"]`)
	case s.Devices == nil:
		return wrong("devices", "is missing; expected counts by profile, {} for no instances")
	}

	return nil
}
