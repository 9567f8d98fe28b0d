package advise

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// SliceChange is a workload whose slices on this node shall become smaller or larger, all of them:
// they have one owner, whose template asks for one profile.
type SliceChange struct {
	Slices []*Recommendation
	To     string // profile; empty for a whole GPU
}

// RefusedChange is a change of slices that is recommended and cannot be made.
type RefusedChange struct {
	Slice *Recommendation // the first of the workload; nil for all slices of the node
	Why   string
}

// SlicePlan is how the slices of a node get to what is recommended for them.
type SlicePlan struct {
	Direct []SliceChange // those for which there are free slices or GPUs
	// Moved need new slices; Layouts are those of their GPUs, by index: how many instances of each
	// profile. Without Room beside what stands, their pods must leave first.
	Moved   []SliceChange
	Layouts map[int]map[string]int
	Room    bool
	Idle    []*Recommendation
	Refused []RefusedChange
}

// ChangesSlice reports whether a slice should become smaller or larger. A provisional answer
// changes nothing.
func (r *Recommendation) ChangesSlice() bool {
	return r.Instance.Present() && r.Workload != nil &&
		(r.Action == ActionGrow || r.Action == ActionShrink && !r.Provisional && !r.NotChecked)
}

// PlanSlices returns how the slices of a node get to what is recommended. What the packing uses is
// not touched.
func (r *Report) PlanSlices(gpus []gpu.GPU) SlicePlan {
	p := SlicePlan{Layouts: map[int]map[string]int{}, Room: true}

	for i := range r.Devices {
		if d := &r.Devices[i]; d.Instance.Present() && d.Action == ActionIdle {
			p.Idle = append(p.Idle, d)
		}
	}

	var changes []SliceChange

	changes, p.Refused = r.sliceChanges()
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
			why = p.add(r, c, gpus)
		}

		if why != "" {
			p.Refused = append(p.Refused, RefusedChange{c.Slices[0], why})
		}
	}

	p.lay(gpus)

	return p
}

// lay sets the layouts of the GPUs that get new slices. If one has no room beside what stands, the
// pods of all leave first.
func (p *SlicePlan) lay(gpus []gpu.GPU) {
	for index := range p.Layouts {
		all, ok := p.layoutWith(findGPU(gpus, index), p.newOn(index), nil)
		if p.Room = p.Room && ok; ok {
			p.Layouts[index] = all
		}
	}

	if p.Room {
		return
	}

	for index := range p.Layouts {
		p.Layouts[index], _ = p.layoutWith(findGPU(gpus, index), p.newOn(index), p.Leaving(index))
	}
}

// sliceChanges returns the changes of slices that are recommended, and those that cannot be made.
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

// freeDevices counts the slices by profile, and under "" the whole GPUs, that are free and that the
// packing leaves.
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

// add adds a change whose slices must be created, each on the GPU of the one before, or returns why
// that is impossible.
func (p *SlicePlan) add(r *Report, c SliceChange, gpus []gpu.GPU) string {
	p.Moved = append(p.Moved, c)
	added := map[int]map[string]int{}

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
			if added[d.Index] = layout; !ok {
				why = "has no room for it, nor is such a slice free. Free a slice, " +
					"or move the pod to another node."
			}
		}

		if why != "" {
			p.Moved = p.Moved[:len(p.Moved)-1]
			return fmt.Sprintf("GPU %d %s", d.Index, why)
		}
	}

	maps.Copy(p.Layouts, added)

	return ""
}

func findGPU(gpus []gpu.GPU, index int) *gpu.GPU {
	at := slices.IndexFunc(gpus, func(g gpu.GPU) bool { return g.Index == index })
	if at < 0 {
		return nil
	}

	return &gpus[at]
}

// newOn returns the profiles that are to be created on a GPU.
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

// Leaving returns the instances of a GPU whose pods move.
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

// layoutWith returns the instances of a GPU by profile, without some and with new ones, and whether
// those fit beside the others. Those that nothing holds give way if they have to, unless a direct
// change may use them.
func (p *SlicePlan) layoutWith(
	g *gpu.GPU,
	created []string,
	without []gpu.InstanceID,
) (map[string]int, bool) {
	for _, keepFree := range []bool{true, len(p.Direct) > 0} {
		layout := map[string]int{}
		var existing []mig.Placed

		for i := range g.Instances {
			inst := &g.Instances[i]
			if slices.Contains(without, inst.ID) || !keepFree && !inst.Allocated.Or(true) {
				continue
			}

			layout[inst.Profile]++
			existing = append(
				existing,
				mig.Placed{ProfileID: inst.ProfileID.Or(0), Profile: inst.Profile,
					Placement: inst.Placement.Or(gpu.Placement{})},
			)
		}

		for _, profile := range created {
			layout[profile]++
		}

		if mig.PlaceBeside(g.Profiles, existing, created) != nil {
			return layout, true
		}
	}

	return nil, false
}
