package control

import (
	"cmp"
	"errors"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// layout is what a GPU is partitioned into. Wanted instances have no ids. All compute instances have a placement.
type layout struct {
	GPU       gpu.UUID           `json:"gpu"`
	Instances []mig.NodeInstance `json:"instances"`
}

// place names an instance by where it stands.
type place struct {
	gpu     gpu.UUID
	profile uint32
	at      gpu.Placement
	compute gpu.Opt[gpu.Placement] // absent: the GPU instance
}

func placeOf(s mig.Step) place {
	return place{gpu: s.GPU, profile: s.ProfileID, at: s.Placement, compute: s.Compute}
}

// copyInstances copies what stands, without what was found out about its holders.
func copyInstances(list []mig.NodeInstance) []mig.NodeInstance {
	copied := slices.Clone(list)
	for n := range copied {
		copied[n].Busy = false
		copied[n].ComputeInstances = slices.Clone(copied[n].ComputeInstances)
		for k := range copied[n].ComputeInstances {
			copied[n].ComputeInstances[k].Busy = false
		}
	}
	return copied
}

// instancesAfter are the instances that a plan leads to.
func instancesAfter(after []mig.PlannedInstance) []mig.NodeInstance {
	var list []mig.NodeInstance
	for _, i := range after {
		n := mig.NodeInstance{Placed: i.Placed}
		for _, c := range i.ComputeInstances {
			n.ComputeInstances = append(n.ComputeInstances, mig.NodeCompute{Slices: c.Placement.Size, Placement: gpu.Some(c.Placement)})
		}
		list = append(list, n)
	}
	return list
}

// samePlace reports whether two GPU instances have the same profile and place.
func samePlace(a, b mig.NodeInstance) bool {
	return a.ProfileID == b.ProfileID && a.Placement == b.Placement
}

// stepsBetween leads from the instances of a GPU to those wanted: first what goes, then what comes.
func stepsBetween(id gpu.UUID, live, wanted []mig.NodeInstance) []mig.Step {
	var goes, comes []mig.Step
	for _, i := range live {
		at := slices.IndexFunc(wanted, func(w mig.NodeInstance) bool { return samePlace(w, i) })
		var computes []gpu.Placement
		if at >= 0 {
			computes = mig.ComputePlacements(wanted[at])
		}
		places := mig.ComputePlacements(i)
		for n, p := range places {
			if !slices.Contains(computes, p) {
				goes = append(goes, destroyCompute(id, i, n, p))
			}
		}
		if at < 0 {
			goes = append(goes, mig.Step{Op: mig.DestroyInstance, GPU: id, ProfileID: i.ProfileID, Profile: i.Profile,
				Placement: i.Placement, Instance: gpu.Some(i.ID)})
			continue
		}
		comes = append(comes, createComputes(id, wanted[at], places)...)
	}
	for _, w := range wanted {
		if !slices.ContainsFunc(live, func(i mig.NodeInstance) bool { return samePlace(i, w) }) {
			comes = append(comes, mig.Step{Op: mig.CreateInstance, GPU: id, ProfileID: w.ProfileID, Profile: w.Profile, Placement: w.Placement})
			comes = append(comes, createComputes(id, w, nil)...)
		}
	}
	return append(goes, comes...)
}

func destroyCompute(id gpu.UUID, i mig.NodeInstance, n int, at gpu.Placement) mig.Step {
	return mig.Step{Op: mig.DestroyCompute, GPU: id, ProfileID: i.ProfileID, Profile: i.Profile, Placement: i.Placement,
		Compute: gpu.Some(at), UUID: i.ComputeInstances[n].UUID, Instance: gpu.Some(i.ID), ComputeID: gpu.Some(i.ComputeInstances[n].ID)}
}

func createComputes(id gpu.UUID, w mig.NodeInstance, standing []gpu.Placement) []mig.Step {
	var steps []mig.Step
	for _, at := range mig.ComputePlacements(w) {
		if !slices.Contains(standing, at) {
			steps = append(steps, mig.Step{Op: mig.CreateCompute, GPU: id, ProfileID: w.ProfileID, Profile: w.Profile,
				Placement: w.Placement, Compute: gpu.Some(at)})
		}
	}
	return steps
}

// errOtherStep says that a tree is not the one after a step.
var errOtherStep = errors.New("the instances are not those after the step")

// afterStep returns the instances after a step was done on those before: what was read, with the MIG UUIDs that were known
// before. The error says that what was read is not what the step leads to, and nothing else has changed.
func afterStep(before []mig.NodeInstance, s mig.Step, read []mig.NodeInstance) ([]mig.NodeInstance, error) {
	// What the step adds is taken away again, from a copy of what was read; what it takes away, from one of what was before.
	added, removed := copyInstances(read), copyInstances(before)
	list := &removed
	if isCreation(s) {
		list = &added
	}
	if !removeOne(list, s) || !mig.SameInstances(added, removed) {
		return nil, errOtherStep
	}
	after := copyInstances(read)
	for n := range after {
		at := slices.IndexFunc(before, func(i mig.NodeInstance) bool { return i.ID == after[n].ID && samePlace(i, after[n]) })
		if at >= 0 {
			keepUUIDs(after[n].ComputeInstances, before[at].ComputeInstances)
		}
	}
	return after, nil
}

func keepUUIDs(now, before []mig.NodeCompute) {
	for n := range now {
		at := slices.IndexFunc(before, func(c mig.NodeCompute) bool { return c.ID == now[n].ID && c.Placement == now[n].Placement })
		if at >= 0 && now[n].UUID == "" {
			now[n].UUID = before[at].UUID
		}
	}
}

// removeOne removes what a step creates or destroys, which must be there, and empty if it is a GPU instance.
func removeOne(list *[]mig.NodeInstance, s mig.Step) bool {
	at := slices.IndexFunc(*list, func(i mig.NodeInstance) bool { return i.ProfileID == s.ProfileID && i.Placement == s.Placement })
	if at < 0 {
		return false
	}
	computes := &(*list)[at].ComputeInstances
	place, isCompute := s.Compute.Get()
	if !isCompute {
		if len(*computes) > 0 {
			return false
		}
		*list = slices.Delete(*list, at, at+1)
		return true
	}
	k := slices.IndexFunc(*computes, func(c mig.NodeCompute) bool { return c.Placement == gpu.Some(place) })
	if k < 0 {
		return false
	}
	*computes = slices.Delete(*computes, k, k+1)
	return true
}

// renamedDevices pairs the UUIDs of the MIG devices of a layout with those that stand in their places now, if they differ.
func renamedDevices(before, now layout) map[gpu.MIGUUID]gpu.MIGUUID {
	changed := map[gpu.MIGUUID]gpu.MIGUUID{}
	stands := now.devices()
	for p, id := range before.devices() {
		if other := stands[p]; id != "" && other != "" && other != id {
			changed[id] = other
		}
	}
	return changed
}

// devices are the MIG devices of a layout.
func (l layout) devices() map[place]gpu.MIGUUID {
	found := map[place]gpu.MIGUUID{}
	for _, i := range l.Instances {
		for n, at := range mig.ComputePlacements(i) {
			found[place{gpu: l.GPU, profile: i.ProfileID, at: i.Placement, compute: gpu.Some(at)}] = i.ComputeInstances[n].UUID
		}
	}
	return found
}

// uuids of the MIG devices of instances.
func uuids(list []mig.NodeInstance) []string {
	var found []string
	for _, i := range list {
		for _, c := range i.ComputeInstances {
			if c.UUID != "" {
				found = append(found, string(c.UUID))
			}
		}
	}
	return found
}

// describeInstances draws the instances of a GPU for a plan: with fates by place, holders by unit.
func (c *usage) describeInstances(g mig.NodeGPU, gone map[place]bool) []api.Instance {
	list := describeStanding(knownInstances(g.Instances))
	for n := range list {
		d, i := &list[n], g.Instances[n]
		p := place{gpu: g.UUID, profile: i.ProfileID, at: i.Placement}
		d.Fate, d.Holders = fateOf(gone[p], api.Destroy), c.holds[unit{gpu: g.UUID, instance: i.ID}]
		for k := range d.Compute {
			ci := &d.Compute[k]
			p.compute = gpu.Some(ci.Placement)
			ci.Fate, ci.Holders = fateOf(gone[p], api.Destroy), c.holds[unit{g.UUID, i.ID, ci.ID}]
		}
	}
	return list
}

// standingOn are the instances of a GPU among those that were read; nil if it was not.
func standingOn(gpus []mig.NodeGPU, id gpu.UUID) []mig.NodeInstance {
	g, err := findGPU(gpus, nil, id)
	if err != nil {
		return nil
	}
	return knownInstances(g.Instances)
}

// describeStanding draws instances that stand; nil if they are not known.
func describeStanding(instances []mig.NodeInstance) []api.Instance {
	if instances == nil {
		return nil
	}
	list := []api.Instance{}
	for _, i := range instances {
		d := api.Instance{ID: gpu.Some(i.ID), Profile: i.Profile, ProfileID: i.ProfileID, Placement: i.Placement,
			Compute: []api.Compute{}, Fate: api.Keep}
		for n, at := range mig.ComputePlacements(i) {
			ci := i.ComputeInstances[n]
			d.Compute = append(d.Compute, api.Compute{ID: gpu.Some(ci.ID), UUID: ci.UUID, Placement: at, Fate: api.Keep})
		}
		list = append(list, d)
	}
	return list
}

func fateOf(changes bool, to api.Fate) api.Fate {
	if changes {
		return to
	}
	return api.Keep
}

// describeAfter draws the instances that a plan leads to.
func describeAfter(g mig.NodeGPU, after []mig.PlannedInstance) []api.Instance {
	list := []api.Instance{}
	for _, i := range after {
		d := api.Instance{Profile: i.Profile, ProfileID: i.ProfileID, Placement: i.Placement, Compute: []api.Compute{},
			Fate: fateOf(!i.Standing.Present(), api.Create), Need: i.Need}
		var own mig.NodeInstance
		if at, ok := i.Standing.Get(); ok {
			own = g.Instances[at]
			d.ID = gpu.Some(own.ID)
		}
		for _, ci := range i.ComputeInstances {
			dc := api.Compute{Placement: ci.Placement, Fate: fateOf(!ci.Standing.Present(), api.Create)}
			if at, ok := ci.Standing.Get(); ok {
				dc.ID, dc.UUID = gpu.Some(own.ComputeInstances[at].ID), own.ComputeInstances[at].UUID
			}
			d.Compute = append(d.Compute, dc)
		}
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b api.Instance) int { return cmp.Compare(a.Placement.Start, b.Placement.Start) })
	return list
}
