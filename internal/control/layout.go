package control

import (
	"cmp"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// layout is how a GPU is cut, as the journal keeps it: by places, since ids change with every creation.
type layout struct {
	GPU       gpu.UUID `json:"gpu"`
	Instances []slot   `json:"instances"`
}

// slot is a GPU instance of a layout.
type slot struct {
	ProfileID uint32        `json:"profileId"`
	Profile   string        `json:"profile"`
	Placement gpu.Placement `json:"placement"`
	Computes  []computeSlot `json:"computes"`
}

// computeSlot is a compute instance of a layout; UUID is what it had when the layout was read, if it stood then.
type computeSlot struct {
	Placement gpu.Placement `json:"placement"`
	UUID      gpu.MIGUUID   `json:"uuid,omitempty"`
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

// gpusOf are the GPUs of layouts.
func gpusOf(list []layout) []gpu.UUID {
	ids := make([]gpu.UUID, 0, len(list))
	for _, l := range list {
		ids = append(ids, l.GPU)
	}
	return ids
}

// layoutOf reads the layout of a GPU that stands.
func layoutOf(g mig.NodeGPU) layout {
	l := layout{GPU: g.UUID}
	for _, i := range g.Instances {
		s := slot{ProfileID: i.ProfileID, Profile: i.Profile, Placement: i.Placement}
		for n, at := range computePlaces(i) {
			s.Computes = append(s.Computes, computeSlot{Placement: at, UUID: i.Computes[n].UUID})
		}
		l.Instances = append(l.Instances, s)
	}
	return l
}

// layoutAfter is the layout that a plan leads to.
func layoutAfter(id gpu.UUID, after []mig.PlannedInstance) layout {
	l := layout{GPU: id}
	for _, i := range after {
		s := slot{ProfileID: i.ProfileID, Profile: i.Profile, Placement: i.Placement}
		for _, c := range i.Computes {
			s.Computes = append(s.Computes, computeSlot{Placement: c.Placement})
		}
		l.Instances = append(l.Instances, s)
	}
	return l
}

// computePlaces tells where the compute instances of an instance stand. Those that the driver says nothing of are taken to
// stand in the first room that is left, by id, which is where drivers put them.
func computePlaces(i mig.NodeInstance) []gpu.Placement {
	places := make([]gpu.Placement, len(i.Computes))
	var taken []gpu.Placement
	for n, c := range i.Computes {
		if at, ok := c.Placement.Get(); ok {
			places[n] = at
			taken = append(taken, at)
		}
	}
	for n, c := range i.Computes {
		if c.Placement.Present() {
			continue
		}
		at := gpu.Placement{Size: max(c.Slices, 1)}
		for slices.ContainsFunc(taken, at.Overlaps) {
			at.Start++
		}
		places[n] = at
		taken = append(taken, at)
	}
	return places
}

// cut is what leads from the instances of a GPU to a layout.
type cut struct {
	live mig.NodeGPU
	want layout
}

// steps are what is to go, then what is to come.
func (c cut) steps() []mig.Step {
	var goes, comes []mig.Step
	for _, i := range c.live.Instances {
		at := slices.IndexFunc(c.want.Instances, func(s slot) bool { return s.ProfileID == i.ProfileID && s.Placement == i.Placement })
		var wanted []computeSlot
		if at >= 0 {
			wanted = c.want.Instances[at].Computes
		}
		places := computePlaces(i)
		for n, p := range places {
			if !slices.ContainsFunc(wanted, func(w computeSlot) bool { return w.Placement == p }) {
				goes = append(goes, destroyCompute(c.live.UUID, i, n, p))
			}
		}
		if at < 0 {
			goes = append(goes, mig.Step{Op: mig.DestroyInstance, GPU: c.live.UUID, ProfileID: i.ProfileID, Profile: i.Profile,
				Placement: i.Placement, Instance: gpu.Some(i.ID)})
			continue
		}
		comes = append(comes, createComputes(c.live.UUID, c.want.Instances[at], places)...)
	}
	for _, s := range c.want.Instances {
		if slices.ContainsFunc(c.live.Instances, func(i mig.NodeInstance) bool { return i.ProfileID == s.ProfileID && i.Placement == s.Placement }) {
			continue
		}
		comes = append(comes, mig.Step{Op: mig.CreateInstance, GPU: c.live.UUID, ProfileID: s.ProfileID, Profile: s.Profile, Placement: s.Placement})
		comes = append(comes, createComputes(c.live.UUID, s, nil)...)
	}
	return append(goes, comes...)
}

func destroyCompute(id gpu.UUID, i mig.NodeInstance, n int, at gpu.Placement) mig.Step {
	return mig.Step{Op: mig.DestroyCompute, GPU: id, ProfileID: i.ProfileID, Profile: i.Profile, Placement: i.Placement,
		Compute: gpu.Some(at), UUID: i.Computes[n].UUID, Instance: gpu.Some(i.ID), ComputeID: gpu.Some(i.Computes[n].ID)}
}

func createComputes(id gpu.UUID, s slot, standing []gpu.Placement) []mig.Step {
	var steps []mig.Step
	for _, c := range s.Computes {
		if !slices.Contains(standing, c.Placement) {
			steps = append(steps, mig.Step{Op: mig.CreateCompute, GPU: id, ProfileID: s.ProfileID, Profile: s.Profile,
				Placement: s.Placement, Compute: gpu.Some(c.Placement)})
		}
	}
	return steps
}

// renamed pairs the UUIDs of a layout with those that stand in their places now, where they differ.
func renamed(before []layout, live []mig.NodeGPU) map[gpu.MIGUUID]gpu.MIGUUID {
	now := map[place]gpu.MIGUUID{}
	for _, g := range live {
		for p, id := range layoutOf(g).devices() {
			now[p] = id
		}
	}
	changed := map[gpu.MIGUUID]gpu.MIGUUID{}
	for _, l := range before {
		for p, id := range l.devices() {
			if other := now[p]; id != "" && other != "" && other != id {
				changed[id] = other
			}
		}
	}
	return changed
}

// devices are the MIG devices of a layout.
func (l layout) devices() map[place]gpu.MIGUUID {
	found := map[place]gpu.MIGUUID{}
	for _, s := range l.Instances {
		for _, c := range s.Computes {
			found[place{gpu: l.GPU, profile: s.ProfileID, at: s.Placement, compute: gpu.Some(c.Placement)}] = c.UUID
		}
	}
	return found
}

// places are all instances of layouts.
func places(all []layout) map[place]bool {
	found := map[place]bool{}
	for _, l := range all {
		for _, s := range l.Instances {
			p := place{gpu: l.GPU, profile: s.ProfileID, at: s.Placement}
			found[p] = true
			for _, c := range s.Computes {
				p.compute = gpu.Some(c.Placement)
				found[p] = true
			}
		}
	}
	return found
}

// uuids of the MIG devices of layouts, sorted.
func uuids(all []layout) []string {
	var list []string
	for _, l := range all {
		for _, s := range l.Instances {
			for _, c := range s.Computes {
				if c.UUID != "" {
					list = append(list, string(c.UUID))
				}
			}
		}
	}
	slices.Sort(list)
	return list
}

// describe draws the instances of a GPU for a plan: with fates by place, holders by unit.
func (c *census) describe(g mig.NodeGPU, gone map[place]bool) []api.Instance {
	list := []api.Instance{}
	for _, i := range g.Instances {
		p := place{gpu: g.UUID, profile: i.ProfileID, at: i.Placement}
		d := api.Instance{ID: gpu.Some(i.ID), Profile: i.Profile, ProfileID: i.ProfileID, Placement: i.Placement,
			Compute: []api.Compute{}, Fate: fate(gone[p], api.Destroy), Holders: c.holds[unit{gpu: g.UUID, instance: i.ID}]}
		for n, at := range computePlaces(i) {
			p.compute = gpu.Some(at)
			ci := i.Computes[n]
			d.Compute = append(d.Compute, api.Compute{ID: gpu.Some(ci.ID), UUID: ci.UUID, Placement: at,
				Fate: fate(gone[p], api.Destroy), Holders: c.holds[unit{g.UUID, i.ID, gpu.Some(ci.ID)}]})
		}
		list = append(list, d)
	}
	return list
}

func fate(changes bool, to api.Fate) api.Fate {
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
			Fate: fate(!i.Standing.Present(), api.Create), Need: i.Need}
		var own mig.NodeInstance
		if at, ok := i.Standing.Get(); ok {
			own = g.Instances[at]
			d.ID = gpu.Some(own.ID)
		}
		for _, ci := range i.Computes {
			dc := api.Compute{Placement: ci.Placement, Fate: fate(!ci.Standing.Present(), api.Create)}
			if at, ok := ci.Standing.Get(); ok {
				dc.ID, dc.UUID = gpu.Some(own.Computes[at].ID), own.Computes[at].UUID
			}
			d.Compute = append(d.Compute, dc)
		}
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b api.Instance) int { return cmp.Compare(a.Placement.Start, b.Placement.Start) })
	return list
}
