// Package spec reads from YAML or JSON which instances a node shall have, and turns that into the
// planner's types.
package spec

import (
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/strictyaml"
)

// Bounds of documents. No node needs as much; they keep a hostile or mistaken document from costing
// much.
const (
	maxSpec    = 256 << 10 // bytes of a spec
	maxFile    = 4 << 20   // bytes of a file of layouts
	maxRules   = 256       // of a layout
	maxList    = 256       // GPUs, device filters
	maxKinds   = 64        // profiles of one rule, needs of a demand
	maxCount   = 64        // instances of a profile, of a need
	maxCompute = 16        // compute instances of a GPU instance
	maxSlices  = 16        // compute slices of a GPU
	maxText    = 253       // bytes of a name or a selector
	maxIndex   = 1 << 30   // of a GPU
)

// check returns an error if a spec is wrong, as far as that can be said without the node.
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

// checkForm returns an error unless a spec has exactly one of the three forms of api.Spec, with all
// its keys.
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
		return newError("layout", "is %.60q; expected the name of a layout", s.Layout)
	case len(forms) == 0:
		return newError("", "nothing is asked for; %s", expected)
	case len(forms) > 1:
		return newError("", "%s at once; %s", strings.Join(forms, " and "), expected)
	case s.MIGConfigs != nil || s.Version != "":
		return checkDocument(s)
	case s.GPUs != nil || s.Devices != nil:
		return checkCounts(s)
	case s.Demand != nil && len(s.Demand) == 0:
		return newError("demand", "is empty; expected a list of needs")
	}

	return nil
}

// checkDocument checks mig-parted's form.
func checkDocument(s api.Spec) *strictyaml.Error {
	switch {
	case s.Version == "":
		return newError("version", "is missing; expected %s", version)
	case s.Version != version:
		return newError("version", "is %q; expected %s", s.Version, version)
	case len(s.MIGConfigs) == 0:
		return newError("mig-configs", "is empty; expected layouts by name")
	case s.Layout == "" && len(s.MIGConfigs) > 1:
		return newError(
			"layout",
			"is missing; expected which of the mig-configs: %s",
			joinNames(s.MIGConfigs),
		)
	}

	return nil
}

// checkCounts checks the form with GPUs and devices.
func checkCounts(s api.Spec) *strictyaml.Error {
	switch {
	case len(s.GPUs) == 0:
		return newError(
			"gpus", `is empty; expected indexes, UUIDs or PCI bus ids of GPUs, or ["all"]`)
	case s.Devices == nil:
		return newError("devices", "is missing; expected counts by profile, {} for no instances")
	}

	return nil
}
