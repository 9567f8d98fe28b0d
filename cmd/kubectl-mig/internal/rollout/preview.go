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

// SelectNodes returns the nodes of a fleet, by name, and the layouts. If two entries have different
// layouts for a node, or an entry selects no node, it returns an error, which joins all such errors.
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

// Evictions knows which pods may be evicted.
type Evictions interface {
	// CheckEviction returns the error of the eviction of those of the pods that are on the node, if one
	// of them has to stay.
	CheckEviction(ctx context.Context, node string, pods []Pod, options Eviction) error
}

// Preview is what a run would do with one node.
type Preview struct {
	Node string    `json:"node"`
	Plan *api.Plan `json:"plan,omitempty"` // without steps: the node has the layout already
	// Evicts are the pods that the run would evict first. Plan is absent then.
	Evicts []Pod `json:"evicts,omitempty"`
	// Blocking are the busy instances in the way.
	Blocking []api.Blocker `json:"blocking,omitempty"`
	// Refused is why the node cannot have the layout; empty if it can.
	Refused string `json:"refused,omitempty"`
	// InTheWay names them, by the GPUs' indexes, for people.
	InTheWay []string `json:"-"`
	// Err is that reason if the exporter or the API server has given it, or has not answered.
	Err error `json:"-"`
}

// Previewer finds out what a run would do.
type Previewer struct {
	Exporter  Exporter
	Evictions Evictions
	Options   Options
	Parallel  int // how many exporters are asked at a time
}

// Preview asks the exporters of the nodes what a run would do.
func (p *Previewer) Preview(ctx context.Context, targets []Target, specs []api.Spec) []Preview {
	list := make([]Preview, len(targets))
	slots := make(chan struct{}, max(p.Parallel, 1))

	var group sync.WaitGroup

	for i, t := range targets {
		slots <- struct{}{}

		group.Go(func() {
			defer func() { <-slots }()

			list[i] = p.previewNode(ctx, t.Node, specs[t.Spec])
		})
	}

	group.Wait()

	return list
}

func (p *Previewer) previewNode(ctx context.Context, node string, spec api.Spec) Preview {
	v := Preview{Node: node}
	request := api.PlanRequest{Spec: spec, TakeOver: p.Options.TakeOver}

	plan, err := p.Exporter.Plan(ctx, node, request)
	if err == nil {
		v.Plan = plan
		return v
	}

	problem := asBusy(err)
	if problem == nil {
		v.Err = err
		v.refuse(err)

		return v
	}

	b := sortHolders(problem.Blocking)
	indexes := indexesOf(ctx, p.Exporter, node)
	v.Blocking = problem.Blocking
	v.Evicts = b.pods

	for i := range v.Blocking {
		v.InTheWay = append(v.InTheWay, indexes.name(&v.Blocking[i]))
	}

	v.InTheWay = slices.Compact(v.InTheWay) // compute instances have the name of their GPU instance

	obstacle := b.obstacle(indexes)
	eviction := p.Options.Eviction

	switch {
	case obstacle != nil:
		v.refuse(obstacle)
	case eviction == nil:
		v.refuse(b.refusal())
	default:
		v.Err = p.Evictions.CheckEviction(ctx, node, b.pods, *eviction)
		v.refuse(v.Err)
	}

	return v
}

// refuse notes why the node cannot have the layout, if there is an error.
func (v *Preview) refuse(err error) {
	if err != nil {
		v.Refused = err.Error()
	}
}
