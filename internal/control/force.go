package control

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// markBusy marks the instances that have holders as busy, except those that force names: MIG UUIDs,
// or GPU instances without compute instances. If all compute instances of a GPU instance are forced,
// so is the GPU instance. It returns a problem for a name that no instance has.
func (u *usage) markBusy(force []string) *api.Problem {
	found := map[string]bool{}

	for n := range u.gpus {
		g := &u.gpus[n]
		for m := range g.Instances {
			i := &g.Instances[m]
			instanceForced := len(i.ComputeInstances) > 0

			for k := range i.ComputeInstances {
				ci := &i.ComputeInstances[k]
				forced := ci.UUID != "" && slices.Contains(force, string(ci.UUID))
				found[string(ci.UUID)] = found[string(ci.UUID)] || forced
				ci.Busy = !forced && len(u.holds[holdKey{g.UUID, i.ID, gpu.Some(ci.ID)}]) > 0
				instanceForced = instanceForced && forced
			}

			name := gpuInstanceName(g.UUID, i.ID)
			if len(i.ComputeInstances) == 0 && slices.Contains(force, name) {
				instanceForced = true
				found[name] = true
			}

			i.Busy = !instanceForced && len(u.holds[holdKey{gpu: g.UUID, instance: i.ID}]) > 0
		}
	}

	for _, name := range force {
		if !found[name] {
			return problemf(api.BadSpec, "force names %q, which is no instance of this node: "+
				"it takes MIG UUIDs, or GPU-<uuid>/<GPU instance> for one without compute instances", name)
		}
	}

	return nil
}

// gpuInstanceName returns the name of a GPU instance in requests, "GPU-<uuid>/3".
func gpuInstanceName(id gpu.UUID, i gpu.InstanceID) string { return fmt.Sprintf("%s/%d", id, i) }

// forcedBy lists the names in force of the instances that steps destroy.
func forcedBy(force []string, steps []mig.Step) []string {
	var list []string

	for _, s := range steps {
		for _, name := range stepNames(s) {
			if slices.Contains(force, name) && !slices.Contains(list, name) {
				list = append(list, name)
			}
		}
	}

	return list
}

// stepNames returns the names by which a request can force what a step destroys.
func stepNames(s mig.Step) []string {
	switch id, ok := s.Instance.Get(); {
	case s.Op == mig.DestroyCompute && s.UUID != "":
		return []string{string(s.UUID)}
	case s.Op == mig.DestroyInstance && ok:
		return []string{gpuInstanceName(s.GPU, id)}
	default:
		return nil
	}
}

// warnOfProcesses returns warnings about processes on forced compute instances: force cannot help,
// since the driver destroys no compute instance on which a process runs. It also warns of a compute
// instance if we don't know whether a process runs on it.
func (u *usage) warnOfProcesses(forced []string) []string {
	var list []string

	for _, g := range u.gpus {
		for _, i := range g.Instances {
			for _, ci := range i.ComputeInstances {
				if ci.UUID == "" || !slices.Contains(forced, string(ci.UUID)) {
					continue
				}

				holds := slices.Concat(
					u.holds[holdKey{gpu: g.UUID, instance: i.ID}],
					u.holds[holdKey{g.UUID, i.ID, gpu.Some(ci.ID)}],
				)
				for _, h := range holds {
					switch {
					case h.Kind == api.HoldProcess:
						list = append(
							list,
							fmt.Sprintf(
								"the driver refuses to destroy %s while process %d runs on it: end that first, or all is "+
									"rolled back",
								ci.UUID,
								h.PID,
							),
						)
					case h.Kind == api.HoldUnknown && strings.HasPrefix(h.What, processCheck+":"):
						list = append(
							list,
							fmt.Sprintf(
								"what runs on %s is not known: if anything does, the driver refuses to destroy it, and all is "+
									"rolled back",
								ci.UUID,
							),
						)
					}
				}
			}
		}
	}

	return list
}

// busyHolds returns the holds on what a step would destroy, without those that force overrides.
func (u *usage) busyHolds(g mig.GPULayout, i mig.Instance, s mig.Step, force []string) []api.Hold {
	instanceForced := slices.Contains(force, gpuInstanceName(g.UUID, i.ID))
	computeForced := slices.Contains(force, string(s.UUID))
	ci, ok := s.ComputeID.Get()

	switch onInstance := u.holds[holdKey{gpu: g.UUID, instance: i.ID}]; {
	case instanceForced && (s.Op == mig.DestroyInstance || computeForced):
		return nil
	case s.Op != mig.DestroyCompute || !ok:
		return u.holders(g, i)
	case computeForced:
		return onInstance
	default:
		return slices.Concat(onInstance, u.holds[holdKey{g.UUID, i.ID, gpu.Some(ci)}])
	}
}

// widenForce adds to the forced names the GPU instances all of whose compute instances are forced.
func (u *usage) widenForce(force []string) []string {
	wide := slices.Clone(force)

	for _, g := range u.gpus {
		for _, i := range g.Instances {
			notForced := func(c mig.ComputeInstance) bool {
				return !slices.Contains(force, string(c.UUID))
			}
			if len(i.ComputeInstances) > 0 && !slices.ContainsFunc(i.ComputeInstances, notForced) {
				wide = append(wide, gpuInstanceName(g.UUID, i.ID))
			}
		}
	}

	return wide
}

// listOwners returns the other controllers that manage the GPUs. The key "" has those that manage
// all GPUs.
func listOwners(owners map[gpu.UUID][]string, gpus []gpu.UUID) []string {
	list := slices.Clone(owners[""])
	for _, id := range gpus {
		for _, o := range owners[id] {
			if !slices.Contains(list, o) {
				list = append(list, o)
			}
		}
	}

	slices.SortFunc(list, strings.Compare)

	return list
}

// listBlockers returns the instance that a step would destroy if it has holders that force does not
// override.
func (u *usage) listBlockers(g mig.GPULayout, s mig.Step, force []string) []api.Blocker {
	at := s.IndexIn(g.Instances)
	if at < 0 {
		return nil
	}

	i := g.Instances[at]

	holds := u.busyHolds(g, i, s, force)
	if len(holds) == 0 {
		return nil
	}

	b := u.blocker(g, i)
	b.Instance = cmp.Or(string(s.UUID), b.Instance)
	b.Holders = holds

	return []api.Blocker{b}
}
