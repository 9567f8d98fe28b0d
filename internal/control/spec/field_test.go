package spec

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// fieldLayouts are operators' layouts and the models that each one is for, of those whose
// placements are known. A layout is no error of itself on another model, but the plan of it is.
func fieldLayouts() map[string][]string {
	const (
		a30, a40, a80, h80, h94, h141 = "A30-24GB", "A100-40GB", "A100-80GB", "H100-80GB", "H100-94GB", "H200-141GB"
		b180, pro                     = "B200-180GB", "RTX PRO 6000 Blackwell 96GB"
	)

	return map[string][]string{
		"custom-1": {a80, h80}, "all-disabled": {}, "all-enabled": {a30, a40, a80, h80, h94, h141, b180, pro},
		"all-1g.5gb": {a40}, "all-1g.5gb.me": {a40}, "all-2g.10gb": {a40}, "all-3g.20gb": {a40}, "all-4g.20gb": {a40},
		"all-7g.40gb": {a40},
		"all-1g.10gb": {a40, a80, h80}, "all-1g.10gb.me": {a80, h80}, "all-1g.20gb": {a80, h80}, "all-2g.20gb": {a80, h80},
		"all-3g.40gb": {a80, h80}, "all-4g.40gb": {a80, h80}, "all-7g.80gb": {a80, h80},
		"all-1g.6gb": {a30}, "all-1g.6gb.me": {a30}, "all-2g.12gb": {a30}, "all-2g.12gb.me": {a30}, "all-4g.24gb": {a30},
		"all-1g.12gb": {h94}, "all-1g.12gb.me": {h94}, "all-1g.24gb": {h94, pro}, "all-2g.24gb": {h94},
		"all-3g.47gb": {h94}, "all-4g.47gb": {h94}, "all-7g.94gb": {h94},
		"all-3g.48gb": {}, "all-4g.48gb": {}, "all-7g.96gb": {}, // of GPUs whose placements no source gives
		"all-balanced": {a30, a40, a80, h80, h94},
	}
}

func nodeOf(m mig.Model) []mig.GPULayout {
	var gpus []mig.GPULayout
	for i := range 2 {
		gpus = append(gpus, mig.GPULayout{
			Facts:     gpu.Facts{UUID: gpu.UUID(fmt.Sprintf("GPU-%d", i)), Index: i, Name: m.Name, Profiles: m.Profiles},
			PCIDevice: m.PCIDeviceIDs[0]<<16 | 0x10DE, MIG: gpu.Some(true), Pending: gpu.Some(true),
		})
	}

	return gpus
}

// TestFieldLayouts: the whole file is taken, and each layout planned on every model.
func TestFieldLayouts(t *testing.T) {
	layouts, err := LoadLayouts("../../../testdata/mig-configs/field.yaml")
	if err != nil {
		t.Fatal(err)
	}

	expected := fieldLayouts()
	for name, layout := range layouts {
		models, ok := expected[name]
		if !ok {
			t.Errorf("%s is in the file, and not in the table", name)
		}

		rules, err := Rules(layout)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}

		for _, m := range mig.Models() {
			if !m.PlacementsKnown() {
				continue
			}

			plan, err := mig.PlanNode(t.Context(), nodeOf(m), mig.Spec{Rules: rules})
			if slices.Contains(models, m.Name) {
				if err != nil || (len(plan.Steps) == 0) != (name == "all-enabled") || len(plan.GPUs) == 0 {
					t.Errorf("%s on %s: %v, %d GPUs in %d steps; want some GPUs, and steps: %v", name, m.Name, err,
						len(plan.GPUs), len(plan.Steps), name != "all-enabled")
				}

				continue
			}

			if !explains(name, m, err) {
				t.Errorf("%s on %s: %v", name, m.Name, err)
			}
		}
	}

	if len(layouts) != len(expected) {
		t.Errorf("%d layouts, want %d", len(layouts), len(expected))
	}
}

// explains reports whether an error says what is wrong: the profiles that there are, the mode, or
// the GPUs.
func explains(name string, m mig.Model, err error) bool {
	var profile *mig.ProfileError
	var selector *mig.SelectorError
	var mode *mig.ModeError

	switch {
	case name == "all-disabled":
		return errors.As(err, &mode) && mode.Current.Or(false) && !mode.Wanted
	case errors.As(err, &selector): // no rule has a filter that matches these GPUs
		return selector.Selector == "" && len(selector.Has) == 2
	case errors.As(err, &profile):
		return len(profile.Offers) == len(m.Profiles) && profile.Model == m.Name &&
			strings.Contains(err.Error(), profile.Offers[0])
	}

	return false
}
