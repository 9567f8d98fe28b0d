package control

import (
	"errors"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// layout is what a GPU is partitioned into. Wanted instances have no ids. All compute instances have a placement.
type layout struct {
	GPU       gpu.UUID       `json:"gpu"`
	Instances []mig.Instance `json:"instances"`
}

// place names an instance by its placement.
type place struct {
	gpu     gpu.UUID
	profile uint32
	at      gpu.Placement
	compute gpu.Opt[gpu.Placement] // absent: the GPU instance
}

func placeOf(s mig.Step) place {
	return place{gpu: s.GPU, profile: s.ProfileID, at: s.Placement, compute: s.Compute}
}

// copyInstances copies instances, without what was found out about their holders.
func copyInstances(list []mig.Instance) []mig.Instance {
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

// withoutIDs returns the instances that a plan leads to as an operation remembers them: without ids, those that stay
// included.
func withoutIDs(after []mig.Instance) []mig.Instance {
	var list []mig.Instance

	for _, i := range after {
		n := mig.Instance{Placed: i.Placed}
		for _, c := range i.ComputeInstances {
			n.ComputeInstances = append(
				n.ComputeInstances,
				mig.ComputeInstance{Slices: c.Slices, Placement: c.Placement},
			)
		}

		list = append(list, n)
	}

	return list
}

// samePlace reports whether two GPU instances have the same profile and place.
func samePlace(a, b mig.Instance) bool {
	return a.ProfileID == b.ProfileID && a.Placement == b.Placement
}

// stepsBetween returns the steps from the instances of a GPU to those wanted: destructions first, then creations.
func stepsBetween(id gpu.UUID, live, wanted []mig.Instance) []mig.Step {
	var goes, comes []mig.Step

	for _, i := range live {
		at := slices.IndexFunc(wanted, func(w mig.Instance) bool { return samePlace(w, i) })

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
			goes = append(
				goes,
				mig.Step{
					Op:        mig.DestroyInstance,
					GPU:       id,
					ProfileID: i.ProfileID,
					Profile:   i.Profile,
					Placement: i.Placement,
					Instance:  gpu.Some(i.ID),
				},
			)
			continue
		}

		comes = append(comes, createComputes(id, wanted[at], places)...)
	}

	for _, w := range wanted {
		if !slices.ContainsFunc(live, func(i mig.Instance) bool { return samePlace(i, w) }) {
			comes = append(
				comes,
				mig.Step{
					Op:        mig.CreateInstance,
					GPU:       id,
					ProfileID: w.ProfileID,
					Profile:   w.Profile,
					Placement: w.Placement,
				},
			)
			comes = append(comes, createComputes(id, w, nil)...)
		}
	}

	return append(goes, comes...)
}

func destroyCompute(id gpu.UUID, i mig.Instance, n int, at gpu.Placement) mig.Step {
	return mig.Step{
		Op:        mig.DestroyCompute,
		GPU:       id,
		ProfileID: i.ProfileID,
		Profile:   i.Profile,
		Placement: i.Placement,
		Compute:   gpu.Some(at),
		UUID:      i.ComputeInstances[n].UUID,
		Instance:  gpu.Some(i.ID),
		ComputeID: gpu.Some(i.ComputeInstances[n].ID),
	}
}

func createComputes(id gpu.UUID, w mig.Instance, existing []gpu.Placement) []mig.Step {
	var steps []mig.Step

	for _, at := range mig.ComputePlacements(w) {
		if !slices.Contains(existing, at) {
			steps = append(
				steps,
				mig.Step{Op: mig.CreateCompute, GPU: id, ProfileID: w.ProfileID, Profile: w.Profile,
					Placement: w.Placement, Compute: gpu.Some(at)},
			)
		}
	}

	return steps
}

// errOtherStep says that instances are not those after a step.
var errOtherStep = errors.New("the instances are not those after the step")

// verifyOutcome returns the instances that were read after a step, with the MIG UUIDs that were known before. It
// returns errOtherStep if they are not what the step makes of those before, or if anything else has changed.
func verifyOutcome(before []mig.Instance, s mig.Step, read []mig.Instance) ([]mig.Instance, error) {
	// What the step adds is taken away again, from a copy of what was read; what it takes away, from one of what was
	// before.
	added := copyInstances(read)
	removed := copyInstances(before)
	list := &removed

	if isCreation(s) {
		list = &added
	}

	if !removeOne(list, s) || !mig.SameInstances(added, removed) {
		return nil, errOtherStep
	}

	after := copyInstances(read)
	for n := range after {
		at := slices.IndexFunc(
			before,
			func(i mig.Instance) bool { return i.ID == after[n].ID && samePlace(i, after[n]) },
		)
		if at >= 0 {
			keepUUIDs(after[n].ComputeInstances, before[at].ComputeInstances)
		}
	}

	return after, nil
}

func keepUUIDs(now, before []mig.ComputeInstance) {
	for n := range now {
		at := slices.IndexFunc(before, func(c mig.ComputeInstance) bool {
			return c.ID == now[n].ID && c.Placement == now[n].Placement
		})
		if at >= 0 && now[n].UUID == "" {
			now[n].UUID = before[at].UUID
		}
	}
}

// removeOne removes what a step creates or destroys, which must be there, and empty if it is a GPU instance.
func removeOne(list *[]mig.Instance, s mig.Step) bool {
	at := s.IndexIn(*list)
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

	k := slices.IndexFunc(
		*computes,
		func(c mig.ComputeInstance) bool { return c.Placement == gpu.Some(place) },
	)
	if k < 0 {
		return false
	}

	*computes = slices.Delete(*computes, k, k+1)

	return true
}

// renamedDevices pairs the UUIDs of the MIG devices of a layout with those now in their places, if they
// differ.
func renamedDevices(before, now layout) map[gpu.MIGUUID]gpu.MIGUUID {
	changed := map[gpu.MIGUUID]gpu.MIGUUID{}
	current := now.devices()

	for p, id := range before.devices() {
		if other := current[p]; id != "" && other != "" && other != id {
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
func uuids(list []mig.Instance) []string {
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
func (u *usage) describeInstances(g mig.GPULayout, gone map[place]bool) []api.Instance {
	list := describeLayout(knownInstances(g.Instances))
	for n := range list {
		d := &list[n]
		i := g.Instances[n]
		p := place{gpu: g.UUID, profile: i.ProfileID, at: i.Placement}

		d.Fate = fateOf(gone[p], api.Destroy)
		d.Holders = u.holds[unit{gpu: g.UUID, instance: i.ID}]

		for k := range d.Compute {
			ci := &d.Compute[k]
			p.compute = gpu.Some(ci.Placement)
			ci.Fate = fateOf(gone[p], api.Destroy)
			ci.Holders = u.holds[unit{g.UUID, i.ID, ci.ID}]
		}
	}

	return list
}

// instancesOn returns the instances of a GPU among those that were read; nil if it was not read.
func instancesOn(gpus []mig.GPULayout, id gpu.UUID) []mig.Instance {
	g, err := findGPU(gpus, nil, id)
	if err != nil {
		return nil
	}

	return knownInstances(g.Instances)
}

// describeLayout returns instances for the API, by placement: those that exist, or those that a plan leads to. It is
// nil if they are not known.
func describeLayout(instances []mig.Instance) []api.Instance {
	if instances == nil {
		return nil
	}

	list := []api.Instance{}

	for _, i := range instances {
		d := api.Instance{Profile: i.Profile, ProfileID: i.ProfileID, Placement: i.Placement,
			Compute: []api.ComputeInstance{},
			Fate:    fateOf(i.New, api.Create), Need: i.Need}
		if !i.New {
			d.ID = gpu.Some(i.ID)
		}

		for n, at := range mig.ComputePlacements(i) {
			ci := i.ComputeInstances[n]

			dc := api.ComputeInstance{
				UUID:      ci.UUID,
				Placement: at,
				Fate:      fateOf(ci.New, api.Create),
			}
			if !ci.New {
				dc.ID = gpu.Some(ci.ID)
			}

			d.Compute = append(d.Compute, dc)
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
