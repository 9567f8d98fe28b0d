package advise

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// SliceChange is a workload whose slices on this node should become smaller or larger. It changes all
// of them: they have one owner, whose template asks for one profile.
type SliceChange struct {
	Slices []*Recommendation
	To     string // profile; empty for a whole GPU
}

// RefusedChange is a change of slices that is recommended and cannot be made.
type RefusedChange struct {
	Slice *Recommendation // the first of the workload; nil for all slices of the node
	Why   string
}

// SlicePlan says how to change the slices of a node as recommended.
type SlicePlan struct {
	// Direct are the changes that free slices or free GPUs are enough for.
	Direct []SliceChange
	// Moved are the changes that need new slices.
	Moved []SliceChange
	// Layouts are the layouts that the GPUs of Moved need, by index: how many instances of each
	// profile.
	Layouts map[int]map[string]int
	// Room is false if the new slices do not fit beside the instances that exist: then the pods of
	// Moved must leave first.
	Room    bool
	Idle    []*Recommendation
	Refused []RefusedChange
}

// ChangesSlice reports whether a slice should become smaller or larger. An answer that is not
// final changes nothing.
func (r *Recommendation) ChangesSlice() bool {
	return r.Instance.Present() && r.Workload != nil &&
		(r.Action == ActionGrow || r.Action == ActionShrink && r.WhyNotFinal() == ReasonNone)
}

// PlanSlices returns how to change the slices of a node as recommended. It leaves alone what the
// packing uses.
func (r *Report) PlanSlices(gpus []gpu.GPU) SlicePlan {
	p := SlicePlan{Layouts: map[int]map[string]int{}, Room: true}

	for i := range r.Devices {
		if d := &r.Devices[i]; d.Instance.Present() && d.Action == ActionIdle {
			p.Idle = append(p.Idle, d)
		}
	}

	changes, refused := r.sliceChanges()
	p.Refused = refused

	if r.SingleStrategy && len(changes)+len(p.Refused) > 0 {
		p.Refused = []RefusedChange{{
			Why: "under --mig-strategy=single all slices of the node have one profile, " +
				"and none changes alone.",
		}}

		return p
	}

	free := r.freeDevices()

	for _, c := range changes {
		if free[c.To] >= len(c.Slices) {
			free[c.To] -= len(c.Slices)
			p.Direct = append(p.Direct, c)
			continue
		}

		why := "no whole GPU is free on this node."
		if c.To != "" {
			why = p.addMoved(r, c, gpus)
		}

		if why != "" {
			p.Refused = append(p.Refused, RefusedChange{c.Slices[0], why})
		}
	}

	p.setLayouts(gpus)

	return p
}

// setLayouts sets the layouts of the GPUs that get new slices. If one of them has no room for these
// beside the instances that exist, all pods of Moved leave first.
func (p *SlicePlan) setLayouts(gpus []gpu.GPU) {
	for index := range p.Layouts {
		layout, ok := p.layoutWith(findGPU(gpus, index), p.newOn(index), nil)
		if ok {
			p.Layouts[index] = layout
		}

		p.Room = p.Room && ok
	}

	if p.Room {
		return
	}

	for index := range p.Layouts {
		p.Layouts[index], _ = p.layoutWith(findGPU(gpus, index), p.newOn(index), p.Leaving(index))
	}
}

// sliceChanges returns the changes of slices that are recommended, one for each workload: those that
// can be made if there is room, and those that cannot.
func (r *Report) sliceChanges() (changes []SliceChange, refused []RefusedChange) {
	var done []Key

	for i := range r.Devices {
		d := &r.Devices[i]
		if !d.ChangesSlice() || slices.Contains(done, *d.Workload) {
			continue
		}

		done = append(done, *d.Workload)

		c, why := r.changeOfAll(d)
		if why != "" {
			refused = append(refused, RefusedChange{d, why})
			continue
		}

		changes = append(changes, c)
	}

	return changes, refused
}

// changeOfAll returns the change of all slices of a workload, or why it cannot be made.
func (r *Report) changeOfAll(first *Recommendation) (c SliceChange, why string) {
	c.To = first.Recommended
	pods := map[Pod]bool{}

	for i := range r.Devices {
		d := &r.Devices[i]
		if d.Workload == nil || *d.Workload != *first.Workload {
			continue
		}

		c.Slices = append(c.Slices, d)
		switch {
		case d.Workload.Shared || d.MIGDevice == "":
			return c, "several containers or compute instances share it. Change it by hand."
		case d.Pod != nil && pods[*d.Pod]:
			return c, "its pod holds several slices. Change it by hand."
		case first.Action == ActionShrink && d.Action != ActionShrink:
			return c, "a smaller slice is not enough for another replica, " +
				"and one pod template cannot request both."
		case d.ChangesSlice() && d.Recommended != first.Recommended:
			return c, "another replica is recommended " + cmp.Or(d.Recommended, "a whole GPU") +
				", and one pod template cannot request both. Choose the larger one."
		}

		if d.Pod != nil {
			pods[*d.Pod] = true
		}
	}

	return c, ""
}

