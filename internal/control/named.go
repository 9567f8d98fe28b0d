package control

import (
	"context"
	"maps"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/spec"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// namedLayouts are the layouts that a spec can name: the built-in ones and the operator's own.
type namedLayouts struct {
	rules map[string][]api.LayoutRule
	own   map[string][]api.LayoutRule // the operator's
}

// SetLayouts replaces the operator's layouts for the plans that follow. One with the name of a
// built-in layout is used instead of it. The caller does not modify them afterwards.
func (e *Engine) SetLayouts(layouts map[string][]api.LayoutRule) {
	rules := spec.BuiltIn()
	maps.Copy(rules, layouts)
	e.named.Store(&namedLayouts{rules: rules, own: layouts})
}

// Layouts lists the node's named layouts by name, with the GPUs that each applies to. Of the
// built-in ones it lists those, and of their rules those, that are for GPUs of this node: there are
// many for models that it does not have.
func (e *Engine) Layouts(ctx context.Context) (*api.NamedLayouts, error) {
	list := &api.NamedLayouts{APIVersion: api.Version, Layouts: []api.NamedLayout{}}

	gpus, _, err := e.readNode(ctx, needsNoOther)
	if err != nil {
		return nil, driverProblem(err)
	}

	named := e.named.Load()
	for _, name := range slices.Sorted(maps.Keys(named.rules)) {
		l := api.NamedLayout{Name: name, Rules: named.rules[name], Applies: []gpu.UUID{}}

		able := gpus

		if _, own := named.own[name]; !own {
			l.BuiltIn = true
			l.Rules, able = rulesFor(gpus, l.Rules)

			if len(able) == 0 {
				continue
			}
		}

		if rules, err := spec.Rules(l.Rules); err == nil {
			l.Applies = gpusOfRules(able, mig.Spec{Rules: rules})
		}

		list.Layouts = append(list.Layouts, l)
	}

	return list, nil
}

// rulesFor returns the rules of a built-in layout that are for some of the GPUs, and those GPUs:
// they have MIG, and offer the profiles.
func rulesFor(gpus []mig.GPULayout, rules []api.LayoutRule) (kept []api.LayoutRule, able []mig.GPULayout) {
	for _, r := range rules {
		resolved, err := spec.Rules([]api.LayoutRule{r})
		if err != nil {
			continue // a test plans all of them
		}

		fits := func(g mig.GPULayout) bool {
			return g.MIG.Present() && ruleMatches(resolved[0], g) && offersAll(g.Profiles, r.MIGDevices)
		}

		for _, g := range gpus {
			if fits(g) {
				able = append(able, g)
			}
		}

		if slices.ContainsFunc(gpus, fits) {
			kept = append(kept, r)
		}
	}

	return kept, able
}

// offersAll reports whether profiles include all that devices name.
func offersAll(profiles []gpu.Profile, devices map[string]int) bool {
	for name := range devices {
		if !slices.ContainsFunc(profiles, func(p gpu.Profile) bool { return p.Name == name }) {
			return false
		}
	}

	return true
}
