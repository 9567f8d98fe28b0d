package control

import (
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// layout is what a GPU is or shall be partitioned into. Instances that it shall have have no ids.
// All compute instances have a placement.
type layout struct {
	GPU       gpu.UUID       `json:"gpu"`
	Instances []mig.Instance `json:"instances"`
}

// instancePlace names an instance by its placement.
type instancePlace struct {
	gpu     gpu.UUID
	profile uint32
	at      gpu.Placement
	compute gpu.Opt[gpu.Placement] // absent: the GPU instance as a whole
}

// placesDestroyed returns the places of the instances that steps destroy.
func placesDestroyed(steps []mig.Step) map[instancePlace]bool {
	destroyed := map[instancePlace]bool{}

	for _, s := range steps {
		if s.Destroys() {
			destroyed[instancePlace{s.GPU, s.ProfileID, s.Placement, s.Compute}] = true
		}
	}

	return destroyed
}

// copyInstances copies instances, with Busy unset.
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

// withoutIDs returns planned instances as an operation remembers them: without ids, also of those
// that the plan keeps.
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

// renamedDevices returns, for each MIG device of before that has another UUID now, its former UUID
// and the current one. Devices in the same place are the same.
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

// devices returns the UUIDs of the MIG devices of a layout, by place.
func (l layout) devices() map[instancePlace]gpu.MIGUUID {
	found := map[instancePlace]gpu.MIGUUID{}

	for _, i := range l.Instances {
		for n, at := range mig.ComputePlacements(i) {
			p := instancePlace{l.GPU, i.ProfileID, i.Placement, gpu.Some(at)}
			found[p] = i.ComputeInstances[n].UUID
		}
	}

	return found
}

// uuids lists the UUIDs of the MIG devices of instances.
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

// describeInstances returns the instances of a GPU for a plan: with their holders, and with the fate
// "destroy" for those in the places destroyed.
func (u *usage) describeInstances(
	g mig.GPULayout,
	destroyed map[instancePlace]bool,
) []api.Instance {
	list := describeLayout(knownInstances(g.Instances))
	for n := range list {
		d := &list[n]
		i := g.Instances[n]
		p := instancePlace{gpu: g.UUID, profile: i.ProfileID, at: i.Placement}

		d.Fate = fateOf(destroyed[p], api.Destroy)
		d.Holders = u.holds[holdKey{gpu: g.UUID, instance: i.ID}]

		for k := range d.Compute {
			ci := &d.Compute[k]
			p.compute = gpu.Some(ci.Placement)
			ci.Fate = fateOf(destroyed[p], api.Destroy)
			ci.Holders = u.holds[holdKey{g.UUID, i.ID, ci.ID}]
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

// describeLayout returns instances for the API: existing or planned ones. It returns nil if they are
// unknown, which is what nil means.
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

// fateOf returns change if a plan changes an instance, else api.Keep.
func fateOf(changes bool, change api.Fate) api.Fate {
	if changes {
		return change
	}

	return api.Keep
}