// freeDevices counts the free slices by profile, and under "" the free whole GPUs, less those that the
// packing uses.
func (r *Report) freeDevices() map[string]int {
	free := map[string]int{}

	for i := range r.Devices {
		d := &r.Devices[i]
		switch {
		case d.Action != ActionFree:
		case d.Instance.Present() && d.MIGDevice != "":
			free[d.Profile]++
		case !d.Instance.Present() && !r.Packing.hasTarget(d.Index):
			free[""]++
		}
	}

	if r.Packing != nil {
		for i := range r.Packing.GPUs {
			for _, s := range r.Packing.GPUs[i].Slices {
				if s.Exists {
					free[s.Profile]--
				}
			}
		}
	}

	return free
}

// addMoved adds a change whose slices must be created, each on the GPU of the slice that it replaces. It
// returns why that is impossible, "" if it is possible.
func (p *SlicePlan) addMoved(r *Report, c SliceChange, gpus []gpu.GPU) string {
	p.Moved = append(p.Moved, c)
	layouts := map[int]map[string]int{}

	for _, d := range c.Slices {
		g := findGPU(gpus, d.Index)
		why := ""

		switch {
		case r.Packing.hasTarget(d.Index):
			why = "gets slices by the procedure above. Run migctl recommend again after it."
		case g == nil || slices.ContainsFunc(g.Instances, func(i gpu.GPUInstance) bool {
			return !isWhole(&i) || i.Profile == "" || !i.Placement.Present()
		}):
			why = "has instances that are split or not known. Change it by a spec of your own."
		default:
			layout, ok := p.layoutWith(g, p.newOn(d.Index), p.Leaving(d.Index))
			layouts[d.Index] = layout

			if !ok {
				why = "has no room for it, nor is such a slice free. Free a slice, " +
					"or move the pod to another node."
			}
		}

		if why != "" {
			p.Moved = p.Moved[:len(p.Moved)-1]
			return fmt.Sprintf("GPU %d %s", d.Index, why)
		}
	}

	maps.Copy(p.Layouts, layouts)

	return ""
}

// findGPU returns the GPU with an index; nil if there is none.
func findGPU(gpus []gpu.GPU, index int) *gpu.GPU {
	at := slices.IndexFunc(gpus, func(g gpu.GPU) bool { return g.Index == index })
	if at < 0 {
		return nil
	}

	return &gpus[at]
}

// newOn returns the profiles of the new slices on a GPU.
func (p *SlicePlan) newOn(index int) []string {
	var list []string

	for _, c := range p.Moved {
		for _, d := range c.Slices {
			if d.Index == index {
				list = append(list, c.To)
			}
		}
	}

	return list
}

// Leaving returns the instances of a GPU that pods of Moved leave.
func (p *SlicePlan) Leaving(index int) []gpu.InstanceID {
	var list []gpu.InstanceID

	for _, c := range p.Moved {
		for _, d := range c.Slices {
			if d.Index == index {
				list = append(list, d.Instance.Or(0))
			}
		}
	}

	return list
}

// layoutWith returns the instances of a GPU by profile, without some instances and with new ones. It is
// false if the new ones do not fit beside the others. If they only fit without the instances that
// nothing holds, these go, unless a direct change may use them.
func (p *SlicePlan) layoutWith(
	g *gpu.GPU,
	created []string,
	without []gpu.InstanceID,
) (map[string]int, bool) {
	layout, ok := layoutIf(g, created, func(i *gpu.GPUInstance) bool {
		return !slices.Contains(without, i.ID)
	})
	if ok || len(p.Direct) > 0 {
		return layout, ok
	}

	return layoutIf(g, created, func(i *gpu.GPUInstance) bool {
		return !slices.Contains(without, i.ID) && i.Allocated.Or(true)
	})
}

// layoutIf returns the instances of a GPU that stay, and new ones, by profile. It is false if the new
// ones do not fit.
func layoutIf(
	g *gpu.GPU,
	created []string,
	stays func(*gpu.GPUInstance) bool,
) (map[string]int, bool) {
	layout := map[string]int{}
	var existing []mig.Placed

	for i := range g.Instances {
		instance := &g.Instances[i]
		if !stays(instance) {
			continue
		}

		layout[instance.Profile]++
		existing = append(existing, mig.Placed{
			ProfileID: instance.ProfileID.Or(0),
			Profile:   instance.Profile,
			Placement: instance.Placement.Or(gpu.Placement{}),
		})
	}

	for _, profile := range created {
		layout[profile]++
	}

	if mig.PlaceBeside(g.Profiles, existing, created) == nil {
		return nil, false
	}

	return layout, true
}
