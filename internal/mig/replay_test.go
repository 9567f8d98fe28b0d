package mig

import (
	"slices"
	"testing"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
)

// replayed is a GPU as a driver sees it: what exists, and nothing about plans.
type replayed struct {
	t         *testing.T
	g         *naiveGPU
	instances []*replayedInstance
}

type replayedInstance struct {
	naiveInstance
	computeInstances []naiveCompute
	busy             bool
}

// replay does a plan's steps one after the other. Each must be one that a driver would do, nothing
// busy may go, and in the end there must be what the plan said, at the cost that is returned.
func replay(t *testing.T, g *naiveGPU, node GPULayout, existing []naiveExisting, plan NodePlan,
	planned *PlannedGPU) naiveCost {
	t.Helper()

	r := &replayed{t: t, g: g}
	for _, s := range existing {
		r.instances = append(r.instances, &replayedInstance{s.naiveInstance, slices.Clone(s.computeInstances), s.busy})
	}

	var cost naiveCost
	order := []StepOp{DestroyCompute, DestroyInstance, CreateInstance, CreateCompute}
	phase := 0

	for _, s := range plan.Steps {
		if s.GPU != node.UUID {
			continue
		}

		cost[2] = 1

		if at := slices.Index(order, s.Op); at < phase {
			t.Fatalf("%s after %s", s.Op, order[phase])
		} else {
			phase = at
		}

		switch s.Op {
		case DestroyCompute:
			cost[1]++
			r.destroyCompute(node, s)
		case DestroyInstance:
			cost[0]++
			r.destroyInstance(node, s)
		case CreateInstance:
			r.create(s)
		case CreateCompute:
			r.createCompute(s)
		}
	}

	var layout []naiveInstance
	for _, i := range r.instances {
		layout = append(layout, i.naiveInstance)
	}

	cost[3] = -g.naiveLeft(layout)
	if planned != nil {
		r.compare(node, planned)
	} else if cost[2] == 1 {
		t.Fatalf("GPU %d has steps and is not among those planned", node.Index)
	}

	return cost
}

func (r *replayed) find(profile string, id uint32, at gpu.Placement) int {
	return slices.IndexFunc(r.instances, func(i *replayedInstance) bool {
		p := r.g.profiles[i.profile]
		return p.Name == profile && p.ID == id && p.Placements[i.placement] == at
	})
}

func (r *replayed) destroyCompute(node GPULayout, s Step) {
	r.t.Helper()

	k := r.find(s.Profile, s.ProfileID, s.Placement)
	if k < 0 {
		r.t.Fatalf("%+v: no such instance", s)
	}

	i := r.instances[k]
	place, _ := s.Compute.Get()
	of := node.Instances[slices.IndexFunc(node.Instances, func(n Instance) bool { return n.Placement == s.Placement })]
	which := slices.IndexFunc(of.ComputeInstances, func(c ComputeInstance) bool { return c.UUID == s.UUID })

	c := slices.IndexFunc(i.computeInstances, func(c naiveCompute) bool {
		return c.size == place.Size && (c.start == place.Start || c.unreported && place.Start == -1)
	})
	if c < 0 || which < 0 {
		r.t.Fatalf("%+v: no such compute instance in %+v", s, i)
	}

	if s.Instance != gpu.Some(of.ID) || s.ComputeID != gpu.Some(of.ComputeInstances[which].ID) {
		r.t.Fatalf("%+v: ids, want those of %+v", s, of)
	}

	if place.Start >= 0 && of.ComputeInstances[which].Placement.Or(place) != place {
		r.t.Fatalf("%+v names one that exists at %v", s, of.ComputeInstances[which].Placement)
	}

	if i.busy {
		r.t.Fatalf("%+v: the GPU instance is busy", s)
	}

	if i.computeInstances[c].busy || of.ComputeInstances[which].Busy {
		r.t.Fatalf("%+v: the compute instance is busy", s)
	}

	i.computeInstances = slices.Delete(i.computeInstances, c, c+1)
}

