package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/spec"
)

// Nodes finds nodes.
type Nodes interface {
	// Select returns the names of the nodes with the labels.
	Select(ctx context.Context, selector string) ([]string, error)
	// Exists reports whether there is a node of this name.
	Exists(ctx context.Context, name string) (bool, error)
}

// SelectNodes returns the nodes of a fleet, by name, and their layouts. It is an error if two
// entries have different layouts for a node, or if an entry selects none. The error joins all that
// is wrong.
func SelectNodes(ctx context.Context, nodes Nodes, f *spec.Fleet) ([]Target, []api.Spec, error) {
	var targets []Target
	var wrong []error

	specs := make([]api.Spec, len(f.Entries))
	byNode := map[string]int{}

	for i := range f.Entries {
		e := &f.Entries[i]
		specs[i] = e.Spec

		names, err := namesOf(ctx, nodes, e)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", e.Describe(i), err))
			continue
		}

		for _, name := range names {
			first, twice := byNode[name]
			if twice && !f.Entries[first].SameLayout(e) {
				wrong = append(wrong, fmt.Errorf("node %s is selected by %s and by %s, which have different "+
					"layouts", name, f.Entries[first].Describe(first), e.Describe(i)))
			}

			if !twice {
				byNode[name] = i
				targets = append(targets, Target{Node: name, Spec: i})
			}
		}
	}

	slices.SortFunc(targets, func(a, b Target) int { return strings.Compare(a.Node, b.Node) })

	return targets, specs, errors.Join(wrong...)
}

// namesOf returns the nodes of an entry.
func namesOf(ctx context.Context, nodes Nodes, e *spec.FleetEntry) ([]string, error) {
	if e.Node != "" {
		exists, err := nodes.Exists(ctx, e.Node)
		if err == nil && !exists {
			err = errors.New("there is no such node")
		}

		return []string{e.Node}, err
	}

	names, err := nodes.Select(ctx, e.Selector)
	if err == nil && len(names) == 0 {
		err = errors.New("no node has these labels")
	}

	return names, err
}

// Preview is what a run would do with one node.
type Preview struct {
	Node string    `json:"node"`
	Plan *api.Plan `json:"plan,omitempty"` // without steps: the node has the layout already
	// Evicts are the pods that would have to leave before a plan can be made.
	Evicts []Pod `json:"evicts,omitempty"`
	// Blocking are the instances in the way that pods hold, or others.
	Blocking []api.Blocker `json:"blocking,omitempty"`
	// Refused is why the node cannot have the layout.
	Refused string `json:"refused,omitempty"`
}

// PreviewRun asks the exporters what a run would do, some at a time.
func PreviewRun(
	ctx context.Context, exporter Exporter, targets []Target, specs []api.Spec, o Options, parallel int,
) []Preview {
	list := make([]Preview, len(targets))
	places := make(chan struct{}, max(parallel, 1))

	var group sync.WaitGroup

	for i, t := range targets {
		places <- struct{}{}

		group.Go(func() {
			defer func() { <-places }()

			request := api.PlanRequest{Spec: specs[t.Spec], TakeOver: o.TakeOver}
			plan, err := exporter.Plan(ctx, t.Node, request)
			list[i] = newPreview(t.Node, plan, err, o.Eviction != nil)
		})
	}

	group.Wait()

	return list
}

func newPreview(node string, plan *api.Plan, err error, evict bool) Preview {
	v := Preview{Node: node}

	p := busy(err)

	switch {
	case err == nil:
		v.Plan = plan
	case p == nil:
		v.Refused = err.Error()
	default:
		b := sortBlockers(p.Blocking)
		v.Blocking = p.Blocking
		v.Evicts = b.pods

		if obstacle := b.obstacle(); obstacle != nil {
			v.Refused = obstacle.Error()
		} else if !evict {
			v.Refused = b.refusal().Error()
		}
	}

	return v
}
