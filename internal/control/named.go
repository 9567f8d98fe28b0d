package control

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/spec"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// namedLayouts are the layouts that a spec can name, by name.
type namedLayouts struct {
	rules func() map[string][]api.LayoutRule // all of them: the built-in ones and the operator's
	own   map[string][]api.LayoutRule        // the operator's
}

// SetLayouts replaces the operator's layouts for the plans that follow. A layout with the name of a
// built-in one replaces it. The caller must not modify layouts afterwards.
func (e *Engine) SetLayouts(layouts map[string][]api.LayoutRule) {
	// The built-in ones are of all models, and most specs name none.
	rules := sync.OnceValue(func() map[string][]api.LayoutRule {
		all := spec.BuiltIn()
		maps.Copy(all, layouts)

		return all
	})
	e.named.Store(&namedLayouts{rules: rules, own: layouts})
}

// Layouts lists the node's named layouts by name, with the GPUs that each applies to. It leaves out
// built-in layouts, and rules of them, that are for no GPU of this node: there are many for models
// that the node does not have.
func (e *Engine) Layouts(ctx context.Context) (*api.NamedLayouts, error) {
	list := &api.NamedLayouts{APIVersion: api.Version, Layouts: []api.NamedLayout{}}

	gpus, _, err := e.readNode(ctx, needsNoOther)
	if err != nil {
		return nil, driverProblem(err)
	}

	named := e.named.Load()
	rules := named.rules()

	for _, name := range slices.Sorted(maps.Keys(rules)) {
		l := api.NamedLayout{Name: name, Rules: rules[name], Applies: []gpu.UUID{}}

		suitable := gpus

		if _, own := named.own[name]; !own {
			l.BuiltIn = true
			l.Rules, suitable = rulesFor(gpus, l.Rules)

			if len(suitable) == 0 {
				continue
			}
		}

		if rules, err := spec.Rules(l.Rules); err == nil {
			l.Applies = gpusOfRules(suitable, mig.Spec{Rules: rules})
		}

		list.Layouts = append(list.Layouts, l)
	}

	return list, nil
}

// rulesFor returns the rules of a built-in layout that suit some of the GPUs, and those GPUs. A GPU
// must have MIG and offer the rule's profiles.
func rulesFor(
	gpus []mig.GPULayout,
	rules []api.LayoutRule,
) (kept []api.LayoutRule, suitable []mig.GPULayout) {
	for _, r := range rules {
		resolved, err := spec.Rules([]api.LayoutRule{r})
		if err != nil {
			continue // TestBuiltInLayoutsCanBePlanned plans each
		}

		fits := func(g mig.GPULayout) bool {
			return g.MIG.Present() && ruleMatches(resolved[0], g) && offersAll(g.Profiles, r.MIGDevices)
		}

		for _, g := range gpus {
			if fits(g) {
				suitable = append(suitable, g)
			}
		}

		if slices.ContainsFunc(gpus, fits) {
			kept = append(kept, r)
		}
	}

	return kept, suitable
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