func (r *replayed) destroyInstance(node GPULayout, s Step) {
	r.t.Helper()

	k := r.find(s.Profile, s.ProfileID, s.Placement)
	if k < 0 {
		r.t.Fatalf("%+v: no such instance", s)
	}

	if i := r.instances[k]; len(i.computeInstances) > 0 || i.busy {
		r.t.Fatalf("%+v: %+v is busy or has compute instances", s, i)
	}

	of := slices.IndexFunc(node.Instances, func(n Instance) bool { return n.Placement == s.Placement })
	if s.Instance != gpu.Some(node.Instances[of].ID) || s.Compute.Present() {
		r.t.Fatalf("%+v is of another", s)
	}

	r.instances = slices.Delete(r.instances, k, k+1)
}

func (r *replayed) create(s Step) {
	r.t.Helper()

	var layout []naiveInstance
	for _, i := range r.instances {
		layout = append(layout, i.naiveInstance)
	}

	for i, p := range r.g.profiles {
		if j := slices.Index(p.Placements, s.Placement); p.Name == s.Profile && p.ID == s.ProfileID && j >= 0 {
			x := naiveInstance{i, j}
			if !r.g.canAdd(layout, x) {
				r.t.Fatalf("%+v does not fit beside %v", s, layout)
			}

			if s.Instance.Present() || s.Compute.Present() {
				r.t.Fatalf("%+v: the creation of a GPU instance names an existing one, or a compute instance", s)
			}

			r.instances = append(r.instances, &replayedInstance{naiveInstance: x})

			return
		}
	}

	r.t.Fatalf("%+v: no such place", s)
}

func (r *replayed) createCompute(s Step) {
	r.t.Helper()
	k := r.find(s.Profile, s.ProfileID, s.Placement)

	place, ok := s.Compute.Get()
	if k < 0 || !ok {
		r.t.Fatalf("%+v: no GPU instance for it in %v, or no placement", s, r.instances)
	}

	if s.UUID != "" || s.ComputeID.Present() {
		r.t.Fatalf("%+v: the creation of a compute instance names an existing one", s)
	}

	i := r.instances[k]
	if place.Start < 0 || place.Start+place.Size > r.g.profiles[i.profile].ComputeSlices {
		r.t.Fatalf("%+v: no such place", s)
	}

	for _, c := range i.computeInstances {
		if c.unreported && c.size != r.g.profiles[i.profile].ComputeSlices {
			r.t.Fatalf("%+v beside one whose placement is unknown", s)
		}

		if c.start < place.End() && place.Start < c.start+c.size {
			r.t.Fatalf("%+v overlaps %+v", s, c)
		}
	}

	i.computeInstances = append(i.computeInstances, naiveCompute{start: place.Start, size: place.Size})
}

// compare compares the layout in the end with the plan's.
func (r *replayed) compare(node GPULayout, planned *PlannedGPU) {
	r.t.Helper()

	if len(planned.After) != len(r.instances) {
		r.t.Fatalf("%+v; in the end there are %d", planned, len(r.instances))
	}

	for n, a := range planned.After {
		if n > 0 && planned.After[n-1].Placement.Start >= a.Placement.Start {
			r.t.Fatalf("%+v is not in order", planned.After)
		}

		k := r.find(a.Profile, a.ProfileID, a.Placement)
		if k < 0 || len(r.instances[k].computeInstances) != len(a.ComputeInstances) {
			r.t.Fatalf("%+v is not what exists in the end", a)
		}

		if a.New == slices.ContainsFunc(node.Instances,
			func(i Instance) bool { return i.ID == a.ID && i.Placed == a.Placed }) {
			r.t.Fatalf("%+v: new, or not one of %+v", a, node.Instances)
		}

		left := slices.Clone(r.instances[k].computeInstances)
		for _, c := range a.ComputeInstances {
			at := slices.IndexFunc(left, func(x naiveCompute) bool {
				place, known := c.Placement.Get()
				return x.size == c.Slices && (known && place == gpu.Placement{Start: x.start, Size: x.size} || x.unreported && !known)
			})
			if at < 0 {
				r.t.Fatalf("%+v: %+v is not what exists in the end", a, c)
			}

			left = slices.Delete(left, at, at+1)
		}
	}
}
